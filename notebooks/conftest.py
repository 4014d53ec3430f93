"""How nbval runs and compares the notebooks."""

import os
import tempfile

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Kernels inherit this: their records and figures must not land in the project."""
    folder = tempfile.mkdtemp(prefix="cflkit-nbval-")
    os.environ.setdefault("CFLKIT_RESULTS", f"{folder}/results")
    os.environ.setdefault("CFLKIT_FIGURES", f"{folder}/figures")


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Never compare progress bars and SVG; what is compared is the cells tagged for it."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += ("stderr", "image/svg+xml")

"""How nbval runs and compares the notebooks."""

import os
import tempfile

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Kernels inherit this: their records, figures and checkpoints are those of nobody else.

    What a run of the reader's left in the cache would otherwise be gone on with, and not tested.
    """
    folder = tempfile.mkdtemp(prefix="cflkit-nbval-")
    for name in ("RESULTS", "FIGURES", "CACHE"):
        os.environ.setdefault(f"CFLKIT_{name}", f"{folder}/{name.lower()}")


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Never compare progress bars and SVG; what is compared is the cells tagged for it."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += ("stderr", "image/svg+xml")

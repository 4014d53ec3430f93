"""How pytest and nbval run: what the environment of all tests and kernels is."""

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

import pytest
from joblib import cpu_count


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that stands for another processor."""
    parser.addoption(
        "--perturb",
        type=int,
        metavar="SEED",
        help="perturb the last bit of every trained parameter, as another processor might",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Keep records, figures and checkpoints of tests apart from the user's; kernels inherit this.

    A checkpoint of a user's run would otherwise be continued, and its first rounds not tested.
    """
    if not hasattr(config, "workerinput"):  # the workers of pytest-xdist inherit it
        folder = tempfile.mkdtemp(prefix="cflkit-tests-")
        config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))
        for name in ("RESULTS", "FIGURES", "CACHE"):
            os.environ.setdefault(f"CFLKIT_{name}", f"{folder}/{name.lower()}")
    if workers := getattr(config.option, "numprocesses", None):
        # Workers share the cores: two that each start a thread per core wait for one another. They
        # inherit this from the main process, since NumPy and PyTorch read it when they are loaded
        share = max(1, cpu_count() // workers)
        for name in ("CFLKIT_THREADS", "OMP_NUM_THREADS"):
            os.environ.setdefault(name, str(share))
    if (seed := config.getoption("--perturb")) is not None:
        from robust import first_cell  # of tests/; loads torch, after the lines above

        code = first_cell("perturbed", seed)
        exec(code, {})
        startup = Path(os.environ["CFLKIT_CACHE"], "ipython", "profile_default", "startup")
        startup.mkdir(parents=True, exist_ok=True)  # kernels run it before their first cell
        (startup / "perturb.py").write_text(code, encoding="utf-8")
        os.environ["IPYTHONDIR"] = str(startup.parent.parent)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Compare neither progress bars nor SVG, but the cells that are tagged for it."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += ("stderr", "image/svg+xml")

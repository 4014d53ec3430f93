"""The part of the build that pyproject.toml cannot describe: a wheel has a copy of the project.

Commands such as ``cflkit ledger`` and ``cflkit run`` need notebooks, parameter files, published
tables and records. In a checkout they lie beside the package. A wheel has them in
``cflkit/project``.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

COPIED = ("notebooks", "figures", "data/published", "data/results")
# What git ignores, too: records that anyone makes anew in a minute, and leftovers
LEFT_OUT = ("*-digits-*", "tutorial-bumps-m30-seed42-*", ".ipynb_checkpoints", "__pycache__")


def left_out(folder: str, names: list[str]) -> set[str]:
    """Return the names that are not copied. Records of EMNIST take hours, and are copied."""
    matched = shutil.ignore_patterns(*LEFT_OUT)(folder, names)
    return {name for name in matched if "-emnist-digits-" not in name}


class BuildWithProject(build_py):
    """Copy the project's files into the package that is being built."""

    def run(self) -> None:
        """Build the package; an editable installation uses the checkout itself."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "cflkit" / "project"
        shutil.rmtree(target, ignore_errors=True)
        for folder in COPIED:
            shutil.copytree(folder, target / folder, ignore=left_out)
        for table in Path("data").glob("*.csv"):
            shutil.copy(table, target / "data")


setup(cmdclass={"build_py": BuildWithProject})

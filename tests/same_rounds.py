"""Check whether two revisions of the kit write the same records, to the last digit.

This is for changes that must not change results. ``python tests/same_rounds.py REVISION`` makes a
short run of each paper's notebook on the digits, with the code of a revision and with the present
code, both in this environment. It compares the ids of the records, and their ``rounds.csv`` cell by
cell. New columns are listed but are not differences. It takes some minutes, and exits with 1 if
anything differs.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

PROJECT = Path(__file__).resolve().parent.parent
BATCH_NORM = "-p model compact-bn -p include_buffers true -p sattler_rounds 3 -p briggs_rounds 3"
RUNS = [
    ("03b_ocfl_controls", "-p rounds 8"),
    ("03b_ocfl_controls", f"-p rounds 6 -p clients 6 -p dataset digits-8x8 {BATCH_NORM}"),
    ("05b_emd_cfl_controls", "-p rounds 3 -p dataset digits-8x8 -p range_epochs []"),
    (
        "05b_emd_cfl_controls",
        "-p rounds 4 -p dataset digits-8x8 -p range_epochs [] -p participants 5",
    ),
    ("06b_fedcref_controls", "-p iterations 2"),
    ("07b_explanations_controls", "-p rounds 6 -p briggs_rounds 3"),
    ("08b_tutorial_022_controls", "-p rounds 4 -p warm_up 2 -p clients 6"),
]


def run_all(checkout: Path, folder: Path) -> None:
    """Run `RUNS` with the code of a checkout; all their files are written to ``folder``."""
    places = {f"CFLKIT_{n}": str(folder / n.lower()) for n in ("RESULTS", "FIGURES", "CACHE")}
    for number, (notebook, options) in enumerate(RUNS):
        command = [sys.executable, "-m", "cflkit", "run", f"notebooks/{notebook}.ipynb"]
        subprocess.run(
            [*command, *options.split(), "--record-only", "-o", str(folder / f"{number}.ipynb")],
            cwd=checkout,
            env=os.environ | places | {"PYTHONPATH": str(checkout)},
            check=True,
            stdout=subprocess.DEVNULL,
        )


def differences(before: Path, after: Path) -> list[str]:
    """List the differences between the records of two folders."""
    ids = [sorted(path.name for path in folder.iterdir()) for folder in (before, after)]
    if ids[0] != ids[1]:
        return [f"ids: {ids[0]} and {ids[1]}"]
    found = []
    for name in ids[0]:
        # As texts, to the last digit
        files = (folder / name / "rounds.csv" for folder in (before, after))
        old, new = (pd.read_csv(file, dtype=str, keep_default_na=False) for file in files)
        if len(old) != len(new):
            found.append(f"{name}: {len(old)} rows and {len(new)}")
            continue
        changed = sorted(c for c in old if c not in new or not old[c].equals(new[c]))
        added = [column for column in new if column not in old]
        print(f"{name}: {', '.join(changed) or 'same'}; new columns: {added}", flush=True)
        found += [f"{name}: {', '.join(changed)}"] if changed else []
    return found


def main(revision: str) -> int:
    """Compare a revision with the present code."""
    with tempfile.TemporaryDirectory() as place:
        checkout, before, after = (Path(place) / name for name in ("checkout", "before", "after"))
        clone = ["git", "clone", "--quiet", str(PROJECT), str(checkout)]
        subprocess.run(clone, check=True)
        subprocess.run(["git", "checkout", "--quiet", revision], cwd=checkout, check=True)
        for code, folder in ((checkout, before), (PROJECT, after)):
            folder.mkdir()
            run_all(code, folder)
        found = differences(before / "results", after / "results")
    print("\n".join(found) or "same records")
    return 1 if found else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", metavar="REVISION", help="the revision to compare with")
    sys.exit(main(parser.parse_args().revision))

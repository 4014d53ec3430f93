"""Make the kept runs at full scale again, as far as they fit this machine.

``python tests/full.py`` lists the notebooks in ``notebooks/full`` with what they need, and makes
the runs that this machine can make within the minutes that are given: with 0, none.
"""

import argparse
import sys
from collections.abc import Mapping

import psutil
import torch

from cflkit import datasets
from cflkit.federation import usable_cores
from cflkit.reproduce import records
from cflkit.reproduce.records import PROJECT
from cflkit.reproduce.terminal import fitted

sys.path.append(str(PROJECT / "notebooks" / "src"))

import keep


def absent(one: keep.Kept) -> str:
    """Say that the data of a run are not here, and cannot be downloaded."""
    name = records.find_record(one.path.stem).parameters.get("dataset", "digits")
    try:
        datasets.load(name)
    except datasets.DatasetError:
        return f"no {name}, see: python -m cflkit data {name}"
    return ""


def hindrance(one: keep.Kept, minutes: float, memory_gib: float, cores: int, cuda: bool) -> str:
    """Say why this machine cannot execute it; an empty text if it can."""
    if one.device != "cpu" and not cuda:
        return "it needs a GPU"
    if one.memory_gib > memory_gib:
        return f"{memory_gib:.1f} GiB are free"
    needed = one.minutes / (cores if one.device == "cpu" else 1)
    return f"it takes more than {minutes:g} minutes" if needed > minutes else ""


def table(hindrances: Mapping[keep.Kept, str]) -> str:
    """List what each kept notebook needs, and why it is left out (`hindrance`)."""
    return fitted(
        [
            {"notebook": one.path.stem, "minutes of a core or GPU": one.minutes}
            | {"GiB": one.memory_gib, "device": one.device, "left out": why}
            for one, why in hindrances.items()
        ]
    )


def main() -> int:
    """List all, and make the runs again that fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30, help="the most for one notebook")
    given = parser.parse_args()
    machine = {
        "minutes": given.minutes,
        "memory_gib": psutil.virtual_memory().available / 2**30,
        "cores": usable_cores(),
        "cuda": torch.cuda.is_available(),
    }
    why = {one: hindrance(one, **machine) or absent(one) for one in keep.listed()}
    print(table(why), flush=True)
    fitting = [one for one in why if not why[one]]
    return min(1, sum(map(keep.again, fitting)))


if __name__ == "__main__":
    sys.exit(main())

"""The figure of the appendix 09b in which methods fail: its file, and what the text says of it."""

import sys

import pandas as pd
import pytest

from cflkit.reproduce.records import PROJECT

sys.path.insert(0, str(PROJECT / "notebooks" / "src"))
import failures  # noqa: E402

ROWS = pd.read_csv(failures.TABLE, keep_default_na=False)
PLACE = ["situation", "value", "seed"]


def test_every_situation_and_seed_is_there_once_with_all_methods():
    places = [(s, str(v)) for s, values in failures.SITUATIONS.items() for v in values]
    expected = [(*place, seed) for seed in failures.SEEDS for place in places]
    sizes = ROWS.groupby(PLACE, sort=False).size()
    assert list(sizes.index) == expected
    assert all(size == (10 if place[0] == "k" else 29) for place, size in sizes.items())
    assert not ROWS.duplicated([*PLACE, "method"]).any()


@pytest.mark.slow
def test_a_cheap_situation_comes_out_again():
    names = failures.lesson("09b_catalogue", until="line_up", seed=1)
    new = failures.scene(names, "images", 5)
    there = ROWS[(ROWS["situation"] == "images") & (ROWS["value"] == "5") & (ROWS["seed"] == 1)]
    kept = there.set_index("method")["accuracy"]
    for row in failures.measured(names, new, ["Oracle", "FedAvg", "Local", "FlexCFL"]):
        assert float(row["accuracy"]) == pytest.approx(kept[row["method"]], abs=0.02)

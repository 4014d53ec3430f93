"""The figure of the appendix 09b in which methods fail: its file, and what the text says of it."""

import failures
import numpy as np
import pandas as pd
import pytest

from cflkit.compare import situations
from cflkit.compare.situations import places

ROWS = pd.read_csv(failures.TABLE, keep_default_na=False)
PLACE = ["situation", "value", "seed"]


def test_every_situation_and_seed_is_there_once_with_all_methods():
    expected = [(s, str(value), seed) for seed in situations.SEEDS for s, value in places()]
    sizes = ROWS.groupby(PLACE, sort=False).size()
    assert list(sizes.index) == expected
    assert all(size == (11 if place[0] == "k" else 31) for place, size in sizes.items())
    assert not ROWS.duplicated([*PLACE, "method"]).any()


@pytest.mark.slow
def test_a_cheap_situation_comes_out_again():
    names = failures.lesson("09b_catalogue", until="line_up", seed=1)
    new = situations.scene("images", 5, seed=1)
    there = ROWS[(ROWS["situation"] == "images") & (ROWS["value"] == "5") & (ROWS["seed"] == 1)]
    kept = there.set_index("method")["accuracy"]
    rows = failures.measured(names, new, ["Oracle", "FedAvg", "Local", "FlexCFL"])
    for name, row in rows.items():
        assert float(row["accuracy"]) == pytest.approx(kept[name], abs=0.02)


TOLD = ["FlexCFL", "FeSEM", "CFLGP", "OCFL-KM", "Signatures"]
# Points above the better of FedAvg and Local, in all seeds: situation, value, methods, from, to
GAINS = [
    ("IID", "", [], -np.inf, 1),
    ("IID", "", TOLD, -4, -1),
    ("IID", "", ["Briggs", "PACFL", "FedClust", "pFedGraph"], 0, 0),
    ("IID", "", ["OCFL-AFF"], -3, -1),
    ("base", "", ["Oracle"], 4, 5.5),
    *(("images", value, ["Oracle"], 13, np.inf) for value in ("20", "10", "5")),
    ("sizes", "1/r", ["Oracle"], 13, 17),
    ("sizes", "1/r", ["EMD-CFL"], 8, 13),
    ("sizes", "1/r", ["OCFL-HDB", "OCFL-AFF", "OCFL-KM", "OCFL-MS"], -10, -1),
    ("sizes", "half", ["Oracle"], 1, 5),
    ("base", "", ["FedAvg-FT"], -1.5, -0.5),
    *(("labels wrong", share, ["FedAvg-FT"], 3, 8) for share in ("0.2", "0.4")),
    ("labels wrong", "0.2", ["Oracle"], 13, np.inf),
    ("labels wrong", "0.4", ["Oracle"], 20, np.inf),
    *(("five classes", value, [], -np.inf, 1) for value in ("6", "30")),
    ("five classes", "6", ["Oracle"], -11, -6),
    ("five classes", "30", ["Oracle"], -2.6, -0.8),
    ("6/3/2/1", "all", ["OCFL-HDB", "OCFL-AFF"], -0.31, np.inf),
    ("6/3/2/1", "last", ["OCFL-HDB", "OCFL-AFF"], -30, -6),
    ("6/3/2/1", "last", ["pFedGraph"], -34, -14),
    ("alone", "", ["OCFL-HDB", "OCFL-AFF"], -34, -26),
    ("alone", "", ["pFedGraph"], -np.inf, -31),
    ("alone", "", ["FlexCFL", "PACFL", "FedClust"], 0, 1),
    ("between", "", ["Oracle"], -13.1, -1),
    ("between", "", ["StoCFL"], 7, 14),
]
# The same, against the method's own accuracy with the right k
WRONG_K = {"2": (-12, -7), "3": (-10, -3), "5": (-1.5, np.inf), "6": (-2.5, np.inf)}


def test_what_the_appendix_says_of_its_figure_holds_in_every_seed():
    points = 100 * ROWS.pivot(index=PLACE, columns="method", values="accuracy")
    for situation, value, methods, low, high in GAINS:
        own = points.loc[situation, value]
        gains = own.sub(own[["FedAvg", "Local"]].max(axis=1), axis=0)
        said = gains[methods] if methods else gains
        between = said.ge(low - 1e-6) & said.le(high + 1e-6)
        assert between.all(axis=None), (situation, value)
    for k, (low, high) in WRONG_K.items():
        change = (points.loc["k", k] - points.loc["base", ""])[TOLD]
        assert change.ge(low).all(axis=None) and change.le(high).all(axis=None), k

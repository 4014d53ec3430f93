"""The table of the benchmark that the project publishes."""

import pandas as pd
from pages import BENCHMARK


def test_no_way_is_faster_than_its_floor():
    """The floor is the time of the convolutions and matrix products alone."""
    ways = pd.read_csv(BENCHMARK).query("part == 'ways'").dropna(subset=["share"])
    assert len(ways) and (ways["share"] <= 1).all(), ways[["network", "way", "share"]]

"""Published numbers beside ours."""

import shlex

import numpy as np
import pandas as pd
import pytest
import yaml

from cflkit import ledger, notebooks
from cflkit.__main__ import main
from cflkit.records import PROJECT, Record

SCENARIO = ("mnist", "nonoverlapping", "balanced", 15)
NOTEBOOK = "03_ocfl_temperature"


def parameters(reduced=False, **changes):
    folder = PROJECT / "notebooks" / "params" / "ocfl"
    file = (folder / "reduced" if reduced else folder) / "mnist_15_nonoverlapping_balanced.yaml"
    return ledger.defaults(NOTEBOOK) | yaml.safe_load(file.read_text()) | changes


def record(number=0, fired=3, rounds=50, **options):
    """A run whose every method found the truth in the same round."""
    number_of_round = np.arange(1, rounds + 1)
    after = (number_of_round >= fired).astype(float)
    watched = np.where(number_of_round <= fired, 0.5, np.nan)
    rows = [
        pd.DataFrame(
            {
                "method": method,
                "round": number_of_round,
                "clusters": np.where(after == 1, "0|1|2", "0|0|0"),
                "temperature": watched if method.startswith("OCFL") else np.nan,
                "ari": after,
                "ami": after,
                "homogeneity": after,
            }
        )
        for method in ["FedAvg", *{m for pair in ledger.METHODS.values() for m in pair}]
    ]
    given = parameters(**options) | {"seed": number, "partition_seed": number}
    name = PROJECT / f"ocfl-run-{number}"
    return Record(name, given, {}, {}, pd.concat(rows))


@pytest.mark.parametrize(
    ("value", "ours", "expected"),
    [
        (0.96, [], "not run"),
        (0.96, [0.96], "reproduced"),
        (0.96, [0.94], "reproduced"),  # 0.02 away
        (0.96, [0.93], "close"),
        (0.96, [0.91], "close"),  # 0.05 away
        (0.96, [0.90], "not reproduced"),
        (0.96, [0.2, 0.9, 1.0], "reproduced"),  # within the interval
        (0.96, [0.956, 0.95, 0.9], "reproduced"),  # 0.956 prints as 0.96
        (0.96, [1.0, 1.0, 1.0], "close"),
        (0.0, [0.0], "reproduced"),
        (np.nan, [np.nan, np.nan], "reproduced"),  # neither ever clustered
        (np.nan, [np.nan, 3.0], "not reproduced"),
        (3, [np.nan], "not reproduced"),
        (3, [2.0, 4.0], "reproduced"),
    ],
)
def test_status(value, ours, expected):
    assert ledger.status(value, ours) == expected


def row(table, method, measure, paper="ocfl-extended"):
    chosen = (table["paper"] == paper) & (table["method"] == method)
    chosen &= table["measure"] == measure
    for name, value in zip(ledger.SCENARIO, SCENARIO, strict=True):
        chosen &= table[name] == value
    [found] = table[chosen].to_dict("records")
    return found


def test_a_run_at_the_papers_scale_meets_its_cells():
    table = ledger.ledger([record(0, fired=3), record(1, fired=2)])
    cell = row(table, "OCFL-HDB", "RAND")
    assert cell["ours"] == pytest.approx((0.96 + 0.98) / 2)
    assert (cell["low"], cell["high"], cell["seeds"]) == pytest.approx((0.96, 0.98, 2))
    assert cell["status"] == "reproduced"
    assert cell["runs"] == "ocfl-run-0 ocfl-run-1"
    assert cell["reduced_status"] == "not run"
    assert row(table, "OCFL-HDB", "clustering round")["status"] == "reproduced"
    wrong_sign = row(table, "OCFL-AFF", "RAND")
    assert wrong_sign["value"] == 0.23
    assert wrong_sign["status"] == "not reproduced"
    assert wrong_sign["intended"] == pytest.approx(0.97)
    dash = row(table, "BCL", "RAND")
    assert np.isnan(dash["value"])
    assert dash["status"] == "not reproduced"
    assert (table["status"] != "not run").sum() == 6 * (3 + 3 + 1)


def test_a_reduced_run_is_kept_apart():
    table = ledger.ledger([record(reduced=True)])
    assert set(table["status"]) == {"not run"}
    cell = row(table, "OCFL-HDB", "RAND")
    assert cell["reduced_status"] == "reproduced"
    assert set(cell["reduced_scale"].split(", ")) == {
        *("model compact-cnn", "draws 600", "lr 0.1", "batch_size 16", "local_epochs 1")
    }


def test_of_several_reduced_scales_the_one_with_most_runs_counts():
    runs = [record(n, fired=3, reduced=True) for n in range(2)]
    runs.append(record(2, fired=40, reduced=True, draws=100))
    assert row(ledger.ledger(runs), "OCFL-HDB", "RAND")["reduced_seeds"] == 2


def test_a_run_too_short_for_the_protocol_is_no_run():
    cell = row(ledger.ledger([record(rounds=10, reduced=True)]), "OCFL-HDB", "RAND")
    assert (cell["reduced_status"], cell["reduced_seeds"]) == ("not run", 0)


def test_subsets_never_count_as_the_papers_data():
    given = record().parameters | {"dataset": "cifar10-subset"}
    subset = Record(PROJECT / "ocfl-x", given, {}, {}, pd.DataFrame())
    assert ledger.scenario_of(subset)[0] == "cifar10"
    assert "dataset cifar10-subset" in ledger.scale(subset, "ocfl-extended")


def test_a_scenario_of_ones_own_is_no_papers():
    given = record().parameters | {"clients": 12}
    other = Record(PROJECT / "ocfl-x", given, {}, {}, pd.DataFrame())
    assert ledger.scale(other, "ocfl") == "a scenario that the paper does not have"


def test_the_command_of_a_record_gives_its_parameters():
    run = record(3, reduced=True)
    words = shlex.split(ledger.command(run))
    assert words[:4] == ["python", "-m", "cflkit", "run"]
    given = {words[i + 1]: words[i + 2] for i, word in enumerate(words) if word == "-p"}
    notebook = notebooks.read(PROJECT / words[4])
    values = {name: notebooks.parse_yaml(name, text) for name, text in given.items()}
    made = notebooks.defaults(notebook) | notebooks.check_parameters(notebook, values)
    assert made == run.parameters


def test_counts_hold_every_cell():
    table = ledger.ledger([record()])
    total = ledger.counts(table).sum(axis=1)
    assert total.sum() == 2 * len(ledger.published())


def test_the_committed_ledger_is_what_the_kit_writes(tmp_path):
    assert ledger.write(ledger.ledger(), tmp_path / "l.csv").read_text() == (
        ledger.LEDGER.read_text()
    )


def test_the_command_prints_and_writes(tmp_path, capsys):
    path = tmp_path / "ledger.csv"
    assert main(["ledger", "--paper", "ocfl", "--table", "I", "-o", str(path)]) == 0
    printed = capsys.readouterr().out
    assert str(path) in printed
    assert "not run" in printed
    assert len(pd.read_csv(path)) == len(ledger.published())
    assert main(["ledger", "--table", "9", "-o", str(path)]) == 2
    assert "no table '9'" in capsys.readouterr().err

"""The tables of the README and of other pages, made from committed notebooks, records and timings.

Each table is between two markers. The text around the markers is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import pandas as pd
from reports import catalogue, counting, results, sentences, thresholds

from cflkit import compare
from cflkit.reproduce import grid, ledger, notebooks, records
from cflkit.reproduce.papers import PAPERS
from cflkit.reproduce.papers.base import CLUSTERS, PERCENT, RANKS, ROUNDS, SCORES
from cflkit.reproduce.records import PROJECT, Record
from cflkit.reproduce.run_messages import MINUTES, TITLE

# The pages with tables; each table is in one of them
PAGES = tuple(
    PROJECT / name
    for name in (
        "README.md",
        "notebooks/results.md",
        "notebooks/a_real_federation.md",
        "notebooks/methods.md",
        "notebooks/compare_your_method.md",
    )
)
# What `tests/benchmark.py` has measured for the project
BENCHMARK = PROJECT / "data" / "benchmark.csv"
# What published numbers are of, by the names of their measures in the tables
KINDS = {
    "clusters of clients: agreement, round": ("ari", "AMI", "COM", "RAND", "clustering round"),
    "accuracy": (
        *("average accuracy", "worst accuracy", "clean accuracy", "backdoor accuracy"),
        *("Cluster Acc", "Global Acc"),
    ),
    "F1": ("PF1", "GF1"),
    "explanations: insertion, deletion": (
        *("insertion", "deletion", "insertion, average rank", "deletion, average rank"),
    ),
    "classes found without labels (FedCRef)": (
        *("ACC init", "ACC end", "communities", "isolated start", "isolated end"),
        *("wrong associations, %", "improvement, %"),
    ),
}
# What the margins of the rule are for
MARGINS = {
    "a score from 0 to 1": SCORES,
    "a percentage": PERCENT,
    "a round": ROUNDS,
    "a number of clusters": CLUSTERS,
    "an average rank": RANKS,
}
# How long a notebook takes to read
TO_READ = re.compile(r"\*\*Study minutes:\*\* (\d+)")
# Notebooks with this number or a higher one are reports and the glossary
FIRST_REPORT = 90


def write_pages() -> list[Path]:
    """Write the ledger of the records that git tracks and the pages' tables; return the files.

    Raises
    ------
    ValueError
        A table has no place.
    """
    committed = records.committed()
    table = ledger.ledger(committed)
    parts = tables(committed, table) | sentences.paragraphs(committed, table)
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    for name in parts:
        if not any(start(name) in text for text in texts):
            raise ValueError(f"no page has a place for {name}: {start(name).strip()}")
    whole = [filled(text, parts) for text in texts]
    # Nothing is written before all markers have been found
    ledger.write(table, ledger.LEDGER)
    for page, text in zip(PAGES, whole, strict=True):
        records.write_whole(page, text)
    return [ledger.LEDGER, *PAGES]


def tables(committed: Sequence[Record], table: pd.DataFrame) -> dict[str, str]:
    """Build all tables from the committed records and their ledger, by the names in the markers."""
    counts = counting.counts(table)
    counts = counts.assign(numbers=counts[list(ledger.STATUS)].sum(axis=1))
    parts = {
        "lessons": notebook_table(range(FIRST_REPORT)),
        "reports": notebook_table(range(FIRST_REPORT, 100)),
        "kinds": kinds(table),
        "true-groups": true_groups(committed),
        "summary": summary(counts),
        "ledger": headline(counts),
        "margins": margins(),
        "placebo": placebo(table),
        "thresholds": by_threshold(committed),
        "paper-runs": paper_runs(committed),
        "overhead": overhead(pd.read_csv(BENCHMARK)),
        "methods": of_methods(),
        **of_the_map(compare.table(compare.TABLE)),
    }
    return parts | {name: results_table(of.rows(committed)) for name, of in results.TABLES.items()}


def of_the_map(runs: pd.DataFrame) -> dict[str, str]:
    """Build the oracle's table of the failure map, and the table of those who are worse off."""
    oracle = runs[runs["method"] == "Oracle"].assign(method="Mine")
    met_by_all = runs[runs["situation"] != "k"]
    numbers = met_by_all[["accuracy", *compare.COMPARED]].apply(pd.to_numeric, errors="coerce")
    means = numbers.groupby(met_by_all["method"]).mean()
    rows = [
        {"method": name, "accuracy": f"{100 * row['accuracy']:.1f}"} | compare.worse(row)
        for name, row in means.sort_values("accuracy", ascending=False).iterrows()
    ]
    return {
        "oracle": compare.markdown(compare.summary(oracle)).removesuffix("\n"),
        "who-pays": compare.markdown(pd.DataFrame(rows).fillna("–")).removesuffix("\n"),
    }


def start(name: str) -> str:
    """Return the line before a table."""
    return f"<!-- {name}: written by python notebooks/src/pages.py -->\n"


def filled(text: str, parts: Mapping[str, str]) -> str:
    """Put into a page those tables for which it has a place.

    Raises
    ------
    ValueError
        The end of a table is missing, or there is no such table.
    """
    end = "\n<!-- end -->"
    for name in re.findall(start(r"([\w-]+)"), text):
        if name not in parts:
            raise ValueError(f"there is no table {name}")
        before, _, rest = text.partition(start(name))
        inside, ended, after = rest.partition(end)
        if not ended or re.search(start(r"[\w-]+"), inside):
            raise ValueError(f"the table {name} has no end: {end.strip()}")
        text = before + start(name) + parts[name] + end + after
    return text


def markdown(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Build a table in Markdown."""
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def notebook_table(numbers: range) -> str:
    """Build the table of the chapters with these numbers: title, appendix, minutes.

    Raises
    ------
    ValueError
        A notebook does not state its title and its minutes.
    """
    paths = sorted(grid.NOTEBOOKS.glob("[0-9]*.ipynb"))
    appendices = {path.name[:2]: path for path in paths if path.name[2] != "_"}
    rows = []
    for path in paths:
        if int(path.name[:2]) not in numbers or path in appendices.values():
            continue
        notebook = notebooks.read_notebook(path)
        title, to_run, to_read = (form.search(notebook.prose) for form in (TITLE, MINUTES, TO_READ))
        if title is None or (to_run is None and notebook.code):
            raise ValueError(f"{path.name} does not state its title and its minutes")
        number = path.name[:2]
        row = [f"[{number} {title[1]}](notebooks/{path.name})"]
        row += [to_read[1] if to_read else "", to_run[2] if to_run else ""]
        own = appendices.get(number)
        rows.append([*row, f"[{own.name[:3]}](notebooks/{own.name})" if own else ""])
    heads = ["notebook", "minutes to read", "minutes to run"]
    if any(row[-1] for row in rows):
        return markdown([*heads, "appendix with controls"], rows)
    return markdown(heads, [row[:-1] for row in rows])


def results_table(rows: Sequence[results.Cells]) -> str:
    """Build the table of a paper's runs."""
    if not rows:
        return "No run of this paper is committed."
    return markdown(list(rows[0]), [list(row.values()) for row in rows])


def true_groups(committed: Sequence[Record]) -> str:
    """Build the table of how often methods found the true groups at the papers' own scale.

    It has the runs that end when the clusters are final. Runs of a method with the same scenario
    and the same seeds count once, and scenarios with one true group count apart. A method whose
    threshold belongs to another quantity has dashes (`Paper.borrowed`). The mean of up to three
    scenarios is that of each.
    """
    until_clusters = [run for run in committed if run.parameters.get("until") == "clusters"]
    found: dict[tuple[str, str], dict[tuple[Any, ...], list[Record]]] = {}
    for paper in (PAPERS[of.paper] for of in results.TABLES.values()):
        for scenario, group in ledger.by_scenario(until_clusters, paper.name, "paper").items():
            for method in {name for run in group for name in run.summary}:
                # A method has no ARI if it diverged, or has mixtures and no clusters
                own = [run for run in group if run.value(method, "ari") is not None]
                if own:
                    found.setdefault((paper.name, method), {})[scenario] = own
    rows = []
    for (name, method), scenarios in sorted(found.items()):
        paper, parted, one = PAPERS[name], dict[str, list[float]](), list[float]()
        for scenario, group in scenarios.items():
            aris = [run.summary[method]["ari"] for run in records.one_per_seed(group)]
            if paper.is_one_group(group[0]):
                one += aris
            else:
                parted[", ".join(str(part) for part in scenario if part is not None)] = aris
        several = [ari for own in parted.values() for ari in own]
        each = "; ".join(f"{mean(own):.2f} ({which})" for which, own in sorted(parted.items()))
        of_mean = f"{mean(several):.3f}" if len(parted) > 3 else each
        own_threshold = several and method not in paper.borrowed
        told = [several.count(1), of_mean] if own_threshold else ["–", "–"]
        alone = f"{one.count(1)} of {len(one)}" if one else ""
        rows.append((paper.folder, method, len(parted), len(several), *told, alone))
    heads = ("paper", "method", "scenarios", "runs", "true groups found", "mean ARI")
    return markdown([*heads, "found, where there is one group"], rows)


def of_methods() -> str:
    """Build the table of all methods of the kit (`catalogue.table`)."""
    table = catalogue.table()
    return markdown(list(table), table.to_numpy().tolist())


def by_threshold(committed: Sequence[Record]) -> str:
    """Build the table of the best ARI over each method's threshold (`thresholds.table`)."""
    table = thresholds.table(committed)
    heads = {"ARI": "ARI there", "best": "best ARI", "range": "its thresholds"}
    return markdown([heads.get(name, name) for name in table], table.to_numpy().tolist())


def kinds(table: pd.DataFrame) -> str:
    """Build the table of what was run at which scale, by what the published numbers are of.

    A cell has the numbers that `count_once`, and all in brackets. The last row has the methods
    whose code has a wrong sign.
    """
    of = {measure: kind for kind, measures in KINDS.items() for measure in measures}
    kind = table["measure"].map(of).fillna("others: distances, hours")
    which = {name: kind.eq(name) for name in [*KINDS, "others: distances, hours"]}
    which["all"] = kind.notna()
    signs = {(name, method): None for name, own in PAPERS.items() for method in own.wrong_sign}
    names = " and ".join(dict.fromkeys(method for _, method in signs))
    wrong = [cell in signs for cell in zip(table["paper"], table["method"], strict=True)]
    which[f"of all: {names}, with the wrong sign"] = pd.Series(wrong, table.index)
    heads = ["published numbers of", "published"]
    found = []
    for scale, (prefix, _) in ledger.SCALES.items():
        answers, once = ledger.answers_at(table, scale), counting.count_once(table, prefix)
        found += [(answers.isin(ledger.ANSWERS), once), (answers.eq("reproduced"), once)]
    heads += ["papers' scale: run", "reproduced", "reduced scale: run", "agrees"]
    rows = [
        (name, own.sum(), *(f"{(own & c & once).sum()} ({(own & c).sum()})" for c, once in found))
        for name, own in which.items()
    ]
    return markdown(heads, rows)


def margins() -> str:
    """Build the table of the rule's margins."""
    rows = [(name, *(f"{x:g}" for x in (m.near, m.far, m.rounding))) for name, m in MARGINS.items()]
    return markdown(["number", "narrow", "wide", "more, for the rounding in print"], rows)


def counted(before: Sequence[str], heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Build a table of counts at both scales; at the reduced scale, nothing is reproduced."""
    return markdown([*before, *(re.sub("reproduced$", r"\g<0> or agrees", h) for h in heads)], rows)


def summary(counts: pd.DataFrame) -> str:
    """Build the table of how many of each paper's numbers have runs, and of the answers."""
    counts = counts.groupby(level=["scale", "paper"], sort=False).sum(numeric_only=True)
    heads = ["numbers", "run", "single run", *ledger.ANSWERS[:-1]]
    heads += ["distinct", "distinct reproduced"]
    run = counts.loc[counts["run"] > 0, heads].round().astype(int)
    return counted(("scale", "paper"), heads, [(*index, *row) for index, *row in run.itertuples()])


def headline(counts: pd.DataFrame) -> str:
    """Build the table of how many of the papers' numbers committed runs have reproduced."""
    heads = ["numbers", "run", *ledger.ANSWERS, "equal seeds", "distinct", "distinct reproduced"]
    rows: list[Any] = []
    for (scale, *names), row in counts[counts["run"] > 0].iterrows():
        shares = ("–" if pd.isna(row[of]) else f"{row[of]:.0%}" for of in ("right", "placebo"))
        rows.append((", ".join(names), scale, *(f"{row[name]:.0f}" for name in heads), *shares))
    without = counts[counts["run"].eq(0)].index.get_level_values("scale").value_counts()
    blank = [""] * len(heads)
    rows += [(f"{count} others", scale, "", 0, *blank) for scale, count in without.items()]
    return counted(("paper, table", "scale"), [*heads, "right scenario", "placebo"], rows)


def placebo(table: pd.DataFrame) -> str:
    """Build the table of the papers' scale by method: the rule on right and on wrong scenarios."""
    by = ["paper", "table", "method"]
    own = table[table["seeds"].gt(1) & ~table["fixed"]]
    passes = own["status"].eq("reproduced").groupby([own[name] for name in by])
    shares = passes.agg(["size", "mean"]).assign(wrong=counting.placebo(table, by=by)).dropna()
    rows = [
        (f"{paper}, {name}", method, size, f"{right:.0%}", f"{wrong:.0%}")
        for (paper, name, method), size, right, wrong in shares.itertuples()
    ]
    heads = ["paper, table", "method", "numbers with several seeds"]
    return markdown([*heads, "right scenario", "wrong scenario"], rows)


def paper_runs(committed: Sequence[Record]) -> str:
    """Build the table of what the runs at the papers' own scale cost, one row per record."""
    rows = []
    for record in sorted(committed, key=lambda record: record.id):
        if any(ledger.scale(record, paper) == "paper" for paper in PAPERS):
            cost, rounds = record.provenance, record.rounds["round"].max()
            minutes, memory, threads = cost["minutes"], cost["peak_memory_gib"], cost["threads"]
            link = f"[{record.id}](../data/results/{record.id})"
            spent = f"{minutes:.{0 if minutes >= 10 else 1}f}"
            held = "–" if memory is None else f"{memory:.1f}"
            on_cpu = f"CPU, {threads} thread{'' if threads == 1 else 's'}"
            device = on_cpu if cost["device"] == "cpu" else cost["device"]
            rows.append((link, rounds, spent, held, device, cost["resumed"]))
    heads = ("record", "rounds", "minutes", "peak memory, GiB", "computed on", "interruptions")
    return markdown(heads, rows)


def overhead(measured: pd.DataFrame) -> str:
    """Build the table of what a federation over a network costs, beside the simulation."""
    columns = ["seconds", "seconds with start and end", "MB down", "MB up"]
    rows = [
        (row["way"], *("–" if pd.isna(row[name]) else f"{row[name]:.3g}" for name in columns))
        for _, row in measured[measured["part"] == "real federation"].iterrows()
    ]
    return markdown(["way", *columns], rows)


if __name__ == "__main__":
    for written in write_pages():
        print(records.display_path(written))

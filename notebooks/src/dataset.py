"""Write the committed records as one data set: a Parquet file and its description.

``make dataset`` writes both into ``data/runs/dataset``; the description is a data package of
Frictionless Data. A row of the table is a round of a method in a run, after what is said of the run
as a whole. The ledger that is made from the written file must be the committed one. Parquet needs
the package pyarrow, which nothing else in the kit needs. The file is not committed, since it says
nothing more than the records.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from cflkit import __version__
from cflkit.reproduce import ledger, records
from cflkit.reproduce.records import PROJECT, TEXTS, Record

# What a row says of its run; the last four are objects in JSON
OF_RUN = {
    "run": "The name of the run, which is that of its folder in data/results",
    "paper": "The paper whose experiment it is, by its folder in notebooks/params",
    "parameters": "All parameters of the run",
    "summary": "The measures of each method: at the last round, and with mean_ over all rounds",
    "claims": "What the notebook of the run claims, and whether it was true",
    "provenance": "Code, versions, machine, minutes, seed, and the digest of the partition",
}
# What the columns of a round say; {} stands for other endings of the same name
OF_ROUND = {
    "method": "The name of the method; 'as published' means as in the authors' code",
    "round": "The round, from 1; 0 is before the first one",
    "pf1": "Macro-F1 of each client's model on the client's own test set, mean over clients",
    "gf1": "Macro-F1 of each client's model on the central test set, mean over clients",
    "learning_gap": "The mean over clients of the distance between both F1",
    "accuracy": "Accuracy on the clients' own test sets, mean over clients; in FedCRef and in "
    "explanations, that of clusters and that on the explained images",
    "worst_accuracy": "The smallest accuracy of a client",
    "central_accuracy": "Accuracy on the central test set, mean over clients",
    "clean_accuracy": "Accuracy of a backdoor's target clients on images as they are",
    "backdoor_accuracy": "Accuracy of a backdoor's target clients on manipulated images",
    "bytes_down": "Bytes that the method's clients received in the round",
    "bytes_up": "Bytes that the method's clients sent in the round",
    "trainings": "Local trainings that the method asked for in the round",
    "n_clusters": "The number of clusters",
    "ari": "Adjusted Rand index of the clusters and the true groups",
    "ami": "Adjusted mutual information of the clusters and the true groups",
    "homogeneity": "Homogeneity of the clusters",
    "completeness": "Completeness of the clusters",
    "clusters": "The cluster of each client, joined by |",
    "settled": "Whether no later round can change the clusters",
    "diverged": "Whether the training diverged in this round",
    "temperature": "OCFL: the temperature of the clients' updates",
    "distances": "The matrix of distances that was clustered, row by row, joined by |",
    "merge_heights": "The distances at which hierarchical clustering merges, joined by |",
    "scores": "EMD-CFL: the matrix of its scores, row by row, joined by |",
    "mean_norm": "Sattler: the norm of the mean update of each cluster, joined by |",
    "max_norm": "Sattler: the largest norm of an update in each cluster, joined by |",
    "eps1": "Sattler: the threshold of the mean norm",
    "eps2": "Sattler: the threshold of the largest norm",
    "communities": "FedCRef: communities of associated clusters",
    "isolated": "FedCRef: clusters without an association",
    "wrong": "FedCRef: the share of associations between clusters of different classes",
    "active": "FedCRef: clients that will refine their clusters again",
    "owners": "FedCRef: the client of each cluster, joined by |",
    "classes": "FedCRef: the true class of each cluster, joined by |; -1 is none",
    "edges": "FedCRef: the associations as pairs of clusters, joined by |",
    "cluster": "Explanations: the cluster whose model is explained",
    "clients": "Explanations: the clients of the cluster, joined by |",
    "source": "Explanations: where the images come from",
    "map": "Explanations: the kind of map",
    "samples": "Explanations: the number of images",
    "empty": "Explanations: the share of maps that are zero everywhere",
    "confidence": "Explanations: the mean probability of the explained class",
    "insertion{}": "Explanations: the area under the insertion curve, its mean over images; _std "
    "is the standard deviation, and _p05 to _p95 are quantiles",
    "deletion{}": "Explanations: the same for the deletion curve",
    "{}_overall": "Table 9 of EMD-CFL: mean distance of two clients' parameters, over all pairs",
    "{}_within": "Table 9 of EMD-CFL: the same over pairs within the clusters found",
}
PACKAGE = {
    "name": "cflkit-records",
    "title": "Rounds of clustered federated learning: the run records of cflkit",
    "version": __version__,
    "licenses": [{"name": "CC-BY-4.0"}],
}


def table(runs: Sequence[Record]) -> pd.DataFrame:
    """Join all rounds of all runs, with numbers, truth values or texts in each column."""
    parts = []
    for run in runs:
        rows = run.table(**TEXTS)
        said = {"run": run.id, "paper": run.paper}
        said |= {name: json.dumps(getattr(run, name)) for name in list(OF_RUN)[2:]}
        parts.append(pd.concat([pd.DataFrame([said] * len(rows), dtype=str), rows], axis=1))
    joined = pd.concat(parts, ignore_index=True)
    return joined.apply(lambda column: column if column.name in OF_RUN else typed(column))


def typed(column: pd.Series) -> pd.Series:
    """Turn texts into whole numbers, numbers or truth values, if all of them are such."""
    missing = column.isna() | column.eq("")
    texts = column[~missing]
    if texts.isin(["True", "False"]).all():
        return texts.eq("True").astype("boolean").reindex(column.index)
    for kind in (int, float):
        try:
            values = texts.map(kind)
        except ValueError:
            continue
        return values.astype("Int64" if kind is int else float).reindex(column.index)
    return texts.reindex(column.index)


def runs_of(rows: pd.DataFrame) -> Iterator[Record]:
    """Return the runs of a table, with their rounds."""
    for name, own in rows.groupby("run", sort=True):
        first = {column: own[column].iloc[0] for column in OF_RUN}
        said = {part: json.loads(first[part]) for part in list(OF_RUN)[2:]}
        run = Record(records.results() / str(name), first["paper"], **said)
        # As the kit reads them from the record's own file
        text = own.drop(columns=list(OF_RUN)).dropna(axis=1, how="all").to_csv(index=False)
        vars(run)["rounds"] = pd.read_csv(io.StringIO(text), dtype={"clusters": str})
        yield run


def described(column: str) -> str:
    """Return what a column says; a `KeyError` names one of which nothing is said."""
    if column in (known := OF_RUN | OF_ROUND):
        return known[column]
    fits = [name for name in OF_ROUND if "{}" in name and name.strip("{}") in column]
    return OF_ROUND[fits[0]] if fits else known[column]


def package(rows: pd.DataFrame) -> dict[str, Any]:
    """Describe a table as a data package of Frictionless Data."""
    kinds = {"Int64": "integer", "float64": "number", "boolean": "boolean"}
    fields = [
        {"name": name, "type": kinds.get(str(kind), "string"), "description": described(name)}
        for name, kind in rows.dtypes.items()
    ]
    schema = {"fields": fields, "missingValues": [""]}
    resource = {"name": "rounds", "path": "rounds.parquet", "format": "parquet", "schema": schema}
    return PACKAGE | {"resources": [resource]}


def main() -> int:
    """Write the data set, and make the ledger from it."""
    folder = PROJECT / "data" / "runs" / "dataset"
    folder.mkdir(parents=True, exist_ok=True)
    rows, path = table(records.committed()), folder / "rounds.parquet"
    try:
        rows.to_parquet(path, index=False, compression="zstd")
    except ImportError as error:
        print(f"error: Parquet needs pyarrow: {error}", file=sys.stderr)
        return 1
    description = json.dumps(package(rows), indent=1, ensure_ascii=False)
    (folder / "datapackage.json").write_text(description + "\n", encoding="utf-8")
    again = list(runs_of(pd.read_parquet(path)))
    made = ledger.write(ledger.ledger(again), folder / "ledger.csv")
    if made.read_text("utf-8") != ledger.LEDGER.read_text("utf-8"):
        print(f"error: {made} differs from {ledger.LEDGER}", file=sys.stderr)
        return 1
    size = path.stat().st_size / 1e6
    print(f"{records.display_path(path)}: {len(again)} runs, {len(rows)} rows, {size:.1f} MB")
    print("the ledger made from it is data/ledger.csv")
    return 0


if __name__ == "__main__":
    sys.exit(main())

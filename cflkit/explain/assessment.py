"""Scores of the explanations of cluster models: Algorithm 2 of the extended OCFL paper (section 5).

`explain` computes the maps and their scores. `Federation.network` builds the networks.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from cflkit._bounds import STRICT, Count, Natural, checked_seed
from cflkit.explain import CHUNK, area, brightness_maps, centre_maps, curves, gradcam, random_maps
from cflkit.federation import Federation
from cflkit.methods.base import Method
from cflkit.models.rows import digests
from cflkit.partition import Partition
from cflkit.simulation.evaluation import History

if TYPE_CHECKING:
    import pandas as pd

SOURCES = ("in-cluster", "out-of-cluster", "orchestrator")
# GradCAM, and the baselines to compare it with: GradCAM on a network that was never trained, and
# maps that do not depend on the model (noise, a blob in the middle, the image's own brightness)
MAPS = ("GradCAM", "untrained", "noise", "centre", "brightness")
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def samples_from(
    source: str,
    partition: Partition,
    labels: ArrayLike,
    cluster: int,
    central: int,
    size: int,
    seed: int,
) -> NDArray[np.int64]:
    """Draw the samples on which a cluster's model is explained (Algorithm 2, lines 3, 4, 8 to 14).

    Parameters
    ----------
    source : {"in-cluster", "out-of-cluster", "orchestrator"}
        The test sets of the cluster's clients, those of all other clients, or the central test set.
    partition, labels, cluster
        The samples that each client holds, the cluster of each client (``[m]``), and the cluster to
        explain.
    central : int
        The number of samples in the central test set.
    size, seed : int
        The number of samples to draw without replacement, all if there are fewer; and the seed.

    Returns
    -------
    ndarray
        Indices into the pool, or for ``orchestrator`` into the central test set. Empty if the
        source has no sample.

    Raises
    ------
    ValueError
        The source or the cluster is unknown, or there is not one label per client.
    """
    members = np.asarray(labels) == cluster
    if members.shape != (partition.clients,):
        raise ValueError(f"{members.size} labels do not fit {partition.clients} clients")
    if not members.any():
        raise ValueError(f"no client is in cluster {cluster}")
    if source == "orchestrator":
        pool = np.arange(central)
    elif source in SOURCES:
        chosen = np.flatnonzero(members if source == "in-cluster" else ~members)
        # Clients may share samples, and no sample may be drawn twice
        pool = np.unique(np.hstack([np.empty(0, np.int64), *(partition.test[c] for c in chosen)]))
    else:
        raise ValueError(f"unknown source {source!r}; choose from {', '.join(SOURCES)}")
    return np.sort(np.random.default_rng(checked_seed(seed)).permutation(pool)[:size])


@dataclass(frozen=True, config=STRICT)
class Assessment:
    """The options of `assess`.

    Attributes
    ----------
    layer : str
        The layer of GradCAM, as in `gradcam`.
    sample_size : int
        The number of images per source on which a cluster's model is explained. It is ζ, which is a
        share of the images in Algorithm 2 and a number in the paper's text.
    step, baseline
        The options of the same names in `curves`.
    explained : {"predicted", "true"}
        The class whose map and probability are computed: the one that the model predicts, or the
        true one.
    seed : int
        The seed of drawing samples, of noise, and of the order of equally salient pixels.
    """

    layer: str
    sample_size: Count = 350
    step: Count = 20
    baseline: str = "zeros"
    explained: Literal["predicted", "true"] = "predicted"
    seed: Natural = 0


def of_explanations(rows: "pd.DataFrame") -> dict[str, float]:
    """Summarise the scores of GradCAM's maps by means over a method's clusters."""
    explained = rows[rows["map"] == "GradCAM"]
    result: dict[str, float] = {"n_clusters": int(explained["cluster"].nunique())}
    for source, samples in explained.groupby("source", sort=False):
        for name in ("insertion", "deletion", "accuracy", "confidence"):
            if name in samples:  # not if no source has samples
                result[f"{name}_{source}"] = float(samples[name].mean())
    return result


def assess(
    methods: Mapping[str, Method], federation: Federation, trained: History, how: Assessment
) -> History:
    """Explain every cluster's model of every method (Algorithm 2 of the extended OCFL paper).

    Computations are in float32, or in TF32 where the federation trains in TF32.

    Parameters
    ----------
    methods, federation, trained
        The methods after their run, the federation on which they ran, and the history of that run.
        Methods that share a model and its clients share its explanations.
    how : Assessment
        The options.

    Returns
    -------
    History
        One row per method, cluster, source of samples and kind of map. The scores of a row are NaN
        where there was no sample. A method that has diverged keeps the row that says so. The
        columns are:

        - ``method``, ``round`` (after which the models were explained) and ``cluster``;
        - ``clients``: the members of the cluster, joined by ``|``;
        - ``source``, one of `SOURCES`, and ``map``, one of `MAPS` (only GradCAM for samples that
          are not in-cluster);
        - ``samples``, and ``empty``: the share of maps that are zero everywhere;
        - ``accuracy``, and ``confidence``: the mean probability of the explained class for the
          whole image;
        - ``insertion`` and ``deletion``: the areas under the curves as means over images, with
          ``…_std`` and the quantiles ``…_p05`` to ``…_p95``.

    Raises
    ------
    ValueError
        A method has no clusters of clients.
    """
    if without := [name for name, method in methods.items() if method.labels is None]:
        raise ValueError(f"methods without clusters cannot be explained: {', '.join(without)}")
    begin = perf_counter()
    known: dict[tuple, list[dict[str, Any]]] = {}
    rows: list[dict[str, Any]] = []
    for name, method in methods.items():
        if left := [r for r in trained.rows if r["method"] == name and r.get("diverged")]:
            rows += left
            continue
        last = max(int(row["round"]) for row in trained.rows if row["method"] == name)
        models, mixture = method.client_models()
        labels = method.labels.numpy()
        keys = digests(models)
        for cluster in np.unique(labels).tolist():
            members = np.flatnonzero(labels == cluster)
            model = int(mixture[members[0]].argmax())
            key = keys[model], *members.tolist()
            if key not in known:
                known[key] = explain_cluster(federation, models[model], labels, cluster, how)
            common = {"method": name, "round": last, "cluster": cluster}
            clients = "|".join(map(str, members))
            rows += [{**common, "clients": clients, **row} for row in known[key]]
    minutes = trained.minutes + (perf_counter() - begin) / 60
    return dataclasses.replace(trained, rows=rows, minutes=minutes, summarise=of_explanations)


def explain_cluster(
    federation: Federation, model: Tensor, labels: ArrayLike, cluster: int, how: Assessment
) -> list[dict[str, Any]]:
    """Compute a cluster's rows of `assess`, with the columns from ``source`` on."""
    network = federation.network(model)
    untrained = federation.network(federation.blueprint.initials(1, 0)[0])
    central = len(federation.targets(0, "central"))
    rows = []
    for source in SOURCES:
        drawn = samples_from(
            source, federation.partition, labels, cluster, central, how.sample_size, how.seed
        )
        images, truth = federation.inputs(drawn, central=source == "orchestrator")
        kinds = MAPS if source == "in-cluster" else MAPS[:1]
        with federation.precise():
            scored = explain_images(network, untrained, images, truth, kinds, how)
        rows += [{"source": source} | row for row in scored]
    return rows


def explain_images(
    network: nn.Module,
    untrained: nn.Module,
    images: Tensor,
    truth: Tensor,
    kinds: Sequence[str],
    how: Assessment,
) -> list[dict[str, Any]]:
    """Compute a row of `assess` for each kind of map, with the columns from ``map`` on."""
    if not len(images):
        return [{"map": kind, "samples": 0} for kind in kinds]
    with torch.inference_mode():
        answers = torch.cat([network(part).softmax(dim=1) for part in images.split(CHUNK)])
    predicted = answers.argmax(dim=1)
    classes = predicted if how.explained == "predicted" else truth
    makers = {
        "GradCAM": lambda: gradcam(network, images, classes, how.layer),
        "untrained": lambda: gradcam(untrained, images, classes, how.layer),
        "noise": lambda: random_maps(images, how.seed),
        "centre": lambda: centre_maps(images),
        "brightness": lambda: brightness_maps(images),
    }
    options: dict[str, Any] = {"step": how.step, "baseline": how.baseline, "seed": how.seed}
    rows = []
    for kind in kinds:
        maps = makers[kind]()
        of_map = curves(network, images, maps, classes, **options)
        rows.append(
            {
                "map": kind,
                "samples": len(images),
                "empty": float((maps.amax(dim=(1, 2)) == 0).float().mean()),
                "accuracy": float((predicted == truth).float().mean()),
                "confidence": float(answers.gather(1, classes[:, None]).mean()),
                **described("insertion", area(of_map.insertion)),
                **described("deletion", area(of_map.deletion)),
            }
        )
    return rows


def described(name: str, areas: Tensor) -> dict[str, float]:
    """Compute the mean, standard deviation and quantiles of areas ``[n]``, one per image."""
    values = areas.double().numpy()
    quantiles = {f"{name}_p{100 * q:02.0f}": float(np.quantile(values, q)) for q in QUANTILES}
    return {name: float(areas.mean()), f"{name}_std": float(values.std())} | quantiles

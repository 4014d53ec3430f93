"""Macro-F1 and accuracy of clients' models, or of mixtures of models, on samples of the clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cflkit import metrics
from cflkit.federation.jobs import Jobs

if TYPE_CHECKING:
    from cflkit.federation.federation import Federation

# The models that a client predicts with, as pairs of a digest and the model's weight
Mixture = tuple[tuple[bytes, float], ...]
Pair = tuple[Mixture, int]
Scores = dict[Pair, tuple[float, float]]


def scores(
    federation: Federation, models: Mapping[bytes, Tensor], pairs: Sequence[Pair], split: str
) -> Scores:
    """Compute macro-F1 and accuracy of mixtures of models on clients' samples of a split.

    Each distinct model predicts only once for each client.
    """
    alone = list(dict.fromkeys((key, client) for own, client in pairs for key, _ in own))
    if not alone:
        return {}
    number = {key: place for place, key in enumerate(models)}
    jobs = Jobs(
        torch.stack(list(models.values())),
        torch.tensor([number[key] for key, _ in alone]),
        torch.tensor([client for _, client in alone]),
    )
    predicted = dict(zip(alone, federation.predict(jobs, split), strict=True))

    def probabilities(mixture: Mixture, client: int) -> Tensor:
        if len(mixture) == 1:
            return predicted[mixture[0][0], client]
        return torch.stack([share * predicted[key, client] for key, share in mixture]).sum(dim=0)

    return {
        (own, client): metrics.scores(federation.targets(client, split), probabilities(own, client))
        for own, client in pairs
    }

"""Thresholds for `Sattler`, from norms of mean updates or of centralised training."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cflkit.federation import Federation, Jobs


def recommended_thresholds(mean_norms: Sequence[float]) -> tuple[float, float]:
    """Compute thresholds by the paper's rule from the norms of the mean updates of all rounds.

    By this rule, ε₁ is a tenth of the largest norm, and ε₂ is at most 10 ε₁.

    Returns
    -------
    tuple of float
        ε₁, and the upper end of the interval [ε₁, 10 ε₁] for ε₂.

    Raises
    ------
    ValueError
        There are no norms.
    """
    if not len(mean_norms):
        raise ValueError("the rule needs the norm of at least one round")
    largest = max(mean_norms)
    return largest / 10, largest


def central_norms(federation: Federation, rounds: int) -> list[float]:
    """Compute ‖θᵗ⁺¹ − θᵗ‖ of centralised training, from which the OCFL authors derive ε₁ and ε₂.

    Parameters
    ----------
    federation : Federation
        A federation of one client, which holds all the data: ``partition.iid(…, clients=1)``.
    rounds : int
        The number of rounds, each of the federation's local epochs.

    Returns
    -------
    list of float
        The norms, one per round, for `recommended_thresholds`.

    Raises
    ------
    ValueError
        ``rounds`` is below 1, or there is more than one client.

    References
    ----------
    Zuziak et al., extended OCFL paper, appendix A.2 and Figure 9.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, not {rounds}")
    if federation.clients != 1:
        raise ValueError(f"centralised training has one client, not {federation.clients}")
    theta, norms = federation.initial()[None], []
    client = torch.zeros(1, dtype=torch.int64)
    for round in range(rounds):
        trained = federation.train(Jobs(theta, client, client), round)
        norms.append(float((trained - theta)[:, : federation.parameters].norm()))
        theta = trained
    return norms

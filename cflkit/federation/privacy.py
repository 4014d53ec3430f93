"""Differential privacy of a client's data: its update is clipped, and noise is added to it.

Each client does this itself, before anything leaves it, so nobody else has to be trusted. What the
server sees of a client, and all that it computes from it, then hardly depends on whether the client
has these data or any others of the same size (Dwork and Roth 2014, Definition 2.4 and Proposition
2.1). The numbers of samples are not protected: the server knows them.

This is a simulation: whoever knows the seed can compute the noise, and subtract it. A real
federation needs a secure source of random numbers, and a defence against attacks on floating-point
numbers (Mironov 2012).
"""

import hashlib
import math
from collections.abc import Hashable, Sequence
from typing import ClassVar, Protocol

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit._bounds import STRICT, Natural, NonNegative, Positive
from cflkit.federation.requests import Jobs, LocalTraining
from cflkit.federation.seeds import PRIVACY, integer
from cflkit.models.rows import as_doubles


class Hook(Protocol):
    """What happens to trained models at their clients, before anybody sees them.

    Attributes
    ----------
    models_only : bool
        Whether clients answer no other requests, since these would tell what the hook hides.
    """

    models_only: ClassVar[bool]

    def __call__(self, trained: Tensor, jobs: Jobs, round: int, reported: bool) -> None:
        """Change the trained parameters ``[J, P]`` in place."""


@dataclass(frozen=True, config=STRICT)
class Privacy:
    """Clipping and noise (the Gaussian mechanism), for `Federation.with_hooks`.

    Attributes
    ----------
    clip : float
        The largest norm C that an update has; a longer one is shortened to it.
    noise : float
        The standard deviation of the noise in each parameter, divided by C.
    seed : int
        The seed of the noise.
    """

    # The noise protects nothing but models, so clients answer no other requests
    models_only: ClassVar[bool] = True

    clip: Positive
    noise: NonNegative
    seed: Natural = 0

    def __call__(self, trained: Tensor, jobs: Jobs, round: int, reported: bool) -> None:
        """Clip the update of each job, and add noise to it, in place, if it leaves its client.

        The noise depends on the seed, the client, the round and all that the client was asked to
        train: the model that it has received, a part of its samples, weights, and another local
        training. So two methods that ask a client for the same training see the same result. Two
        different trainings get independent noise: otherwise, it would cancel in their difference.
        """
        if not reported:
            return
        rows = zip(trained, jobs.client_of.tolist(), jobs.model_of.tolist(), strict=True)
        for (row, client, model), job in zip(rows, jobs.keys(), strict=True):
            received = jobs.models[model]
            update = row - received
            shorter = min(1.0, self.clip / max(float(as_doubles(update).norm()), 1e-300))
            generator = torch.Generator().manual_seed(
                integer(self.seed, PRIVACY, client, round, *asked(job, jobs.training))
            )
            noise = torch.randn(len(row), generator=generator).to(row)
            row.copy_(received + shorter * update + self.clip * self.noise * noise)


def asked(job: Sequence[Hashable], training: LocalTraining | None) -> list[int]:
    """Return numbers for what a client was asked to train: the model, and what else is not usual.

    ``job`` is one of `Jobs.keys`, and ``training`` the local training of the jobs.
    """
    model, _, *columns = job
    assert isinstance(model, bytes)
    numbers = [int.from_bytes(model[:8], "little")]
    if columns or training is not None:
        digest = hashlib.blake2b(repr((columns, training)).encode(), digest_size=8).digest()
        numbers.append(int.from_bytes(digest, "little"))
    return numbers


def epsilon(noise: float, trainings: int, delta: float = 1e-5) -> float:
    r"""Compute the ε of (ε, δ)-differential privacy for all data of a client.

    .. math:: \delta = \Phi\Big(\frac{s}{2} - \frac{\varepsilon}{s}\Big)
              - e^\varepsilon \, \Phi\Big(-\frac{s}{2} - \frac{\varepsilon}{s}\Big), \quad
              s = \frac{2 \sqrt{T}}{\sigma}

    Two clipped updates differ by at most 2 C, and T trainings are as one with :math:`\sqrt{T}`
    times the signal. The formula is exact (Balle and Wang 2018, Theorem 8). It also holds if the
    requests of a round depend on earlier answers (Dong, Roth and Su 2022, Corollary 3.3).

    Parameters
    ----------
    noise : float
        The standard deviation σ of the noise, divided by C (`Privacy.noise`).
    trainings : int
        How often the client trains, T.
    delta : float
        The δ, in (0, 1).

    Returns
    -------
    float
        The smallest ε; infinity without noise, and 0 without trainings.

    Raises
    ------
    ValueError
        An argument is out of bounds.
    """
    from scipy.optimize import brentq  # SciPy takes half a second to load
    from scipy.special import log_ndtr, ndtr

    if not noise >= 0 or trainings < 0 or not 0 < delta < 1:
        raise ValueError(
            f"needs noise ≥ 0, trainings ≥ 0 and delta in (0, 1), not {noise}, {trainings}, {delta}"
        )
    if trainings == 0:
        return 0.0
    if noise == 0:
        return math.inf
    signal = 2 * math.sqrt(trainings) / noise

    def excess(value: float) -> float:
        # The second term in logarithms, since the exponential overflows for large ε
        with np.errstate(over="ignore"):  # infinity is the right answer then
            second = np.exp(value + log_ndtr(-signal / 2 - value / signal))
        return float(ndtr(signal / 2 - value / signal) - second - delta)

    if excess(0.0) <= 0:
        return 0.0
    # By a tail bound, this ε is large enough
    upper = signal**2 / 2 + signal * math.sqrt(2 * math.log(1 / delta)) + 1
    return float(brentq(excess, 0.0, upper, xtol=1e-10))

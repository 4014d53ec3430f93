"""The interface of a federation: what methods, lockstep and the measurements need of it.

Two classes have it. `cflkit.federation.Federation` simulates the clients, and
`cflkit.flower.remote.RemoteFederation` talks to clients that are elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from cflkit.federation.blueprint import Blueprint
from cflkit.federation.jobs import Hook, Jobs, LocalTraining
from cflkit.federation.privacy import Privacy
from cflkit.federation.scoring import Pair, Scores

if TYPE_CHECKING:
    from cflkit.federation.server import Server


class FederationLike(Protocol):
    """Clients that train and evaluate models, wherever they are.

    The attributes and methods are described in `cflkit.federation.Federation`.
    """

    # --- Facts ------------------------------------------------------------------------------------

    clients: int
    sizes: Tensor
    clusters: Tensor | None
    task: str
    training: LocalTraining
    seed: int
    device: torch.device
    engine: str
    precision: str
    after_training: tuple[Hook, ...]
    privacy: Privacy | None
    blueprint: Blueprint
    parameters: int
    layout: dict[str, slice]
    initial: Callable[[], Tensor]
    initials: Callable[..., Tensor]
    server: Server

    @property
    def identity(self) -> str:
        """Return the identity of the clients' data, for checkpoints."""

    # --- Who is there -----------------------------------------------------------------------------

    @property
    def per_round(self) -> int:
        """Return how many clients take part in a round."""

    @property
    def partial(self) -> bool:
        """Return whether a round can leave out clients."""

    @property
    def absent_allowed(self) -> bool:
        """Return whether a round begins again without the clients that do not answer."""

    @property
    def faults(self) -> Mapping[int, str]:
        """Return why absent clients are absent, where this is known."""

    def reachable(self, round: int) -> Tensor:
        """Return the clients that answer in a round, ascending."""

    def participants(self, round: int) -> Tensor:
        """Return the clients that take part in a round, ascending."""

    def drawn(self, clients: Tensor, count: int, *key: int) -> Tensor:
        """Draw some of the clients, in ascending order; the same for the same seed and key."""

    def num_samples(self, client: int, split: str = "train") -> int:
        """Return how many samples a client has in a split; 0 if there is no such split."""

    # --- The primitives ---------------------------------------------------------------------------

    def train(self, jobs: Jobs, round: int, reported: bool = True) -> Tensor:
        """Train each job's model on its client's training samples; ``[J, P + Q]``."""

    def losses(self, jobs: Jobs, split: str = "train") -> list[Tensor]:
        """Return the loss of each job's model on each sample of its client; J tensors ``[n]``."""

    def ask(self, question: Callable[..., Any], jobs: Jobs, **options: Hashable) -> list[Any]:
        """Let each job's client answer a question; J answers."""

    def scores(self, models: Mapping[bytes, Tensor], pairs: Sequence[Pair], split: str) -> Scores:
        """Return macro-F1 and accuracy of mixtures of models, by mixture and client."""

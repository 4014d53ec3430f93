"""PACFL: cluster before any training, by principal angles between the clients' data.

S. Vahidian, M. Morafah, W. Wang, V. Kungurtsev, C. Chen, M. Shah, B. Lin: Efficient distribution
similarity identification in clustered federated learning via principal angles between client data
subspaces. AAAI 2023, Algorithm 1.
"""

from typing import ClassVar, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from cflkit import clustering
from cflkit._bounds import STRICT, Angle, Count
from cflkit.divergence import Matrix, class_directions, principal_angles
from cflkit.federation import NOBODY, Ask, Client, Conversation, Request, without_models
from cflkit.methods.base import Method, Weighting


@dataclass(config=STRICT)
class PACFL(Method):
    """One clustering of the main directions of the clients' pixels, and FedAvg per cluster.

    Parameters
    ----------
    angle : float
        The threshold β in degrees. Two clusters at this distance or more are not merged.
    p : int
        The number of singular vectors per class that a client sends.
    split : {"train", "validation"}
        The split of a client's data whose directions are compared. PACFL's authors use the
        training data, and the code of EMD-CFL's comparison the validation data.
    standardised : bool
        Whether the pixels are standardised first, as those of EMD-CFL's comparison are. The
        constants are those that the network begins with, if it does. They move all images by one
        vector, so that angles and a good threshold change.
    measure : {"columns", "subspaces", "trace"}
        What is compared with the threshold (`principal_angles`). ``columns`` is the authors' code,
        and the two others are the paper's equations 2 and 3.
    linkage : {"weighted", "average", "complete", "single"}
        The linkage of the hierarchical clustering. The authors' "average" is the mean of the rows
        of the two clusters that merge, whatever their sizes; its usual name is ``weighted``.
    signed : bool
        Whether to take the angles between singular vectors with their signs, as in the authors'
        code. These signs are arbitrary, so the angles between lines are the default.
    weighting : {"samples", "equal"}
        The weights of clients, as in `FedAvg`.
    """

    partial: ClassVar[bool] = True
    settled = True  # the clusters are known before the first training

    angle: Angle = 12.0
    p: Count = 3
    split: Literal["train", "validation"] = "train"
    standardised: bool = False
    linkage: Literal["weighted", "average", "complete", "single"] = "weighted"
    signed: bool = False
    measure: Literal["columns", "subspaces", "trace"] = "columns"
    weighting: Weighting = "samples"

    def samples_needed(self) -> dict[str, int]:
        """Return that each client needs a sample in the split that is compared."""
        return {self.split: 1}

    def asks(self) -> list[Request]:
        """Return the question for each client's directions."""
        options = {"p": self.p, "split": self.split, "standardised": self.standardised}
        return [Ask(NOBODY, question=directions, options=options)]

    def round(self, t: int) -> Conversation[None]:
        """Run a round of FedAvg within each cluster; the first round begins with the clustering."""
        self.scalars = {}
        if t == 0:
            yield from self.cluster()
        yield from super().round(t)

    def cluster(self) -> Conversation[None]:
        """Ask for the clients' directions, and cluster the clients by the angles between them.

        All clusters begin with the same model.
        """
        self.needs_everyone(t=0)
        everyone = torch.arange(self.server.clients)
        [question] = self.asks()
        bases = yield question.only(without_models(everyone))
        angles = principal_angles(bases, self.signed, self.measure)
        cut = clustering.make("agglomerative", threshold=self.angle, linkage=self.linkage)
        self.divide(cut.fit_predict(angles))
        self.scalars["distances"] = "|".join(f"{angle:.4g}" for angle in angles.flat)


def directions(client: Client, model: Tensor, p: int, split: str, standardised: bool) -> Matrix:
    """Compute what a client sends: the main directions ``[d, p · classes]`` of its pixels."""
    images, labels = client.samples(split)
    if standardised:
        images = getattr(client.network.network, "standardise", nn.Identity())(images)
    return class_directions(images.flatten(1).cpu(), labels.cpu(), p)

"""FedAvg, one model for everyone.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: Communication-efficient learning
of deep networks from decentralized data. AISTATS 2017.
"""

from typing import ClassVar

from pydantic.dataclasses import dataclass

from cflkit._bounds import STRICT
from cflkit.methods.base import Method, Weighting


@dataclass(config=STRICT)
class FedAvg(Method):
    """Federated averaging (BNC, "baseline no clustering", of the OCFL papers).

    All clients are one cluster, and a round of `Method` is this algorithm: `Method.broadcast` sends
    the model to the participants, and `Method.aggregate` adds the mean of their updates to it.

    Parameters
    ----------
    weighting : {"samples", "equal"}
        The weights of clients: their numbers of training samples (McMahan et al.), or equal weights
        (the OCFL authors).
    """

    partial: ClassVar[bool] = True
    settled = True  # the labels are those of the first round

    weighting: Weighting = "samples"

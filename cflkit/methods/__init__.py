"""The algorithms, one file each, named as in the literature."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from cflkit._bounds import one_line
from cflkit.methods.base import Method
from cflkit.methods.baselines.briggs import Briggs
from cflkit.methods.baselines.cfl_gp import CFLGP
from cflkit.methods.baselines.ditto import Ditto
from cflkit.methods.baselines.fedce import FedCE
from cflkit.methods.baselines.fedclust import FedClust
from cflkit.methods.baselines.fedem import FedEM
from cflkit.methods.baselines.fedprox import FedProx
from cflkit.methods.baselines.fedrc import FedRC
from cflkit.methods.baselines.fedsac import FedSaC
from cflkit.methods.baselines.fedsoft import FedSoft
from cflkit.methods.baselines.fesem import FeSEM
from cflkit.methods.baselines.flexcfl import FlexCFL
from cflkit.methods.baselines.ifca import IFCA
from cflkit.methods.baselines.pacfl import PACFL
from cflkit.methods.baselines.pfedgraph import PFedGraph
from cflkit.methods.baselines.sattler import Sattler
from cflkit.methods.baselines.scaffold import Scaffold
from cflkit.methods.baselines.signatures import Signatures
from cflkit.methods.emd_cfl import EMDCFL, EMDOracle
from cflkit.methods.fedavg import FedAvg
from cflkit.methods.fedcref import FedCRef
from cflkit.methods.local import Local
from cflkit.methods.ocfl import OCFL
from cflkit.methods.oracle import Oracle

METHODS: dict[str, type[Method]] = {
    "briggs": Briggs,
    "cfl-gp": CFLGP,
    "ditto": Ditto,
    "emd-cfl": EMDCFL,
    "emd-cfl-oracle": EMDOracle,
    "fedavg": FedAvg,
    "fedce": FedCE,
    "fedclust": FedClust,
    "fedcref": FedCRef,
    "fedem": FedEM,
    "fedprox": FedProx,
    "fedrc": FedRC,
    "fedsac": FedSaC,
    "fedsoft": FedSoft,
    "fesem": FeSEM,
    "flexcfl": FlexCFL,
    "ifca": IFCA,
    "local": Local,
    "ocfl": OCFL,
    "oracle": Oracle,
    "pacfl": PACFL,
    "pfedgraph": PFedGraph,
    "sattler": Sattler,
    "scaffold": Scaffold,
    "signatures": Signatures,
}


def make(name: str, **options: Any) -> Method:
    """Build a method by name, with the options of its class.

    Raises
    ------
    ValueError
        The name is unknown, or the method does not have an option or does not accept its value.
    """
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}; choose from {', '.join(METHODS)}")
    try:
        return METHODS[name](**options)
    except ValidationError as error:
        raise ValueError(f"method {name!r}: {one_line(error)}") from error


__all__ = [
    "CFLGP",
    "EMDCFL",
    "IFCA",
    "METHODS",
    "OCFL",
    "PACFL",
    "Briggs",
    "Ditto",
    "EMDOracle",
    "FeSEM",
    "FedAvg",
    "FedCE",
    "FedCRef",
    "FedClust",
    "FedEM",
    "FedProx",
    "FedRC",
    "FedSaC",
    "FedSoft",
    "FlexCFL",
    "Local",
    "Method",
    "Oracle",
    "PFedGraph",
    "Sattler",
    "Scaffold",
    "Signatures",
    "make",
]

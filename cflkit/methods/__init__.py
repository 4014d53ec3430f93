"""The algorithms, one file each, named as in the literature."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from cflkit.bounds import one_line
from cflkit.methods.base import Method
from cflkit.methods.briggs import Briggs
from cflkit.methods.cfl_gp import CFLGP
from cflkit.methods.ditto import Ditto
from cflkit.methods.emd_cfl import EMDCFL, EMDOracle
from cflkit.methods.fedavg import FedAvg
from cflkit.methods.fedce import FedCE
from cflkit.methods.fedclust import FedClust
from cflkit.methods.fedcref import FedCRef
from cflkit.methods.fedem import FedEM
from cflkit.methods.fedprox import FedProx
from cflkit.methods.fedrc import FedRC
from cflkit.methods.fedsac import FedSaC
from cflkit.methods.fedsoft import FedSoft
from cflkit.methods.fesem import FeSEM
from cflkit.methods.flexcfl import FlexCFL
from cflkit.methods.ifca import IFCA
from cflkit.methods.local import Local
from cflkit.methods.ocfl import OCFL
from cflkit.methods.oracle import Oracle
from cflkit.methods.pacfl import PACFL
from cflkit.methods.pfedgraph import PFedGraph
from cflkit.methods.sattler import Sattler
from cflkit.methods.scaffold import Scaffold
from cflkit.methods.signatures import Signatures

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

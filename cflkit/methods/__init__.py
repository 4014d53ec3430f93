"""The algorithms, one file each, named as in the literature.

The papers' own methods are here, each as its pseudocode, with extensions in files beside them.
`baselines` has the methods to compare them with.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from cflkit import _bounds
from cflkit.methods.base import Method

# The module and the class of each method, by its name
WHERE = {
    "briggs": ("baselines.briggs", "Briggs"),
    "cfl-gp": ("baselines.cfl_gp", "CFLGP"),
    "clove": ("baselines.clove", "CLoVE"),
    "ditto": ("baselines.ditto", "Ditto"),
    "emd-cfl": ("emd_cfl", "EMDCFL"),
    "emd-cfl-oracle": ("emd_cfl_variants", "EMDOracle"),
    "emd-cfl-variant": ("emd_cfl_variants", "EMDCFLVariant"),
    "fedavg": ("fedavg", "FedAvg"),
    "fedavg-ft": ("baselines.fedavg_ft", "FedAvgFT"),
    "fedce": ("baselines.fedce", "FedCE"),
    "fedclust": ("baselines.fedclust", "FedClust"),
    "fedcref": ("fedcref", "FedCRef"),
    "fedcref-variant": ("fedcref_variants", "FedCRefVariant"),
    "feddrift": ("baselines.feddrift", "FedDrift"),
    "fedem": ("baselines.fedem", "FedEM"),
    "fedopt": ("baselines.fedopt", "FedOpt"),
    "fedprox": ("baselines.fedprox", "FedProx"),
    "fedrc": ("baselines.fedrc", "FedRC"),
    "fedrep": ("baselines.fedrep", "FedRep"),
    "fedsac": ("baselines.fedsac", "FedSaC"),
    "fedsoft": ("baselines.fedsoft", "FedSoft"),
    "fesem": ("baselines.fesem", "FeSEM"),
    "flexcfl": ("baselines.flexcfl", "FlexCFL"),
    "flux": ("baselines.flux", "FLUX"),
    "ifca": ("baselines.ifca", "IFCA"),
    "local": ("baselines.local", "Local"),
    "ocfl": ("ocfl", "OCFL"),
    "ocfl-open": ("ocfl_open", "OpenOCFL"),
    "ocfl-replicated": ("ocfl_replicated", "ReplicatedOCFL"),
    "oracle": ("baselines.oracle", "Oracle"),
    "pacfl": ("baselines.pacfl", "PACFL"),
    "pfedgraph": ("baselines.pfedgraph", "PFedGraph"),
    "sattler": ("baselines.sattler", "Sattler"),
    "scaffold": ("baselines.scaffold", "Scaffold"),
    "signatures": ("baselines.signatures", "Signatures"),
    "stocfl": ("baselines.stocfl", "StoCFL"),
}


class Classes(Mapping[str, type[Method]]):
    """The class of each method by its name; its module is loaded when it is asked for."""

    def __getitem__(self, name: str) -> type[Method]:
        module, title = WHERE[name]
        method_class: type[Method] = getattr(import_module(f"cflkit.methods.{module}"), title)
        return method_class

    def __iter__(self) -> Iterator[str]:
        return iter(WHERE)

    def __len__(self) -> int:
        return len(WHERE)


METHODS = Classes()


def make(name: str, **options: Any) -> Method:
    """Build a method by name, with the options of its class.

    Raises
    ------
    ValueError
        The name is unknown, or the method does not have an option or does not accept its value.
    """
    return _bounds.make("method", METHODS, name, **options)


__all__ = ["METHODS", "Method", "make"]

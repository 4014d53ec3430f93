"""Clients, their data, and the engines that train their models.

`Federation` has the primitives. `Jobs` say which client computes with which model. A method sends
requests to clients.
"""

from cflkit.federation.absence import ClientsAbsent
from cflkit.federation.clients import Client
from cflkit.federation.federation import Federation
from cflkit.federation.interface import FederationLike
from cflkit.federation.jobs import Diverged, Jobs, LocalTraining, check_finite
from cflkit.federation.machine import default_device, usable_cores
from cflkit.federation.privacy import Privacy
from cflkit.federation.requests import (
    Ask,
    Losses,
    Request,
    Send,
    Train,
    ask_clients,
    question,
)
from cflkit.federation.server import Server

__all__ = [
    "Ask",
    "Client",
    "ClientsAbsent",
    "Diverged",
    "Federation",
    "FederationLike",
    "Jobs",
    "LocalTraining",
    "Losses",
    "Privacy",
    "Request",
    "Send",
    "Server",
    "Train",
    "ask_clients",
    "check_finite",
    "default_device",
    "question",
    "usable_cores",
]

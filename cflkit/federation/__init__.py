"""Clients, their data, and the engines that train their models.

`Federation` has the primitives. `Jobs` say which client computes with which model. A method sends
requests to clients.
"""

from cflkit.federation.blueprint import Server
from cflkit.federation.clients import Client, f1_and_accuracy
from cflkit.federation.federation import Federation
from cflkit.federation.machine import usable_cores
from cflkit.federation.privacy import Privacy
from cflkit.federation.requests import (
    NOBODY,
    Ask,
    ClientsAbsent,
    Conversation,
    Diverged,
    Jobs,
    LocalTraining,
    Losses,
    Request,
    Send,
    Train,
    check_finite,
    without_models,
)

__all__ = [
    "NOBODY",
    "Ask",
    "Client",
    "ClientsAbsent",
    "Conversation",
    "Diverged",
    "Federation",
    "Jobs",
    "LocalTraining",
    "Losses",
    "Privacy",
    "Request",
    "Send",
    "Server",
    "Train",
    "check_finite",
    "f1_and_accuracy",
    "usable_cores",
    "without_models",
]

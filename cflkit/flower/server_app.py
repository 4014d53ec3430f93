"""The Flower ``ServerApp``: it runs methods in lockstep on the clients that are connected.

Its settings are the values of ``[tool.flwr.app.config]`` in the app's ``pyproject.toml``:

- ``output``: a folder for the results and the checkpoint. A run that ended early goes on from
  there when it is started again with the same settings.
- ``clients``: the number of clients; the run waits until all have connected.
- ``clients-per-round``: how many of them take part in a round; 0 for all.
- ``rounds``: the number of rounds.
- ``methods``: YAML; for each row of the results, the name of a method and its options, such as
  ``{IFCA: {method: ifca, k: 4}}``.
- ``model``, ``shape``, ``classes``, ``seed``: see `cflkit.flower.setting.Setting`.
- ``epochs``, ``batch-size``, ``optimizer``, ``lr``, ``momentum``: the local training.
- ``wait``: how long to wait for all clients at the start, in seconds.
- ``timeout``: how long to wait for an answer, in seconds.
- ``absent``: ``end`` to end the run when a client does not answer, or ``leave`` to go on without it
  where all methods allow this.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from cflkit import methods, simulation
from cflkit.flower.remote import RemoteFederation, converse_with_present
from cflkit.flower.setting import Setting
from cflkit.methods import Method
from cflkit.reproduce.parameters import ParameterError
from cflkit.reproduce.values import parse_yaml
from cflkit.simulation.lockstep import converse

app = ServerApp()
CLUSTERS_SAMPLES = "its clients cluster their samples, and here they train classifiers"
# The methods that nodes cannot run, and why
ONLY_SIMULATED = {
    "fedrc": "its server would need the labels of the clients' samples",
    "fedcref": CLUSTERS_SAMPLES,
    "fedcref-variant": CLUSTERS_SAMPLES,
}


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the methods, and write the results into the folder ``output``.

    If the run fails, the reason is in ``error.txt``, since Flower does not show it.
    """
    output = Path(str(context.run_config["output"]))
    output.mkdir(parents=True, exist_ok=True)
    reason = output / "error.txt"
    reason.unlink(missing_ok=True)
    try:
        federate(grid, context.run_config, output)
    except Exception as error:
        reason.write_text(f"{type(error).__name__}: {error}\n", encoding="utf-8")
        raise


def federate(grid: Grid, config: Mapping[str, Any], output: Path) -> None:
    """Run the methods with the values of ``config``.

    Raises
    ------
    ValueError
        A setting is wrong; no node has been asked yet.
    ClientsAbsent
        Clients that a round needs do not answer.
    """
    if config["absent"] not in ("end", "leave"):
        raise ValueError(f"absent must be end or leave, not {config['absent']!r}")
    if (rounds := int(config["rounds"])) < 1:
        raise ValueError(f"rounds must be 1 or more, not {rounds}")
    line_up, checkpoint = line_up_of(str(config["methods"])), output / "checkpoint.pt"
    leave = config["absent"] == "leave"
    federation = RemoteFederation(
        grid,
        Setting.of(config),
        per_round=int(config["clients-per-round"]) or None,
        timeout=float(config["timeout"]),
        wait=float(config["wait"]),
        absent_allowed=leave,
    )
    try:
        history = simulation.run(
            line_up,
            federation,
            rounds,
            checkpoint=checkpoint,
            converse=converse_with_present if leave else converse,
        )
    finally:
        pd.DataFrame(federation.nodes.log).to_csv(output / "messages.csv", index=False)
    history.table().to_csv(output / "rounds.csv", index=False)
    (output / "summary.json").write_text(json.dumps(history.summary(), indent=1) + "\n")
    # The models of each method, and the model of each client as weights of these
    parts = "models", "mixture"
    held = {n: dict(zip(parts, own.client_models(), strict=True)) for n, own in line_up.items()}
    torch.save(held, output / "models.pt")
    checkpoint.unlink(missing_ok=True)


def line_up_of(text: str) -> dict[str, Method]:
    """Build the methods of the setting ``methods``; a `ValueError` says which one cannot be."""
    try:
        described = parse_yaml("methods", text)
    except ParameterError:
        described = None
    if not isinstance(described, dict) or not described:
        raise ValueError("methods must be YAML such as {OCFL: {method: ocfl}}")
    found = {}
    for name, own in described.items():
        if not isinstance(own, dict) or not isinstance(own.get("method"), str):
            raise ValueError(f"{name} needs the name of a method, as {{{name}: {{method: ocfl}}}}")
        method = own.pop("method")
        if method in ONLY_SIMULATED:
            raise ValueError(f"{name} does not run over a network: {ONLY_SIMULATED[method]}")
        found[name] = methods.make(method, **own)
    return found

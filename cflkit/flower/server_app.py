"""The Flower ``ServerApp``: it runs methods in lockstep on the clients that are connected.

Its settings are the values of ``[tool.flwr.app.config]`` in the app's ``pyproject.toml``:

- ``output``: a folder for the results and the checkpoint. A run that ended early goes on from
  there when it is started again with the same settings.
- ``clients``: the number of clients; the run waits until all have connected.
- ``nodes``: for each client, in order, the number that ``flwr supernode register`` has printed for
  the key of its node; separated by commas. So no node can say that it is another client.
- ``clients-per-round``: how many of them take part in a round; 0 for all.
- ``rounds``: the number of rounds.
- ``methods``: YAML; for each row of the results, the name of a method and its options, such as
  ``{IFCA: {method: ifca, k: 4}}``.
- ``model``, ``shape``, ``classes``, ``seed``: see `cflkit.flower.agreement.Setting`. The classes
  are a number, or their names, separated by commas.
- ``epochs``, ``batch-size``, ``optimizer``, ``lr``, ``momentum``: the local training.
- ``wait``: how long to wait for all clients at the start, in seconds.
- ``timeout``: how long to wait for an answer, in seconds.
- ``absent``: ``end`` to end the run when a client does not answer, or ``leave`` to go on without it
  where all methods allow this.

Each node has a copy of these settings, to which its owner has agreed (`cflkit.flower.agreement`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import filelock
import pandas as pd
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from cflkit import simulation
from cflkit.flower.agreement import Agreement
from cflkit.flower.remote import RemoteFederation, converse_with_present
from cflkit.simulation.lockstep import converse

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the methods, and write the results into the folder ``output``.

    If the run fails, the reason is in ``error.txt``, since Flower does not show it.
    """
    output = Path(str(context.run_config["output"]))
    output.mkdir(parents=True, exist_ok=True)
    reason = output / "error.txt"
    try:
        with filelock.FileLock(output / ".lock", timeout=0):
            reason.unlink(missing_ok=True)
            federate(grid, context.run_config, output)
    except filelock.Timeout as error:
        raise RuntimeError(f"another run writes into {output}") from error
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
    agreed, checkpoint = Agreement.of(config), output / "checkpoint.pt"
    leave = config["absent"] == "leave"
    federation = RemoteFederation(
        grid,
        agreed.setting,
        per_round=int(config["clients-per-round"]) or None,
        timeout=float(config["timeout"]),
        wait=float(config["wait"]),
        absent_allowed=leave,
        numbers=numbers_of(config),
    )
    try:
        history = simulation.run(
            agreed.methods,
            federation,
            agreed.rounds,
            checkpoint=checkpoint,
            converse=converse_with_present if leave else converse,
        )
    finally:
        pd.DataFrame(federation.nodes.log).to_csv(output / "messages.csv", index=False)
    history.table().to_csv(output / "rounds.csv", index=False)
    (output / "summary.json").write_text(json.dumps(history.summary(), indent=1) + "\n")
    # The models of each method, and the model of each client as weights of these
    parts = "models", "mixture"
    models = {
        name: dict(zip(parts, method.client_models(), strict=True))
        for name, method in agreed.methods.items()
    }
    torch.save(models, output / "models.pt")
    checkpoint.unlink(missing_ok=True)


def numbers_of(config: Mapping[str, Any]) -> list[int]:
    """Return the number of each client's node; a `ValueError` says that they cannot be."""
    given = [part.strip() for part in str(config["nodes"]).split(",")]
    if not all(map(str.isdecimal, given)) or not len({*given}) == len(given) == config["clients"]:
        raise ValueError(
            "nodes must be the numbers that 'flwr supernode register' has printed for the keys of "
            f"the {config['clients']} clients, in their order, not {config['nodes']!r}"
        )
    return [int(number) for number in given]

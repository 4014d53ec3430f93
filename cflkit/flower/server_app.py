"""The Flower ``ServerApp``: it runs methods in lockstep on the clients that are connected."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from logging import INFO
from pathlib import Path
from typing import Any

import filelock
import pandas as pd
import torch
from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from cflkit import simulation
from cflkit.flower.remote import RemoteFederation
from cflkit.flower.settings import Settings

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the methods, and write the results into the folder ``output`` of the settings, if any.

    If the run fails, the reason is in its ``error.txt``, since Flower does not show it.
    """
    run = context.run_config
    output = Path(str(run["output"] or tempfile.mkdtemp())).expanduser()
    output.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(output / ".lock", timeout=0):  # another run may write here
        (output / "error.txt").unlink(missing_ok=True)
        try:
            federate(grid, run, output)
        except Exception as error:
            text = f"{type(error).__name__}: {error}\n"
            (output / "error.txt").write_text(text, encoding="utf-8")
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
    settings, checkpoint = Settings.of(config), output / "checkpoint.pt"
    federation = RemoteFederation(grid, settings)
    try:
        history = simulation.run(
            settings.methods, federation, settings.rounds, checkpoint=checkpoint
        )
    finally:
        pd.DataFrame(federation.log).to_csv(output / "messages.csv", index=False)
    table = history.table()
    table.to_csv(output / "rounds.csv", index=False)
    # The models of each method, and the model of each client as weights of these
    models = {
        name: dict(zip(("models", "mixture"), method.client_models(), strict=True))
        for name, method in settings.methods.items()
    }
    torch.save(models, output / "models.pt")
    checkpoint.unlink(missing_ok=True)
    last = table.groupby("method")["accuracy"].last().round(3)
    log(INFO, "%s after the last round; all results are in %s", last.to_dict(), output)

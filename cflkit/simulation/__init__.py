"""The loop over rounds, for one method or for many methods in lockstep."""

from cflkit.simulation.evaluation import History
from cflkit.simulation.loop import run

__all__ = ["History", "run"]

"""The network that a federation trains: from it, models and networks are built."""

import torch
from torch import Tensor, nn

from cflkit import models
from cflkit.federation.seeds import initialised
from cflkit.models.rows import RowModel


class Blueprint:
    """A network's architecture, and the seed of the models that are built from it.

    Parameters
    ----------
    model : str
        A name that `models.make` knows.
    shape : tuple of int
        ``(channels, height, width)`` of an image.
    classes : int
        The number of classes.
    seed : int
        The seed of initialisation.
    device : torch.device
        The device on which networks compute.

    Attributes
    ----------
    parameters, buffers : int
        The numbers P and Q of trainable parameters and of buffer values in a model's row.
    layout : dict of str to slice
        Where each parameter and buffer of the network lies in a row.
    linear_layers : tuple of str
        The names of the network's linear layers, in the order of the computation.
    model, shape, classes
        The arguments of the same names.

    Raises
    ------
    ValueError
        `models.make` does not know the network, or the network cannot take images of this shape.
    """

    def __init__(
        self, model: str, shape: tuple[int, int, int], classes: int, seed: int, device: torch.device
    ) -> None:
        self.model, self.shape, self.classes = model, shape, classes
        self.seed, self._device = seed, device
        [self.first] = self.networks(1)
        self._initial = self.first.row
        try:  # one black image
            with torch.no_grad():
                self.first.network.eval()(torch.zeros(1, *shape, device=device))
        except (RuntimeError, ValueError) as error:
            raise ValueError(
                f"{model!r} cannot take samples of the shape {shape} ({error}); "
                "for features, take 'perceptron' or 'linear'"
            ) from error
        self.layout = self.first.layout
        layers = self.first.network.named_modules()
        self.linear_layers = tuple(n for n, layer in layers if isinstance(layer, nn.Linear))
        self.parameters = self.first.parameters
        self.buffers = len(self._initial) - self.parameters

    def networks(self, count: int, *key: int) -> list[RowModel]:
        """Return networks to compute with, initialised one by one from the seed and the key."""

        def build() -> list[RowModel]:
            made = [models.make(self.model, self.shape, self.classes) for _ in range(count)]
            return [RowModel(network.to(self._device)) for network in made]

        return initialised(build, self.seed, *key)

    def initial(self) -> Tensor:
        """Return the model ``[P + Q]`` that all clients start from, the same for the same seed."""
        return self._initial.clone()

    def initials(self, count: int, *key: int) -> Tensor:
        """Return models ``[count, P + Q]``, initialised one by one from the seed and the key."""
        rows = [network.row for network in self.networks(count, *key)]
        return torch.stack(rows) if rows else self._initial[None][:0]

    def network(self, model: Tensor) -> nn.Module:
        """Return a network of its own that computes with a model (``[P + Q]``), for evaluation."""
        [own] = self.networks(1)
        own.load(model)
        return own.network.eval()

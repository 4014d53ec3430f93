"""The network that a federation trains, and what a method sees of the federation."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from cflkit import models
from cflkit.federation.requests import LocalTraining
from cflkit.federation.seeds import drawn, initialised
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
    bytes_per_sample : float
        How many bytes the backward pass keeps per sample.
    model, shape, classes, seed, device
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
        self.seed, self.device = seed, device
        [self.first] = self.networks(1)
        self._initial = self.first.row
        try:
            with torch.random.fork_rng(devices=[]):  # dropout of PyTorch draws
                self.bytes_per_sample = (self._kept_of_black(4) - self._kept_of_black(2)) / 2
        except (RuntimeError, ValueError) as error:
            raise ValueError(
                f"{model!r} cannot take samples of the shape {shape} ({error}); "
                "for features, take 'perceptron' or 'linear'"
            ) from error
        self.first.load(self._initial)  # BatchNorm has seen these images
        self.layout = self.first.layout
        layers = self.first.network.named_modules()
        self.linear_layers = tuple(n for n, layer in layers if isinstance(layer, nn.Linear))
        self.parameters = self.first.parameters
        self.buffers = len(self._initial) - self.parameters

    def _kept_of_black(self, samples: int) -> int:
        """Measure how many bytes the backward pass would keep of some black images."""
        kept = 0

        def count(tensor: Tensor) -> Tensor:
            nonlocal kept
            kept += tensor.nbytes
            return tensor

        network = self.first.network.train()
        models.give_keys(network, torch.tensor(0, device=self.device))
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            network(torch.zeros(samples, *self.shape, device=self.device))
        return kept

    def networks(self, count: int, *key: int) -> list[RowModel]:
        """Return networks to compute with, initialised one by one from the seed and the key."""

        def build() -> list[RowModel]:
            made = [models.make(self.model, self.shape, self.classes) for _ in range(count)]
            return [RowModel(network.to(self.device)) for network in made]

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
        [row_model] = self.networks(1)
        row_model.load(model)
        return row_model.network.eval()


class Server:
    """The server's view of a federation.

    It contains no true cluster, no sample and no label. To learn anything about the clients' data,
    a method must ask the clients (`cflkit.federation.requests`).

    Attributes
    ----------
    clients : int
        The number of clients m.
    partial : bool
        Whether a round can leave out clients.
    sizes : Tensor
        ``[m]``, float: the number of training samples of each client.
    parameters : int
        The number of trainable parameters P.
    layout : dict of str to slice
        The position of each parameter and buffer of the network in a model's row.
    linear_layers : tuple of str
        The names of the network's linear layers, in the order of the computation.
    training : LocalTraining
        The training that clients do with a model in a round.
    seed : int
        The seed of the federation.
    initials : callable
        `Blueprint.initials`.
    participants, reachable, num_samples : callable
        The methods of `Federation`.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        training: LocalTraining,
        sizes: Tensor,
        partial: bool,
        participants: Callable[[int], Tensor],
        reachable: Callable[[int], Tensor],
        num_samples: Callable[..., int],
    ) -> None:
        self.clients, self.sizes = len(sizes), sizes.clone()
        self.parameters, self.layout = blueprint.parameters, dict(blueprint.layout)
        self.linear_layers, self.initials = blueprint.linear_layers, blueprint.initials
        self.training, self.seed, self.partial = training, blueprint.seed, partial
        self.participants, self.reachable = participants, reachable
        self.num_samples = num_samples

    def drawn(self, clients: Tensor, count: int, *key: int) -> Tensor:
        """Draw some of the clients, in ascending order; the same for the same seed and key."""
        return drawn(clients, count, self.seed, *key)

    def places(self, layers: Sequence[str]) -> Tensor:
        """Return the places of these layers' weights and biases in a model's row."""
        owners = {name: name.rpartition(".")[0] for name in self.layout}
        parts = [at for name, at in self.layout.items() if owners[name] in layers]
        return torch.cat([torch.arange(at.start, at.stop) for at in parts])

    def last_layer(self) -> Tensor:
        """Return the places of the last layer's weights and biases in a model's row."""
        return self.places(self.linear_layers[-1:])

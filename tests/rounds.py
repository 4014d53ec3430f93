"""What many tests do with methods and clients: prepare them, run them, and compute a gradient."""

import nbformat
import torch
import torch.nn.functional as F

from cflkit import methods, simulation
from cflkit.federation import Jobs


def first_jobs(federation, clients=None):
    """Give the initial model to all clients, or to those that are named."""
    of = torch.arange(federation.clients) if clients is None else torch.as_tensor(clients)
    return Jobs(federation.initial()[None], torch.zeros_like(of), of)


def begin(name, federation, **options):
    """Make a method and set it up, before its first round."""
    method = methods.make(name, **options)
    method.setup(federation.server, federation.initial())
    return method


def watched(federation):
    """Note the jobs and the order of each training that a federation does from now on."""
    noted, train = [], federation.train

    def note(jobs, order, **options):
        noted.append((jobs, order))
        return train(jobs, order, **options)

    federation.train = note
    return noted


def run(name, federation, rounds=3, **options):
    """Run a method alone; return it, and the table of its rounds."""
    method = methods.make(name, **options)
    history = simulation.run({"method": method}, federation, rounds, progress=False)
    return method, history.table()


def played(paper, run, *checkpoint):
    """Run a paper's methods with these parameters; return the history and the federation."""
    images, split = paper.data(run)
    federation, lines = paper.federation(run, images, split), paper.line_up(run, images, split)
    return paper.play(run, federation, lines, paper.rounds(run), *checkpoint), federation


def notebook(folder, *cells, name="made"):
    """Write a notebook with code cells of the given sources and tags; return its path."""
    new = nbformat.v4.new_code_cell
    made = [new(source, metadata={"tags": tags}) for source, *tags in cells]
    nbformat.write(nbformat.v4.new_notebook(cells=made), path := folder / f"{name}.ipynb")
    return path


def gradient(network, inputs, labels):
    """Compute the gradient of the mean cross-entropy by autograd, as one vector."""
    loss = F.cross_entropy(network(inputs), labels)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))])

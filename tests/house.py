"""What the limits of the house are measured with: lines, imports, and what a round walks through.

``python tests/house.py NAME`` prints the functions that the second round of a method, or
``batch``, passes through.
"""

import ast
import io
import os
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tokenize import COMMENT, DEDENT, ENDMARKER, INDENT, NEWLINE, NL, generate_tokens
from unittest.mock import patch

import grimp  # of import-linter, which does not look at the front of a package
import networkx

HERE = Path(__file__).resolve().parent.parent
LARGE = 400
METHODS = ("fedavg", "ifca", "ocfl")  # of which a round is traced
DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
NO_CODE = COMMENT, NL, NEWLINE, INDENT, DEDENT, ENDMARKER


def lines_of_code(text):
    """Return the numbers of the lines that have code, which is neither docstring nor comment."""
    prose = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node):
            prose |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    tokens = generate_tokens(io.StringIO(text).readline)
    found = {n for t in tokens if t.type not in NO_CODE for n in range(t.start[0], t.end[0] + 1)}
    return found - prose


def circles():
    """Return the groups of modules that import each other, also those of a package's front."""
    graph, edges = grimp.build_graph("cflkit", cache_dir=None), networkx.DiGraph()
    for name in graph.modules:
        edges.add_edges_from((name, to) for to in graph.find_modules_directly_imported_by(name))
    groups = networkx.strongly_connected_components(edges)
    return sorted(sorted(group) for group in groups if len(group) > 1)


def traced(*runs, threads):
    """Return for each run the files and functions of the package in it, in a process of its own."""
    process = ProcessPoolExecutor(1, get_context("spawn"))
    with patch.dict(os.environ, CFLKIT_THREADS=str(threads)), process:
        return dict(zip(runs, process.map(trace, runs), strict=True))


def trace(name):
    """Return what is called by the second round of a method, or for one batch: file, function."""
    import cflkit

    package, called = Path(cflkit.__file__).parent, {}

    def note(frame, *_):
        code = frame.f_code
        if code.co_filename.startswith(str(package)) and code.co_name != "<module>":
            file = Path(code.co_filename).relative_to(package).as_posix()
            called.setdefault((file, code.co_qualname))

    run = one_batch() if name == "batch" else second_round(name)
    threading.settrace(note)
    sys.settrace(note)
    run()
    sys.settrace(None)
    threading.settrace(None)
    return [*called]


def second_round(name):
    """Run a round of a method; return the function that runs its second one."""
    from cflkit import datasets, methods, partition, simulation
    from cflkit.federation import Federation, LocalTraining

    images = datasets.load("digits-8x8")
    images, split = partition.ocfl(images, overlap="nonoverlapping", balance="balanced", clients=6)
    federation = Federation(images, split, "compact-cnn", LocalTraining(epochs=1), device="cpu")
    method = {name: methods.make(name)}
    first = simulation.run(method, federation, 1, progress=False)
    return lambda: simulation.run(method, federation, 2, after=first, progress=False)


def one_batch():
    """Return the function that makes a record of one round of federated averaging.

    Modules are imported here, and nothing is computed before: what is cached belongs to the way.
    """
    from cflkit import datasets, methods, partition, simulation  # noqa: F401
    from cflkit.federation import Federation  # noqa: F401
    from cflkit.methods import fedavg as _  # noqa: F401
    from cflkit.reproduce import ledger, records
    from cflkit.reproduce.papers import ocfl

    small = {"clients": 6, "draws": 40, "rounds": 1, "local_epochs": 1}
    values = ledger.defaults("03b_ocfl_controls") | small

    def run():
        parameters = ocfl.Parameters.checked(values)
        federation = ocfl.federation(parameters, *ocfl.data(parameters))
        fedavg = {"FedAvg": methods.make("fedavg")}
        history = ocfl.base.play_rounds(parameters, federation, fedavg, parameters.rounds)
        records.write(records.run_id(parameters), parameters, history, federation)

    return run


if __name__ == "__main__":
    for file, function in trace(sys.argv[1]):
        print(f"{file}:{function}")

"""What the limits of the house are measured with: lines, imports, and what a round walks through.

``python tests/house.py --trace NAME`` prints the functions that the second round of a method, or
``batch``, passes through.
"""

import argparse
import ast
import io
import os
import subprocess
import sys
import tokenize
from pathlib import Path

import grimp  # of import-linter, which does not look at the front of a package
import networkx

HERE = Path(__file__).resolve().parent.parent
LARGE = 400
METHODS = ("fedavg", "ifca", "ocfl")  # of which a round is traced
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NO_CODE = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
)


def lines_of_code(text):
    """Return the numbers of the lines that have code, which is neither docstring nor comment."""
    prose = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Module)) and ast.get_docstring(node):
            prose |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = {n for t in tokens if t.type not in NO_CODE for n in range(t.start[0], t.end[0] + 1)}
    return found - prose


def functions(text, name):
    """Yield the place of each function, and its lines of code."""
    code = lines_of_code(text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, FUNCTIONS):
            lines = len(code & set(range(node.lineno, node.end_lineno + 1)))
            yield f"{name}:{node.name}", lines


def circles():
    """Return the groups of modules that import each other, also those of a package's front."""
    graph, edges = grimp.build_graph("cflkit", cache_dir=None), networkx.DiGraph()
    for name in graph.modules:
        edges.add_edges_from((name, to) for to in graph.find_modules_directly_imported_by(name))
    groups = networkx.strongly_connected_components(edges)
    return sorted(sorted(group) for group in groups if len(group) > 1)


def traced(*runs, threads):
    """Run this script; return for each run the files and functions of the package in it."""
    environment = os.environ | {"PYTHONPATH": str(HERE), "CFLKIT_THREADS": str(threads)}
    command = [sys.executable, __file__, "--trace", *runs]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = [line.split(":") for line in done.stdout.splitlines()]
    return {own: [place for run, *place in lines if run == own] for own in runs}


def trace(name):
    """Print the functions that are called by the second round of a method, or for one batch."""
    import threading

    import cflkit

    package, called = str(Path(cflkit.__file__).parent), {}

    def note(frame, *_):
        code = frame.f_code
        if code.co_filename.startswith(package) and code.co_name != "<module>":
            file = Path(code.co_filename).relative_to(package).as_posix()
            called.setdefault(f"{file}:{code.co_qualname}")

    run = one_batch() if name == "batch" else second_round(name)
    threading.settrace(note)
    sys.settrace(note)
    run()
    sys.settrace(None)
    threading.settrace(None)
    print("\n".join(f"{name}:{place}" for place in called))


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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", nargs="+", required=True, metavar="NAME")
    for name in parser.parse_args().trace:
        trace(name)

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


def imports(checkout):
    """Build the graph of imports between the modules of the package."""
    paths = sorted((checkout / "cflkit").rglob("*.py"))
    modules = {".".join(p.relative_to(checkout).with_suffix("").parts): p for p in paths}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    graph = networkx.DiGraph()
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                named = [f"{node.module}.{alias.name}" for alias in node.names]
                targets = [full if full in modules else node.module for full in named]
            else:
                continue
            graph.add_edges_from((name, target) for target in targets if target in modules)
    graph.remove_edges_from(networkx.selfloop_edges(graph))
    return graph


def circles(checkout):
    """Return the groups of modules that import each other."""
    groups = networkx.strongly_connected_components(imports(checkout))
    return sorted(sorted(group) for group in groups if len(group) > 1)


def walked(checkout):
    """Return the files and functions of the package that a round of each method passes through."""
    return traced(checkout, *METHODS, threads=2)


def traced(checkout, *runs, threads):
    """Run this script on a checkout; return the pairs of a file and a function that it prints."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "CFLKIT_THREADS": str(threads)}
    command = [sys.executable, __file__, "--trace", *runs]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = [line.split(":") for line in done.stdout.splitlines()]
    return {own: [place for run, *place in lines if run == own] for own in runs}


def files_of_one_batch(checkout):
    """Return the files that a batch passes through, from a file on the disk to ``rounds.csv``.

    They are in the order in which the first of their functions is called.
    """
    found = traced(checkout, "batch", threads=1)
    return list(dict.fromkeys(file for file, _ in found["batch"]))


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

"""The house in numbers: how large its rooms are, and how many of them a round walks through.

``python tests/house.py [CHECKOUT ...]`` prints these numbers of each checkout, so that two can be
compared:

- the lines of each room and ring of the package, and of the tests;
- the files above 400 lines, the longest function (lines of code, without docstring and comments),
  and the highest cyclomatic complexity;
- the circles of imports, also those inside functions and for type checking;
- the files and functions that one round of FedAvg, IFCA and OCFL passes through (traced).
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
RINGS = {"reproduce": 2, "__main__": 3, "commands": 3, "course": 3, "flower": 3, "check": 3}
RINGS |= {"groups": 3, "compare": 3}
LARGE = 400
METHODS = ("fedavg", "ifca", "ocfl")  # of which a round is traced
# Each of these adds one path through a function (McCabe), and so does each operator in a chain of
# and/or
BRANCHES = (
    *(ast.If, ast.IfExp, ast.For, ast.While),
    *(ast.ExceptHandler, ast.Assert, ast.comprehension, ast.match_case),
)
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


def complexity(function):
    """Compute the cyclomatic complexity: one plus the branches, also those of inner functions."""
    nodes = list(ast.walk(function))
    chains = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return 1 + sum(isinstance(node, BRANCHES) for node in nodes) + chains


def functions(text, name):
    """Yield the place of each function, its lines of code, and its complexity."""
    code = lines_of_code(text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, FUNCTIONS):
            lines = len(code & set(range(node.lineno, node.end_lineno + 1)))
            yield f"{name}:{node.name}", lines, complexity(node)


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


def report(checkout):
    """Print the numbers of a checkout."""
    texts = {
        path.relative_to(checkout).as_posix(): path.read_text(encoding="utf-8")
        for folder in ("cflkit", "tests")
        for path in sorted((checkout / folder).rglob("*.py"))
    }
    lines = {name: len(text.splitlines()) for name, text in texts.items()}
    print(f"{checkout}\n")
    rooms = {}
    for name, count in lines.items():
        top, *rest = name.removesuffix(".py").split("/")
        room = "tests" if top == "tests" else "/".join(rest[: 1 + (rest[1:2] == ["baselines"])])
        rooms[room] = rooms.get(room, 0) + count
    for room, count in rooms.items():
        ring = "" if room == "tests" else f"ring {RINGS.get(room, 1)}"
        print(f"  {ring:8s}{room:24s}{count:7,d} lines")
    for ring in (1, 2, 3):
        inside = [r for r in rooms if RINGS.get(r, 1) == ring and r != "tests"]
        print(f"  ring {ring}: {sum(rooms[room] for room in inside):,d} lines")
    print(f"  ring 1 without baselines: {ring_one(rooms):,d} lines")
    print(f"  the package: {sum(c for room, c in rooms.items() if room != 'tests'):,d} lines")
    package = {name: text for name, text in texts.items() if name.startswith("cflkit")}
    large = [f"{name} {lines[name]}" for name in package if lines[name] > LARGE]
    print(f"  files above {LARGE} lines: {', '.join(large) or 'none'}")
    found = [f for name, text in package.items() for f in functions(text, name)]
    place, longest, _ = max(found, key=lambda f: f[1])
    print(f"  longest function: {longest} lines of code, {place}")
    place, _, branches = max(found, key=lambda f: f[2])
    print(f"  highest complexity: {branches}, {place}")
    print(f"  circles of imports: {len(circles(checkout))}")
    for method, called in walked(checkout).items():
        files = {file for file, _ in called}
        print(f"  a round of {method}: {len(files)} files, {len(called)} functions")
        print(f"    {', '.join(sorted(files))}")


def ring_one(rooms):
    """Return the lines of ring 1 without the baselines."""
    apart = ("tests", "methods/baselines")
    return sum(c for r, c in rooms.items() if RINGS.get(r, 1) == 1 and r not in apart)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs="*", metavar="CHECKOUT", help="by default this one")
    parser.add_argument("--trace", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    for name in given.trace or []:
        trace(name)
    if not given.trace:
        for place in given.checkouts or [HERE]:
            report(Path(place).resolve())

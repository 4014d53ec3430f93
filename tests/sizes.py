"""The sizes of a package's files and functions, and their complexity.

``python tests/sizes.py [CHECKOUT ...]`` prints these numbers per checkout and folder, so that
checkouts can be compared. The folders are ``cflkit`` with its subfolders, ``tests``, and
``notebooks`` without the notebooks themselves. The numbers are those of files, lines and functions,
the largest file, the longest function, and the function with the highest cyclomatic complexity.
"""

import argparse
import ast
from pathlib import Path

FOLDERS = ("cflkit", "tests", "notebooks")
# Each of these adds one path through a function (McCabe), and so does each operator in a chain of
# and/or
BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.While,
    ast.ExceptHandler,
    ast.Assert,
    ast.comprehension,
    ast.match_case,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def complexity(function):
    """Compute the cyclomatic complexity: one plus the branches, also those of inner functions."""
    nodes = list(ast.walk(function))
    chains = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return 1 + sum(isinstance(node, BRANCHES) for node in nodes) + chains


def functions(tree, name):
    """Yield the place of each function, its lines without docstring, and its complexity."""
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            lines = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node) is not None:
                lines -= node.body[0].end_lineno - node.body[0].lineno + 1
            yield f"{name}:{node.name}", lines, complexity(node)


def sizes(folder):
    """The sizes of the Python files below a folder, as texts by column."""
    paths = sorted(path for path in folder.rglob("*.py") if "src" not in path.parts)
    texts = {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths
    }
    lines = {name: len(text.splitlines()) for name, text in texts.items()}
    found = [f for name, text in texts.items() for f in functions(ast.parse(text), name)]
    largest = max(lines, key=lines.__getitem__)
    longest = max(found, key=lambda f: f[1])
    branched = max(found, key=lambda f: f[2])
    return {
        "files": len(paths),
        "lines": sum(lines.values()),
        "functions": len(found),
        "largest file": f"{lines[largest]} {largest}",
        "longest function": f"{longest[1]} {longest[0]}",
        "highest complexity": f"{branched[2]} {branched[0]}",
    }


def main(checkouts):
    """Print the sizes of each checkout."""
    for checkout in checkouts or [Path(__file__).resolve().parent.parent]:
        for folder in FOLDERS:
            measured = sizes(Path(checkout) / folder)
            print(f"{checkout} {folder}")
            for name, value in measured.items():
                print(f"    {name:19s} {value}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs="*", metavar="CHECKOUT", help="by default this one")
    main(parser.parse_args().checkouts)

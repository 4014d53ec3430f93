"""Sizes of a package: how large its files and functions are, and how branched.

``python tests/sizes.py [CHECKOUT ...]`` prints, per checkout and folder (``cflkit`` with what is
below it, ``tests``, ``notebooks`` without the notebooks themselves): files, lines, functions, the
largest file, the longest function and the one with the highest cyclomatic complexity. Two checkouts
can so be compared.
"""

import ast
import sys
from pathlib import Path

FOLDERS = ("cflkit", "tests", "notebooks")
# Each opens one more way through a function (McCabe); of a boolean chain, each operator does
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
    """Cyclomatic complexity: one, and one more per branch; of inner functions, too."""
    nodes = list(ast.walk(function))
    chains = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return 1 + sum(isinstance(node, BRANCHES) for node in nodes) + chains


def functions(tree, name):
    """For every function: its place, lines without its docstring, and complexity."""
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            lines = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node) is not None:
                lines -= node.body[0].end_lineno - node.body[0].lineno + 1
            yield f"{name}:{node.name}", lines, complexity(node)


def sizes(folder):
    """The sizes of the Python files below a folder, as texts by column."""
    paths = sorted(path for path in folder.rglob("*.py") if ".src" not in path.parts)
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
    main(sys.argv[1:])

"""The commands of ``python -m cflkit``.

Each command imports what it needs when it is called, so that help does not wait for torch.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import cflkit
from cflkit.reproduce import grid, notebooks, records
from cflkit.reproduce.parameters import ParameterError

# The exit status of a process that Ctrl-C has ended, as shells have it
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status, which is 2 for a mistake of the user."""
    options = parser().parse_args(arguments)
    try:
        return options.command(options)
    except KeyboardInterrupt:
        resumes = options.command in (run_notebook, walk_grid, count_claims, federate)
        what = "; the same command goes on from the last checkpoint" if resumes else ""
        print(f"interrupted{what}", file=sys.stderr)
        return INTERRUPTED
    except mistakes() as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def mistakes() -> tuple[type[Exception], ...]:
    """Return the errors that a user can correct; asked for once there is an error."""
    from cflkit.datasets import DatasetError
    from cflkit.partition import PartitionError

    return ParameterError, notebooks.NotebookError, DatasetError, PartitionError


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="python -m cflkit", description="Clustered federated learning, notebook first."
    )
    top.add_argument("--version", action="version", version=f"cflkit {cflkit.__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="run a notebook with other parameters",
        description="Run a notebook through papermill. Unknown names, wrong types and values out "
        "of bounds end it before a kernel starts.",
    )
    run.add_argument("notebook", type=found, help="a notebook with a cell of parameters")
    run.add_argument(
        "--list", action="store_true", help="print its parameters with their meanings; run nothing"
    )
    add_parameter(run, "one parameter, its value as in YAML; may be repeated, and wins over -f")
    run.add_argument("-f", "--file", type=found, help="a YAML file of parameters")
    run.add_argument(
        "-o",
        "--output",
        type=Path,
        help="the executed notebook (default: data/runs/ID)",
    )
    run.add_argument(
        "--missing", action="store_true", help="do nothing if the notebook's record is there"
    )
    run.add_argument(
        "--record-only",
        action="store_true",
        help="run only the cells that the record needs, not the rest of the lesson",
    )
    run.set_defaults(command=run_notebook)

    grids = commands.add_parser(
        "grid",
        help="list or run all that a paper's table needs",
        description="The runs of a grid under notebooks/params. 'list' says which are done, begun "
        "(interrupted, with a checkpoint) or missing; 'run' runs the rest on this machine, and may "
        "be given again at any time.",
    )
    grids.add_argument("action", choices=["list", "run"])
    grids.add_argument("table", help=f"one of {', '.join(grid.tables())}")
    add_where(grids, "only runs with this value, as 'scale reduced'; again for another name")
    grids.add_argument("-j", "--jobs", type=count, default=1, help="runs at a time (default: 1)")
    grids.add_argument(
        "-n", "--dry-run", action="store_true", help="print the commands of what is not done"
    )
    grids.set_defaults(command=walk_grid)

    data = commands.add_parser(
        "data", help="list the data sets and the folders searched, or load some"
    )
    data.add_argument("name", nargs="*", help="load these, downloading what is missing")
    data.set_defaults(command=show_data)

    real = commands.add_parser(
        "federate",
        help="run methods on clients that are processes, through Flower",
        description="Start a whole federation on this machine: a server and one node per client, "
        "which talk over TLS, and each of which has the data of its client alone. Run methods, and "
        "compare their models with those of the simulation. notebooks/a_real_federation.md tells "
        "how to do it on several machines. Needs the extra 'flower'.",
    )
    real.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=notebooks.RUNS / "federation",
        help="where data, keys, logs and results go (default: data/runs/federation)",
    )
    real.add_argument(
        "-m",
        "--methods",
        nargs="+",
        default=["fedavg", "ifca:k=2"],
        help="methods, each with its options (default: fedavg ifca:k=2)",
    )
    real.add_argument("--clients", type=count, default=4, help="how many clients (default: 4)")
    real.add_argument("--rounds", type=count, default=3, help="how many rounds (default: 3)")
    real.add_argument("--dataset", default="digits-8x8", help="the data (default: digits-8x8)")
    real.add_argument(
        "--version",
        default="quarter-turn",
        help="how clients differ, a name in cflkit.partition.shifts (default: quarter-turn)",
    )
    real.add_argument(
        "--samples", type=count, default=200, help="samples per client (default: 200)"
    )
    real.set_defaults(command=federate)

    book = commands.add_parser(
        "ledger",
        help="the papers' numbers beside ours",
        description="Join the papers' tables with the run records, write the result as CSV, and "
        "print it. Each published number stands beside our mean ± half of its 90 % t-interval, and "
        "the smallest and the largest value over seeds. The answer is reproduced, close, differs, "
        "inconclusive, single run or not run; notebook 90 has the margins. Runs at the paper's "
        "scale and at a reduced one are kept apart. A dash stands for one cluster in all rounds.",
    )
    book.add_argument("--paper", help="this paper alone, by its name in data/published")
    book.add_argument("--table", help="this table alone")
    book.add_argument("--all", action="store_true", help="print also what was not run")
    book.add_argument(
        "-o", "--output", type=Path, default=notebooks.RUNS / "ledger.csv", help="the CSV file"
    )
    book.set_defaults(command=show_ledger)

    known = commands.add_parser(
        "records",
        help="list records, show one, or put two side by side",
        description="Without an id: every record, with the paper and scale that it counts for, its "
        "seed, its minutes, and the age of its code in commits. Stale is a record whose code has "
        "changed since. With one id: its measures. With two: the parameters in which they differ, "
        "and their measures side by side.",
    )
    known.add_argument("id", nargs="*", help="the names of one or two records")
    add_where(known, "only records with this parameter, as 'dataset mnist'; again for another name")
    known.set_defaults(command=show_records)

    again = commands.add_parser(
        "replay",
        help="run the first rounds of a record again and compare",
        description="Run the first rounds of a record with the code as it is now, and say round by "
        "round whether they come out the same, the same to rounding (as on another processor), or "
        "different. The exit status is 1 if a round is different. Nothing is written.",
    )
    again.add_argument("id", help="the name of a record")
    again.add_argument("--rounds", type=count, help="how many rounds (default: 2)")
    again.set_defaults(command=replay_record)

    firm = commands.add_parser(
        "robust",
        help="count how often a lesson's claims hold over seeds",
        description="Run a lesson once per seed, each in a process of its own, and count in how "
        "many runs each of its claims holds. An interrupted measurement goes on where it stopped. "
        "The counts are printed and written into a table; data/robustness.csv is the committed "
        "one.",
    )
    firm.add_argument("notebook", type=found, help="a lesson with claims")
    firm.add_argument("--seeds", type=count, default=20, help="how many seeds (default: 20)")
    firm.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    change = firm.add_mutually_exclusive_group()
    change.add_argument(
        "--engine", choices=["threads", "stacked"], help="this engine and not the lesson's own"
    )
    change.add_argument(
        "--perturbed",
        action="store_true",
        help="perturb the last bit of every trained parameter, as another processor might",
    )
    add_parameter(firm, "another value of a parameter, as in YAML; may be repeated")
    firm.add_argument("-j", "--jobs", type=count, default=2, help="runs at a time (default: 2)")
    firm.add_argument(
        "-o",
        "--output",
        type=Path,
        default=notebooks.RUNS / "robustness.csv",
        help="the table (default: data/runs/robustness.csv)",
    )
    firm.set_defaults(command=count_claims)

    lessons = commands.add_parser(
        "course",
        help="write the exercises for students and instructors",
        description="Write a course into a new folder: 'student' has the exercises without "
        "solutions, 'solutions' has them with solutions and rubrics, 'nbgrader' is a course that "
        "nbgrader takes as it is, 'quizzes' has the quizzes for Moodle, and 'instructor' has the "
        "plan of the course and the key of the quizzes.",
    )
    lessons.add_argument("out", type=Path, help="a new folder")
    lessons.add_argument(
        "--without-solutions", action="store_true", help="only what students may have"
    )
    lessons.set_defaults(command=write_course)

    tables = commands.add_parser(
        "readme",
        help="write the tables of results",
        description="Write the tables of README.md and notebooks/results.md, and data/ledger.csv, "
        "from the notebooks and the records that git tracks: add new ones before. No notebook is "
        "run.",
    )
    tables.set_defaults(command=write_readme)
    return top


def add_parameter(command: argparse.ArgumentParser, text: str) -> None:
    """Add the option that gives a parameter of a notebook another value."""
    command.add_argument(
        "-p",
        "--parameter",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help=text,
    )


def add_where(command: argparse.ArgumentParser, text: str) -> None:
    """Add the option that selects by values."""
    command.add_argument(
        "-w", "--where", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help=text
    )


def picked(pairs: Sequence[tuple[str, str]], option: str) -> dict[str, str]:
    """Return the values of an option that may be repeated, by their names.

    Raises
    ------
    ParameterError
        A name has two values.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ParameterError(f"{option} takes one value of a name")
    return values


def count(text: str) -> int:
    """Read a number that is at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def found(path: str) -> Path:
    """Read a path, which may be given as in a checkout (`notebooks.find`)."""
    return notebooks.find(Path(path))


def run_notebook(options: argparse.Namespace) -> int:
    """Do ``run``: execute a notebook, then print its report and where everything was written."""
    if options.list:
        print(notebooks.parameters_cell(notebooks.read(options.notebook)))
        return 0
    done = notebooks.run(
        options.notebook,
        picked(options.parameter, "-p"),
        options.file,
        options.output,
        options.missing,
        options.record_only,
    )
    if done is None:
        print("the record is there already")
    else:
        report, output = done
        print(report + f"notebook  {records.display_path(output)}")
    return 0


def walk_grid(options: argparse.Namespace) -> int:
    """Do ``grid``: list runs, or run those that are missing; return 1 if a run failed."""
    jobs = grid.read(options.table, picked(options.where, "--where"))
    left = [job for job in jobs if job.status != "done"]
    if options.action == "list":
        for job in jobs:
            print(f"{job.status:8s}{job.run}")
    elif options.dry_run:
        for job in left:
            print(shlex.join(["python", "-m", "cflkit", *job.command()]))
    else:
        failed = grid.run(jobs, options.jobs)
        left = [job for job in jobs if job.status != "done"]
        print(f"{len(jobs) - len(left)} of {len(jobs)} done, {len(failed)} failed")
        for run, reason in failed.items():
            print(f"{run}: {reason}", file=sys.stderr)
        return 1 if left else 0
    print(f"{len(jobs) - len(left)} of {len(jobs)} done", file=sys.stderr)
    return 0


def show_ledger(options: argparse.Namespace) -> int:
    """Do ``ledger``: write the whole ledger, and print the part that was asked for."""
    from cflkit.reproduce import ledger, papers

    if options.paper not in (None, *papers.PAPERS):
        raise ParameterError(f"no paper {options.paper!r}; there are {', '.join(papers.PAPERS)}")
    printed = ledger.published()
    of_paper = printed["paper"].eq(options.paper) | (options.paper is None)
    known = sorted(printed.loc[of_paper, "table"].unique())
    if options.table not in (None, *known):
        raise ParameterError(f"no table {options.table!r}; there are {', '.join(known)}")
    ledger.check_place(options.output)  # what cannot be written is refused before the work
    notebooks.check_writable(options.output.parent)
    book = ledger.ledger()
    table = book[of_paper & (book["table"].eq(options.table) | (options.table is None))]
    try:
        path = ledger.write(book, options.output)
    except OSError as error:
        raise ParameterError(f"{options.output} cannot be written ({error.strerror})") from error
    run = (table["status"] != "not run") | (table["reduced_status"] != "not run")
    listed = table if options.all else table[run]
    if len(listed):
        print(ledger.formatted(listed).to_string(index=False), end="\n\n")
    print(ledger.counts(table).to_string(), end="\n\n")
    print(f"ledger    {records.display_path(path.resolve())}")
    return 0


def show_records(options: argparse.Namespace) -> int:
    """Do ``records``: list records, show one, or compare two."""
    from cflkit.reproduce import ledger, papers

    if len(options.id) > 2:
        raise ParameterError(f"one record is shown, or two side by side, not {len(options.id)}")
    if options.id and options.where:
        raise ParameterError("--where selects from the list of records, and an ID is given")
    if options.id:
        chosen = [records.named(run) for run in options.id]
        print(records.side_by_side(chosen))
        paper = papers.by_folder(chosen[0].paper)
        if len(chosen) == 1 and paper is not None:
            print(f"\n{ledger.command(chosen[0], paper.name)}")
        return 0
    wanted = {
        name: notebooks.parse_yaml(name, text)
        for name, text in picked(options.where, "--where").items()
    }
    known = {name for record in records.find() for name in record.parameters}
    if unknown := sorted(wanted.keys() - known):
        names = ", ".join(sorted(known))
        raise ParameterError(f"no record has a parameter {', '.join(unknown)}; they have {names}")
    found = records.find(**wanted)
    if not found:
        raise ParameterError(f"no record has {wanted}")
    table = records.listing(found, ledger.any_scale)
    print(table.to_string(index=False))
    if table["stale"].any():
        print(
            "\nstale: made by other code than the present one, which need not mean other numbers; "
            "`python -m cflkit replay ID` tells"
        )
    return 0


def replay_record(options: argparse.Namespace) -> int:
    """Do ``replay``: compare round by round; return 1 if a round is different."""
    from cflkit.reproduce import replay

    verdicts = replay.replay(records.named(options.id), options.rounds)
    for verdict in verdicts:
        some = f"  ({', '.join(verdict.where[:3])}{', …' if len(verdict.where) > 3 else ''})"
        print(f"round {verdict.round}: {verdict.outcome}{some if verdict.where else ''}")
    return int(any(verdict.outcome == replay.DIFFERENT for verdict in verdicts))


def count_claims(options: argparse.Namespace) -> int:
    """Do ``robust``: run a lesson over seeds, count its claims, print and write the counts."""
    from cflkit.reproduce import claims, robust

    claims.table(options.output)  # another file is refused before hours of work
    notebooks.check_writable(options.output.parent)
    rows = robust.measure(
        options.notebook,
        range(options.first, options.first + options.seeds),
        options.engine,
        options.perturbed,
        picked(options.parameter, "-p"),
        options.jobs,
    )
    robust.write(rows, options.output)
    print(robust.listing(rows), end="\n\n")
    print(f"table     {records.display_path(options.output.resolve())}")
    return 0


def write_readme(options: argparse.Namespace) -> int:
    """Do ``readme``: write the tables of results and the committed ledger."""
    from cflkit.reproduce import readme

    for path in readme.write():
        print(records.display_path(path))
    return 0


def write_course(options: argparse.Namespace) -> int:
    """Do ``course``: write the exercises, and where asked their solutions."""
    try:
        from cflkit import course
    except ImportError as error:
        raise ParameterError(
            f"a course needs the package {error.name}; install cflkit with its extra 'course'"
        ) from error
    try:
        for path in course.write(options.out, not options.without_solutions):
            print(records.display_path(path.resolve()))
    except OSError as error:
        raise ParameterError(f"{options.out} cannot be written ({error.strerror})") from error
    return 0


def federate(options: argparse.Namespace) -> int:
    """Do ``federate``: run methods on processes, and compare them with the simulation."""
    try:
        from cflkit.flower import demo
    except ImportError as error:
        print(f"error: {error}; install the extra: pip install 'cflkit[flower]'", file=sys.stderr)
        return 2
    folder = options.folder.resolve()
    try:
        config = {"rounds": options.rounds, "methods": demo.line_up_text(options.methods)}
        given = options.dataset, options.version, options.clients, options.samples
        own = demo.Demo(folder, *given, config)
        prepared = demo.prepare(own)
    except OSError as error:
        raise ParameterError(f"{folder} cannot be written ({error.strerror})") from error
    except (demo.DemoError, ValueError) as error:
        raise ParameterError(str(error)) from error
    print(f"starting a server and {options.clients} nodes; their logs are in {folder}")
    try:
        table = demo.conduct(own, *prepared)
    except demo.DemoError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for row in table.itertuples():
        equal = "equal to" if row.equal else "NOT equal to"
        print(
            f"{row.method}: accuracy {row.accuracy:.3f}; the models are {equal} those of the "
            f"simulation{', bit for bit' if row.equal else ''}"
        )
    print(f"every message: {own.output / 'messages.csv'}")
    return 0 if table["equal"].all() else 1


def show_data(options: argparse.Namespace) -> int:
    """Do ``data``: list data sets, or load some and print their sizes."""
    from cflkit import datasets

    if not options.name:
        print("searched, in order:", ", ".join(map(str, datasets.roots())))
        print("known:", ", ".join(datasets.names()))
    for name in options.name:
        images = datasets.load(name)
        print(
            f"{name}: {len(images.images)} images in the pool, {len(images.test_images)} in the "
            f"central test set, {images.shape}, {images.classes} classes"
        )
    return 0


def end(number: int, _: object) -> None:
    """End as a program that has finished: each `finally` is run, and ends what we have started."""
    sys.exit(128 + number)


def entry() -> None:
    """Run the command ``cflkit``, and exit with its status."""
    # A terminal that closes, or a batch system that ends us, must not leave processes behind
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores it
            signal.signal(number, end)
    try:
        status = main()
        sys.stdout.flush()
        if status == INTERRUPTED:
            os._exit(status)  # what papermill has not finished would report that on its way out
    except BrokenPipeError:
        # The reader of our output has closed it, as in `| head`; discard the rest, at exit, too
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)


if __name__ == "__main__":
    entry()

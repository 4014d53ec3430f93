"""The commands of ``python -m cflkit``.

Each command imports what it needs when it is called, so that help does not wait for torch. It
returns the exit status if that is not 0.
"""

import errno
import glob
import json
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

import cflkit
from cflkit._bounds import Mistake, hint
from cflkit._project import EXTRA, IS_CLONE, KIT, MORE, check_regular
from cflkit.reproduce import grid, lists, notebooks, records
from cflkit.reproduce.notebooks import RUNS
from cflkit.reproduce.parameters import ParameterError, matching
from cflkit.reproduce.terminal import Row, fitted
from cflkit.reproduce.values import parsed

# What a reader of an installation that cannot be written to may do
ELSEWHERE = "; CFLKIT_RESULTS, CFLKIT_CACHE and --output name other places"
# The methods of the federation that is shown
SHOWN = ("fedavg", "ifca:k=2")
# The characters of an error after which it is cut off, since it may repeat what was given
LONGEST = 2000


class Commands(click.Group):
    """All commands; a mistake, a file that cannot be used, and Ctrl-C are one line each."""

    def invoke(self, ctx: click.Context) -> int:
        """Run the command that was asked for, and return its exit status."""
        try:
            return super().invoke(ctx) or 0
        except KeyboardInterrupt:
            told = "interrupted; the same command goes on from what was kept, if anything"
            print(told, file=sys.stderr)
            return 130  # as of a process that a shell has seen end by Ctrl-C
        except BrokenPipeError:  # see `__main__.entry`
            raise
        except OSError as error:
            known = error.filename and f"{error.filename} cannot be used ({error.strerror})"
            elsewhere = ELSEWHERE if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else ""
            return refused(f"{known or error}{elsewhere}")
        except ModuleNotFoundError as error:
            return refused(error if EXTRA in str(error) else f"{error}; {EXTRA}")
        except MemoryError as error:
            return refused(f"there is too little memory ({error})")
        except Mistake as error:
            return refused(error)


def refused(why: object) -> int:
    """Print why a command does nothing, in one line, and return its exit status."""
    line = " ".join(str(why).split())
    print(f"error: {line if len(line) < LONGEST else line[:LONGEST] + ' …'}", file=sys.stderr)
    return 2


def pairs(short: str, long: str, text: str) -> Callable[[Any], Any]:
    """Build an option that takes a name and a value, and may be repeated for another name."""

    def by_name(ctx: click.Context, option: click.Parameter, values: Any) -> dict[str, str]:
        if len(dict(values)) < len(values):
            raise ParameterError(f"{long} takes one value of a name")
        return dict(values)

    form: Any = {"type": (str, str), "metavar": "NAME VALUE", "multiple": True}
    return click.option(short, long, help=f"{text}; again for another.", callback=by_name, **form)


def in_the_clone(ctx: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Read a path, which may be given as in the clone: ``notebooks/…`` from any folder."""
    if path is None or path.exists() or not (KIT / path).exists():
        return path
    return KIT / path


def lesson(ctx: click.Context, option: click.Parameter, text: Path) -> Path:
    """Read the path of a notebook, or the name or the number of one of the kit, as in ``03b``."""
    path = in_the_clone(ctx, option, text) or text
    known = {place.stem: place for place in sorted(grid.NOTEBOOKS.glob("*.ipynb"))}
    numbers = {stem.partition("_")[0]: place for stem, place in known.items()}
    if not path.is_file() and path == Path(path.name):
        path = (numbers | known).get(path.stem, path)
    if not path.exists():
        some = [stem for stem in known if path.stem in stem] or numbers
        near = hint(path.stem, known) or f"; there are {', '.join(some)}{MORE}"
        raise ParameterError(f"there is no notebook {str(text)!r}{near}")
    return path


def complete_notebook(ctx: click.Context, option: click.Parameter, text: str) -> list[Any]:
    """Complete the name of a notebook of the kit; else the shell completes a path."""
    names = [place.stem for place in sorted(grid.NOTEBOOKS.glob(f"{glob.escape(text)}*.ipynb"))]
    return [CompletionItem(name) for name in names] or [CompletionItem(text, type="file")]


def complete_table(ctx: click.Context, option: click.Parameter, text: str) -> list[str]:
    """Complete the name of a grid."""
    return [name for name in grid.tables() if name.startswith(text)]


def example(arguments: str) -> str:
    """Build the last lines of a command's help."""
    return f"\b\nExample:\n  python -m cflkit {arguments}"


COUNT = click.IntRange(min=1)
FILE: dict[str, Any] = {"type": click.Path(path_type=Path), "callback": in_the_clone}
NOTEBOOK: dict[str, Any] = FILE | {"callback": lesson, "shell_complete": complete_notebook}
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for other programs.")


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"show_default": True},
    epilog=example("run 03"),
)
@click.version_option(cflkit.__version__, prog_name="cflkit", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Clustered federated learning, notebook first."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


@cli.command(epilog=example("run 03b -p rounds 5"))
@click.argument("notebook", **NOTEBOOK)
@click.option("--list", "listed", is_flag=True, help="Print its parameters; run nothing.")
@pairs("-p", "--parameter", "One parameter, as in YAML, which wins over -f")
@click.option("-f", "--file", **FILE, help="A YAML file of parameters.")
@click.option("-o", "--output", type=Path, help="The executed notebook (default: data/runs/ID).")
@click.option("--missing", is_flag=True, help="Do nothing if the notebook's record is there.")
@click.option("--record-only", is_flag=True, help="Run only the cells that the record needs.")
@click.option("-v", "--verbose", is_flag=True, help="Tell each round, and all that it reports.")
def run(notebook: Path, listed: bool, parameter: dict[str, str], **options: Any) -> None:
    """Run a notebook, also with other parameters.

    NOTEBOOK is a path, or the number of one of the kit's: 03, or 03b for its appendix. Unknown
    names, wrong types and values out of bounds end it before a kernel starts.
    """
    if listed:
        print(notebooks.read_notebook(notebook).parameters_cell)
    elif done := notebooks.run(notebook, parameter, **options):
        print(done)
    else:
        print("the record is there already")


@cli.command("grid", epilog=example("grid run ocfl/table-1 -w scale reduced --dry-run"))
@click.argument("action", type=click.Choice(["list", "run"]))
@click.argument("table", required=False, shell_complete=complete_table)
@pairs("-w", "--where", "Only runs with this value, as 'scale reduced'")
@click.option("-n", "--dry-run", is_flag=True, help="Print the commands of what is not done.")
@JSON
def walk_grid(
    action: str, table: str | None, where: dict[str, str], dry_run: bool, as_json: bool
) -> int:
    """List or run all that a paper's table needs.

    'list' alone lists the tables. With a table, it says which of its runs are done, begun
    (interrupted, with a checkpoint) or missing. 'run' runs the rest on this machine, and may be
    given again at any time.
    """
    if as_json and action == "run":
        raise ParameterError("--json belongs to 'grid list'")
    if table is None:
        if action == "run" or where:
            raise ParameterError(f"name a table: {', '.join(grid.tables())}")
        show(lists.grids(), as_json)
        return 0
    every = grid.jobs_of(table, where)
    if as_json:
        show([{"run": j.run, "status": j.status, "command": j.command()} for j in every], True)
        return 0
    left = [job for job in every if job.status != "done"]
    if action == "list":
        for job in every:
            print(f"{job.status:8s}{job.run}")
    elif dry_run:
        for job in left:
            print(f"{shlex.join(['python', '-m', 'cflkit', *job.command()])}  # {job.run}")
    else:
        grid.run_jobs(left)
    done = sum(job.status == "done" for job in every)
    print(f"{done} of {len(every)} done", file=sys.stderr)
    return int(action == "run" and not dry_run and done < len(every))


def show(rows: Sequence[Row], as_json: bool, keys: int = 1) -> None:
    """Print rows for readers, or as JSON."""
    print(json.dumps(rows, indent=2) if as_json else fitted(rows, keys))


@cli.command("data", epilog=example("data digits-8x8"))
@click.argument("names", nargs=-1, metavar="[NAME]...")
@JSON
def show_data(names: tuple[str, ...], as_json: bool) -> None:
    """List the data sets, or load some; download what is missing."""
    from cflkit import datasets

    if names:
        show([describe(name) for name in names], as_json)
        return
    known = {"searched": [*map(str, datasets.roots())], "known": datasets.names()}
    lines = (f"{what}: {', '.join(values)}" for what, values in known.items())
    print(json.dumps(known, indent=2) if as_json else "\n".join(lines))


def describe(name: str) -> dict[str, Any]:
    """Load a data set, and return what it holds, and what was left out of one's own data."""
    from cflkit import datasets

    with warnings.catch_warnings(record=True) as left_out:
        warnings.simplefilter("always")
        images = datasets.load(name)
    return {
        "name": name,
        "pool": len(images.images),
        "central_test_set": len(images.test_images),
        "shape": images.shape,
        "classes": images.classes,
        "clients": None if images.owners is None else int(images.owners.max()) + 1,
        "class_names": images.class_names,
        "left_out": [str(warning.message) for warning in left_out],
    }


@cli.command(epilog=example("federate -m fedavg -m ocfl --clients 8"))
@click.argument("folder", type=click.Path(path_type=Path), default=RUNS / "federation")
@click.option("-m", "--methods", multiple=True, default=SHOWN, help="A method; again for another.")
@click.option("--clients", type=COUNT, default=4, help="How many clients.")
@click.option("--rounds", type=COUNT, default=3, help="How many rounds.")
@click.option("--dataset", default="digits-8x8", help="The data.")
@click.option("--version", default="quarter-turn", help="How clients differ, see partition.shifts.")
@click.option("--samples", type=COUNT, default=200, help="Samples per client.")
def federate(
    folder: Path, methods: tuple[str, ...], version: str, samples: int, **config: Any
) -> int:
    """Run methods on processes, through Flower.

    A server and one node per client start on this machine, and their models are compared with those
    of the simulation. Data, keys, logs and results go into FOLDER. notebooks/a_real_federation.md
    tells how to do it on several machines. Needs the extra 'flower'.
    """
    try:
        from cflkit.flower.demo import Demo
    except ImportError as error:
        raise ParameterError(f"{error}; install the extra: pip install 'cflkit[flower]'") from error
    config |= {"methods": "; ".join(methods), "partition": f"{version}:samples={samples}"}
    demonstration = Demo(folder.resolve(), config)
    try:
        federation = demonstration.prepare()
    except ValueError as error:
        raise ParameterError(str(error)) from error
    print(f"starting a server and {config['clients']} nodes; their logs are in {folder.resolve()}")
    table = demonstration.run(federation)
    for row in table.itertuples():
        verdict = "equal to those of the simulation, bit for bit"
        verdict = verdict if row.equal else "NOT equal to those of the simulation"
        print(f"{row.method}: accuracy {row.accuracy:.3f}; the models are {verdict}")
    print(f"all results: {demonstration.output}")
    return 0 if table["equal"].all() else 1


@cli.command("ledger", epilog=example("ledger --paper ocfl --table I"))
@click.option("--paper", help="This paper alone, by its name in data/published.")
@click.option("--table", help="This table alone.")
@click.option("--all", "everything", is_flag=True, help="Print also what was not run.")
@click.option("-o", "--output", type=Path, default=RUNS / "ledger.csv", help="The CSV file.")
@JSON
def show_ledger(
    paper: str | None, table: str | None, everything: bool, output: Path, as_json: bool
) -> None:
    """Show the papers' numbers beside ours.

    Each published number stands beside our mean ± half of its 90 % t-interval, and the smallest and
    the largest value over seeds. Runs at the paper's scale and at a reduced one are kept apart. A
    dash stands for one cluster in all rounds. Notebook 90 explains the answers.
    """
    from cflkit.reproduce import ledger

    where = {name: text for name, text in (("paper", paper), ("table", table)) if text is not None}
    matching("published number", ledger.published().to_dict("records"), where, dict)
    # What cannot be written is refused before the work
    notebooks.check_writable(output.parent)
    there = check_regular(output).exists()
    if there and ",reduced_scale\n" not in output.read_text("utf-8", "replace"):
        raise ParameterError(f"{output} is no ledger, and stays as it is")
    book = ledger.ledger() if IS_CLONE else ledger.read()
    path = ledger.write(book, output)
    asked = book[(book[[*where]] == [*where.values()]).all(axis=1)]
    has_run = (asked["status"] != "not run") | (asked["reduced_status"] != "not run")
    if as_json:
        print(asked[has_run | everything].to_json(orient="records", indent=2))
        return
    if everything or has_run.any():
        cells = lists.formatted(asked[has_run | everything])
        show(cells.to_dict("records"), False, keys=list(cells).index("published"))
        print()
    show(ledger.counts(asked).reset_index().to_dict("records"), False, keys=3)
    print()
    print(f"ledger    {records.display_path(path.resolve())}")


@cli.command("records", epilog=example("records --where dataset mnist"))
@click.argument("ids", nargs=-1, metavar="[ID [ID]]")
@pairs("-w", "--where", "Only records with this parameter, as 'dataset mnist'")
@JSON
def show_records(ids: tuple[str, ...], where: dict[str, str], as_json: bool) -> None:
    """List records, show one, or put two side by side.

    The list has the paper and scale that a record counts for, its seed, and its minutes. A record
    is stale if the code that computes its numbers has changed since; old records do not tell
    (unknown). 'replay ID' shows whether numbers change. Of two records, the parameters in which
    they differ are shown beside their measures.
    """
    from cflkit.reproduce import ledger, papers

    if len(ids) > 2:
        raise ParameterError(f"one record is shown, or two side by side, not {len(ids)}")
    if ids and where:
        raise ParameterError("--where selects from the list of records, and an ID is given")
    if ids:
        chosen = [records.find_record(run) for run in ids]
        if as_json:
            kept = ("id", "paper", "parameters", "summary", "claims", "provenance")
            shown = [{name: getattr(record, name) for name in kept} for record in chosen]
            print(json.dumps(shown, indent=2))
            return
        print(lists.side_by_side(chosen))
        paper = papers.by_folder(chosen[0].paper)
        with suppress(ModuleNotFoundError):  # the library alone runs no notebook
            if len(chosen) == 1 and paper is not None:
                print(f"\n{ledger.command(chosen[0], paper.name)}")
        return
    every = records.find_records()
    if not every:
        raise ParameterError("there is no record yet; `python -m cflkit run` writes one")
    rows = lists.listing(matching("record", every, parsed(where), lambda record: record.parameters))
    show(rows, as_json)


@cli.command("replay", epilog=example("replay 1a2e169e --rounds 1"))
@click.argument("id")
@click.option("--rounds", type=COUNT, help="How many (default: 2, or all if a record needs them).")
@JSON
def replay_record(id: str, rounds: int | None, as_json: bool) -> int:
    """Run the first rounds of a record again and compare.

    Each round comes out the same, the same to rounding (as on another processor), or different. The
    exit status is 1 if a round is different. Nothing is written.
    """
    from cflkit.reproduce import replay

    verdicts = replay.replay(records.find_record(id), rounds)
    if as_json:
        print(json.dumps([asdict(verdict) for verdict in verdicts], indent=2))
    for verdict in () if as_json else verdicts:
        some = f"  ({', '.join(verdict.where[:3])}{', …' if len(verdict.where) > 3 else ''})"
        print(f"round {verdict.round}: {verdict.outcome}{some if verdict.where else ''}")
    return int(any(verdict.outcome == replay.DIFFERENT for verdict in verdicts))


@cli.command("course", epilog=example("course monday --exercises 01.1 01.2"))
@click.argument("out", type=click.Path(path_type=Path))
@click.argument("more", nargs=-1, metavar="[ID]...")
@click.option("--exercises", multiple=True, metavar="ID [ID]...", help="Only these, as 01.1 01.2.")
@click.option("--without-solutions", is_flag=True, help="Only what students may have.")
def write_course(
    out: Path, more: tuple[str, ...], exercises: tuple[str, ...], without_solutions: bool
) -> None:
    """Write the exercises into a new folder OUT.

    'student' has the exercises without solutions, 'solutions' has them with solutions and rubrics,
    'nbgrader' is a course that nbgrader takes as it is, 'quizzes' has the quizzes for Moodle, and
    'instructor' has the plan of the course and the key of the quizzes. With --exercises, the first
    three have only these, and the exercises on whose functions they depend.
    """
    from cflkit.course import versions

    for path in versions.write_versions(out, not without_solutions, exercises + more):
        print(records.display_path(path.resolve()))


@cli.command("lessons", epilog=example("lessons my-lessons"))
@click.argument("out", type=click.Path(path_type=Path))
def copy_lessons(out: Path) -> None:
    """Copy the lessons, and what they show and link to, into a new folder OUT.

    A package that was installed from an index has them without outputs: run a lesson to see its
    figures. 'make lab' opens the lessons of a clone, which have them.
    """
    if {KIT / "notebooks", KIT / "figures"} & {out.resolve(), *out.resolve().parents}:
        raise ParameterError(f"{out} lies among the lessons themselves; name a folder elsewhere")
    out.mkdir(parents=True)
    unread = shutil.ignore_patterns("src", "params", "full", ".*")
    for part in ("notebooks", "figures"):
        shutil.copytree(KIT / part, out / part, ignore=unread)
    print(f"begin at  {out / 'notebooks' / '00_start_here.ipynb'}")


@cli.command("groups", epilog=example("groups updates.npy"))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=Path, help="The page's folder (default: data/runs/groups).")
@JSON
def ask_for_groups(file: Path, output: Path | None, as_json: bool) -> None:
    """Ask clients' updates or distances whether there are groups.

    FILE is .npy, .npz, .csv or .safetensors, with updates [clients, parameters] or [rounds,
    clients, parameters], or distances [clients, clients]; or the ID of a record; or your own data
    that say which client holds what, on which a model is trained first. A page tells the answer,
    how sure it is, and between which thresholds each method finds these groups.
    """
    from cflkit.groups import groups, page, read

    folder = output or RUNS / "groups" / file.stem
    notebooks.check_writable(folder.parent)
    evidence = read(file)
    answer = groups(evidence)
    written = page.write(evidence, answer, folder, file.name)
    print(page.as_json(evidence, answer) if as_json else page.summary(evidence, answer))
    if not as_json:
        print(f"page      {records.display_path(written[0].resolve())}")


@cli.command("compare", epilog=example("compare my_method.py"))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=Path, help="The folder (default: data/runs/compare/NAME).")
def put_on_the_map(file: Path, output: Path | None) -> None:
    """Compare a method of yours with the kit's in twenty situations.

    FILE is a Python file with one class of a method, which is run with three seeds, or a CSV file
    with the columns of data/failures.csv. If interrupted, the same call goes on. You get the
    method's place in each situation, a table in Markdown and LaTeX, and the average ranks.
    """
    from cflkit import compare

    folder = output or RUNS / "compare" / file.stem
    notebooks.check_writable(folder.parent)
    sys.path.insert(0, str(file.resolve().parent))  # as Python does for a script
    runs = compare.results(file, folder / "results.csv")
    written = compare.write(runs, folder)
    show(compare.summary(runs).to_dict("records"), as_json=False)
    for what, path in zip(("table", "LaTeX", "ranks"), written, strict=False):
        print(f"{what:9s} {records.display_path(path.resolve())}")

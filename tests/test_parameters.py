"""Tests of the errors that a notebook shows for wrong parameters, as in JupyterLab."""

import pytest
from IPython.core.interactiveshell import InteractiveShell
from rounds import notebook

from cflkit.reproduce import notebooks, papers
from cflkit.reproduce.papers import lessons
from cflkit.reproduce.parameters import ParameterError, assigned_parameters
from cflkit.reproduce.records import PROJECT

RIGHT = "dataset = 'digits-8x8'\nclients = 6  # m\nrounds = 10\nlocal_epochs = 2\n"
RIGHT += "batch_size = 16\nlr = 0.1\nrepeats = 5\nseed = 0"
WRONG = RIGHT.replace("local_epochs", "local_epoch")
CHECK = "from cflkit.reproduce import papers\nrun = papers.lessons.DriftMeasured.of(globals())"
KNOWN = lessons.DriftMeasured.model_fields


@pytest.fixture
def shell():
    """Start a session of IPython like that of a kernel."""
    InteractiveShell.clear_instance()
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def run(shell, capsys, *cells):
    """Run some cells; return the result and the output of the last one."""
    for cell in cells:
        capsys.readouterr()
        result = shell.run_cell(cell, store_history=True)
    return result, capsys.readouterr()


def test_a_wrong_name_in_the_parameters_cell_is_noticed(shell, capsys):
    result, _ = run(shell, capsys, RIGHT + "\nlocal_epoch = 1", CHECK)
    told = "the notebook has no parameter 'local_epoch'; did you mean 'local_epochs'?"
    assert isinstance(result.error_in_exec, ParameterError)
    assert str(result.error_in_exec).startswith(told)
    # Other cells may assign what they like
    result, _ = run(shell, capsys, "local_epoch = 3", RIGHT, "client = 1", "%time x = 2", CHECK)
    assert result.success
    # A corrected cell passes when it is run again, although the old name still exists
    result, _ = run(shell, capsys, RIGHT, CHECK)
    assert result.success
    # The same holds for a cell with an expression, which papermill would not accept
    result, _ = run(shell, capsys, WRONG, RIGHT.replace("= 0.1", "= 1 / 10"), CHECK)
    assert result.success
    # A misspelt name is noticed, although the correct name still exists from before
    result, _ = run(shell, capsys, WRONG, CHECK)
    assert "no parameter 'local_epoch'" in str(result.error_in_exec)


def test_a_wrong_value_is_one_line_without_a_traceback(shell, capsys):
    _, shown = run(shell, capsys, RIGHT + "\nrounds = -1", CHECK)
    expected = "ParameterError: rounds: Input should be greater than or equal to 1 (is -1)"
    assert (shown.out + shown.err).strip() == expected


def test_names_that_papermill_puts_in_are_checked_too():
    cells = ["import x", RIGHT, "# Parameters\nround = 3\nseed = 1\n", CHECK]
    *first, odd, again = assigned_parameters(cells, KNOWN)
    assert ({*first}, odd, again) == ({*KNOWN}, "round", "seed")
    assert assigned_parameters([], KNOWN) == []


@pytest.mark.parametrize(
    ("lesson", "name"), [("08_tutorial_022", "warm_up"), ("11_clients_that_come_and_go", "change")]
)
def test_something_comes_after_the_warm_up_or_the_change(lesson, name):
    known = notebooks.read_notebook(PROJECT / "notebooks" / f"{lesson}.ipynb")
    rounds = known.defaults["rounds"]
    assert known.check({name: rounds - 1}) == ({name: rounds - 1}, None)
    with pytest.raises(ParameterError, match=f"{name}: it must be below rounds = {rounds}"):
        known.check({name: rounds})


@pytest.mark.parametrize("path", sorted((PROJECT / "notebooks").glob("[0-9]*.ipynb")))
def test_every_notebooks_own_cells_are_right(path):
    if cells := notebooks.read_notebook(path).code:
        known = papers.parameters_of(path.stem).model_fields
        assert {*assigned_parameters(cells, known)} <= {*known}


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        *((["a = 1\nb = a"], "line 2"), (["import a"], "line 1"), (["a, b = 1, 2"], "line 1")),
        *((["a: int = 1"], "line 1"), (["%time a = 1"], "not Python")),
        *(([], "has 0 cells tagged"), (["a = 1", "b = 1"], "2 cells tagged 'parameters'")),
    ],
)
def test_one_parameters_cell_holds_literals_alone(tmp_path, sources, message):
    """Papermill takes all others silently."""

    def parameters(*sources):
        path = notebook(tmp_path, *((source, "parameters") for source in sources))
        return notebooks.read_notebook(path).defaults

    known = {"a": 1, "b": [1, 2.5], "c": None}
    assert parameters("a = 1  # one\nb = [1,\n 2.5]\nc = None") == known
    with pytest.raises(notebooks.NotebookError, match=message):
        parameters(*sources)

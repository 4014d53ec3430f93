"""What nbgrader needs to know of a course; ``python -m cflkit course`` copies this file into it."""

import json
import os
import sys
from pathlib import Path

from nbconvert.preprocessors import CSSHTMLHeaderPreprocessor
from nbgrader.preprocessors import ClearHiddenTests, GetGrades

c = get_config()  # noqa: F821  (nbgrader defines it)
c.CourseDirectory.course_id = "clustered-federated-learning"
# nbgrader's usual 30 seconds are short for experiments, and for two checks of a loop without end
c.Execute.timeout = 60
# Students read their feedback without the hidden checks
c.GenerateFeedback.preprocessors = [GetGrades, CSSHTMLHeaderPreprocessor, ClearHiddenTests]


def checks(notebook: Path) -> set:
    """Return the names of the cells with checks that a notebook has."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    names = {cell["metadata"].get("nbgrader", {}).get("grade_id") or "" for cell in cells}
    return {name for name in names if name.startswith("check-")}


# nbgrader gives no score to a check that it does not find, and has a traceback for another name. It
# reads this file three times
if "autograde" in sys.argv and "CFLKIT_SUBMISSIONS" not in os.environ:
    os.environ["CFLKIT_SUBMISSIONS"] = "checked"
    for path in sorted(Path().glob("submitted/*/*/*.ipynb")):
        source = Path("source", path.parent.name, path.name)
        if not source.exists():
            print(f"{path} is no notebook of an assignment: was it renamed?", file=sys.stderr)
        elif lost := sorted(checks(source) - checks(path)):
            print(
                f"{path} lacks {', '.join(lost)}, which get no score: cells were merged, or their "
                "metadata are lost. Copy the answers into a fresh notebook of the assignment",
                file=sys.stderr,
            )

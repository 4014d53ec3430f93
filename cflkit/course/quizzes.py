"""Quizzes: show them in a notebook, and write them for Moodle.

The questions of a lesson are in ``notebooks/src/quizzes``, five per lesson, in YAML.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Annotated, Self
from xml.etree import ElementTree

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cflkit.reproduce.parameters import ParameterError
from cflkit.reproduce.records import PROJECT
from cflkit.reproduce.values import parse_yaml

SOURCES = PROJECT / "notebooks" / "src" / "quizzes"


class Answer(BaseModel):
    """One answer to a question, and what is said to those who choose it."""

    model_config = ConfigDict(extra="forbid")

    text: str
    correct: bool = False
    feedback: str


class Question(BaseModel):
    """A question with three or four answers, exactly one of which is correct."""

    model_config = ConfigDict(extra="forbid")

    id: str
    question: str
    answers: Annotated[list[Answer], Field(min_length=3, max_length=4)]
    explanation: str

    @model_validator(mode="after")
    def one_is_correct(self) -> Self:
        """Check that there is exactly one correct answer."""
        if sum(answer.correct for answer in self.answers) != 1:
            raise ValueError(f"{self.id} needs exactly one correct answer")
        return self


def sources() -> list[Path]:
    """Return the files of all quizzes in the order of the lessons."""
    return sorted(SOURCES.glob("*.yaml"))


def read(source: Path) -> list[Question]:
    """Read the questions of a file."""
    listed = parse_yaml(source.name, source.read_text(encoding="utf-8"))
    return [Question.model_validate(one) for one in listed]


def of_lesson(number: str) -> list[Question]:
    """Return the questions of a lesson, such as those of lesson ``03``.

    Raises
    ------
    ParameterError
        The lesson has no quiz.
    """
    known = {source.stem[:2]: source for source in sources()}
    if number not in known:
        raise ParameterError(f"no quiz {number!r}; there are {', '.join(known)}")
    return read(known[number])


def show(number: str) -> None:
    """Show the quiz of a lesson in a notebook, by the package jupyterquiz.

    The notebook keeps the answers encoded, so that nobody reads the key by accident.

    Parameters
    ----------
    number : str
        The number of the lesson, such as ``03``.

    Raises
    ------
    ParameterError
        The lesson has no quiz.
    ImportError
        The package jupyterquiz, which the extra ``course`` installs, is missing.
    """
    from IPython.display import HTML, display
    from jupyterquiz import display_quiz

    questions = [
        {
            "question": question.question,
            "type": "multiple_choice",
            "answers": [
                {"answer": one.text, "correct": one.correct, "feedback": one.feedback}
                for one in question.answers
            ],
        }
        for question in of_lesson(number)
    ]
    # The browser decodes Latin letters alone, and JSON writes all others as numbers
    key = base64.b64encode(json.dumps(questions).encode("ascii")).decode("ascii")
    display(HTML(f'<span style="display:none" id="quiz-{number}">{key}</span>'))
    display_quiz(f"#quiz-{number}")


def moodle(questions: list[Question], category: str) -> bytes:
    """Write questions in Moodle's XML format.

    Parameters
    ----------
    questions : list of Question
        The questions.
    category : str
        The category into which Moodle imports them.

    Returns
    -------
    bytes
        The contents of the file, in UTF-8.
    """
    quiz = ElementTree.Element("quiz")
    folder = ElementTree.SubElement(quiz, "question", type="category")
    add_text(folder, "category", f"$course$/{category}")
    for question in questions:
        item = ElementTree.SubElement(quiz, "question", type="multichoice")
        add_text(item, "name", question.id)
        add_text(item, "questiontext", question.question, format="markdown")
        add_text(item, "generalfeedback", question.explanation, format="markdown")
        for name, value in (("single", "true"), ("shuffleanswers", "true"), ("defaultgrade", "1")):
            ElementTree.SubElement(item, name).text = value
        for one in question.answers:
            fraction = "100" if one.correct else "0"
            answer = add_text(item, "answer", one.text, fraction=fraction, format="markdown")
            add_text(answer, "feedback", one.feedback, format="markdown")
    ElementTree.indent(quiz)
    written: bytes = ElementTree.tostring(quiz, encoding="utf-8", xml_declaration=True)
    return written


def add_text(
    parent: ElementTree.Element, name: str, text: str, **attributes: str
) -> ElementTree.Element:
    """Add an element with a text, which Moodle expects in an element of its own."""
    element = ElementTree.SubElement(parent, name, attributes)
    if attributes.get("format") == "markdown":
        # Moodle's MathJax knows no single dollars, and its Markdown halves backslashes before (
        text = re.sub(r"\$([^$]+)\$", r"\\\\(\1\\\\)", text)
    ElementTree.SubElement(element, "text").text = text.strip()
    return element

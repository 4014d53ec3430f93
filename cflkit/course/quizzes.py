"""Quizzes: show them in a notebook, and write them for Moodle.

The questions of a lesson are in ``notebooks/src/quizzes``, five per lesson, in YAML.
"""

import base64
import json
import re
from pathlib import Path
from typing import Annotated, Literal
from xml.etree import ElementTree

from pydantic import BaseModel, Field, TypeAdapter

from cflkit.course.sources import by_lesson
from cflkit.reproduce.values import parse_yaml


class Answer(BaseModel, extra="forbid"):
    """One answer to a question, and what is said to those who choose it."""

    text: Annotated[str, Field(serialization_alias="answer")]  # as jupyterquiz calls it
    correct: bool = False
    feedback: str


class Question(BaseModel, extra="forbid"):
    """A question with three or four answers, exactly one of which is correct, as tests check."""

    id: str
    question: str
    type: Literal["multiple_choice"] = "multiple_choice"  # as jupyterquiz calls it, too
    answers: list[Answer]
    explanation: str


def files() -> dict[str, Path]:
    """Return the files of all quizzes by their lesson, in order; see `sources.by_lesson`."""
    return by_lesson("quizzes/[!.]*.yaml")


def questions_of(source: Path) -> list[Question]:
    """Read the questions of a file; pydantic's error says what is wrong with them."""
    return TypeAdapter(list[Question]).validate_python(parse_yaml(source.name, source.read_bytes()))


def show(number: str) -> None:
    """Show the quiz of a lesson, such as ``03``, in a notebook, by the package jupyterquiz.

    The notebook keeps the answers encoded, so that nobody reads the key by accident. The extra
    ``course`` installs jupyterquiz.
    """
    from IPython.display import HTML, display
    from jupyterquiz import display_quiz

    shown = {"question", "type", "answers"}
    listed = questions_of(files()[number])
    questions = [question.model_dump(by_alias=True, include=shown) for question in listed]
    # The browser decodes Latin letters alone, and JSON writes all others as numbers
    key = base64.b64encode(json.dumps(questions).encode("ascii")).decode("ascii")
    display(HTML(f'<span style="display:none" id="quiz-{number}">{key}</span>'))
    display_quiz(f"#quiz-{number}")


def moodle(questions: list[Question], category: str) -> bytes:
    """Write questions in Moodle's XML format, in UTF-8; Moodle imports them into the category."""
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
        for choice in question.answers:
            fraction = "100" if choice.correct else "0"
            answer = add_text(item, "answer", choice.text, fraction=fraction, format="markdown")
            add_text(answer, "feedback", choice.feedback, format="markdown")
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

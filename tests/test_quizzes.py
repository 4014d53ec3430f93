"""The quizzes: their format, how a notebook shows them, and their export for Moodle."""

import base64
import io
import json
import re
from contextlib import redirect_stdout
from xml.etree import ElementTree

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from cflkit.course import quizzes, sources

QUIZZES = {lesson: quizzes.questions_of(source) for lesson, source in quizzes.files().items()}


def test_every_lesson_with_exercises_has_a_quiz_of_five_questions():
    assert list(QUIZZES) == [lesson for lesson in sources.by_lesson() if lesson.isdecimal()]
    for lesson, questions in QUIZZES.items():
        ids = [question.id for question in questions]
        assert ids == [f"{lesson}.q{place}" for place in range(1, 6)]
        for question in questions:
            assert 3 <= len(question.answers) <= 4, question.id
            assert sum(answer.correct for answer in question.answers) == 1, question.id


def test_the_right_answer_is_told_neither_by_its_place_nor_by_its_length():
    every = [question.answers for quiz in QUIZZES.values() for question in quiz]
    places = [[answer.correct for answer in answers].index(True) for answers in every]
    assert max(places.count(place) for place in set(places)) <= len(places) / 2
    longest = [max(answers, key=lambda answer: len(answer.text)).correct for answers in every]
    assert sum(longest) <= len(every) / 2


def test_the_sections_that_an_answer_sends_to_exist():
    """They are in the lesson, or in the appendix or lesson whose number the explanation has."""
    for lesson, questions in QUIZZES.items():
        for question in questions:
            _, _, sent = question.explanation.partition("See")
            numbers = {lesson, *re.findall(r"(?:appendix|lesson) (\d\db?)", question.explanation)}
            files = [path for n in numbers for path in sources.SOURCES.glob(f"{n}_*.py")]
            text = "".join(path.read_text(encoding="utf-8") for path in files)
            for title in re.findall(r'"(.+?)"', sent):
                assert re.search(rf"^# ##+ {re.escape(title)}$", text, re.M), (question.id, title)


@pytest.mark.parametrize("number", QUIZZES)
def test_a_notebook_shows_the_quiz_and_no_key_in_plain_text(number):
    InteractiveShell.instance()
    with redirect_stdout(io.StringIO()), capture_output() as shown:
        quizzes.show(number)
    everything = "".join(str(output.data) for output in shown.outputs)
    page = "".join(str(output.data.get("text/html", "")) for output in shown.outputs)
    [key] = re.findall(rf'id="quiz-{number}">([^<]+)<', page)
    known = json.loads(base64.b64decode(key))
    for question, kept in zip(QUIZZES[number], known, strict=True):
        assert kept["question"] == question.question
        for answer, other in zip(question.answers, kept["answers"], strict=True):
            assert (other["answer"], other["correct"]) == (answer.text, answer.correct)
            assert answer.text not in everything


def in_our_form(text):
    """Write formulas with dollars again, of which Moodle knows only pairs."""
    assert "$" not in text
    return text.replace(r"\\(", "$").replace(r"\\)", "$")


@pytest.mark.parametrize("number", QUIZZES)
def test_moodle_reads_what_is_exported(number):
    quiz = ElementTree.fromstring(quizzes.moodle(QUIZZES[number], "A course/One lesson"))
    category, *items = quiz
    assert category.get("type") == "category"
    assert category.findtext("category/text") == "$course$/A course/One lesson"
    for item, question in zip(items, QUIZZES[number], strict=True):
        assert (item.get("type"), item.findtext("single")) == ("multichoice", "true")
        assert item.findtext("name/text") == question.id
        assert in_our_form(item.findtext("questiontext/text")) == question.question.strip()
        for found, answer in zip(item.findall("answer"), question.answers, strict=True):
            assert in_our_form(found.findtext("text")) == answer.text.strip()
            assert found.get("fraction") == ("100" if answer.correct else "0")
            assert found.findtext("feedback/text")

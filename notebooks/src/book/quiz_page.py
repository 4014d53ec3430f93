"""The quizzes as a page of the book: each answer opens, and says what we think of it."""

from pathlib import Path

from cflkit.course import quizzes

INTRO = """# Quizzes

Five questions to each lesson, of which one answer is right. Open the answer that you would give: it
says whether it is right, or asks back. The same questions stand at the end of the exercises. The
link of a lesson is a file for Moodle (Question bank, Import, Moodle XML), with one point per
question and shuffled answers. We have checked its form, and have not imported it into a Moodle.

<style>
details { margin: .3rem 0 .3rem 1.5rem; }
summary p { display: inline; }
details[open] > summary { font-weight: 600; }
</style>
"""


def page() -> str:
    """Write all questions in Markdown, which blank lines let into the HTML."""
    parts = [INTRO]
    for lesson, source in quizzes.files().items():
        file = f'<a href="../quizzes/{lesson}.xml" download>Moodle</a>'
        parts.append(f"## Lesson {lesson}\n\n[The lesson]({source.stem}.ipynb) · {file}\n")
        for question in quizzes.questions_of(source):
            parts.append(f"**{question.id}** {question.question}\n")
            parts += [opening(answer.text, answer.feedback) for answer in question.answers]
    return "\n".join(parts)


def opening(told: str, inside: str) -> str:
    """Write a text that opens another one."""
    return f"<details><summary>\n\n{told}\n\n</summary>\n\n{inside}\n\n</details>\n"


def write_moodle(folder: Path) -> None:
    """Write a Moodle file per lesson into a new folder."""
    folder.mkdir(parents=True)
    for lesson, source in quizzes.files().items():
        category = f"Clustered federated learning/{source.stem}"
        written = quizzes.moodle(quizzes.questions_of(source), category)
        (folder / f"{lesson}.xml").write_bytes(written)

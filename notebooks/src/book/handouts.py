"""For an instructor's Monday: of each lesson one page to hand out, and slides, without a network.

Both are made from the committed lesson. The page has its question, the figure that moves, its
answer and what was seen. The slides have the question, what the lesson lets one predict, each
figure under the heading of its section, and the answer. They have no code. A file is one HTML page
with all pictures inside, which a browser shows and prints.
"""

import html
import json
import re
from pathlib import Path

from launch import LINK
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin

FOLDER = Path("handouts")
INDEX = """# One page per lesson, and slides

The build of the book makes all of this from the lessons. *One page* prints on a sheet of A4: the
lesson's question, its moving figure as it stands at first, the answer, and three sentences to
remember. *Slides* fill the window. The space bar shows the next slide, moving figures still move,
and printing gives one slide per sheet. Each file works alone and without a network, so you can save
it and take it with you. Slides have no code: for that, open the lesson.

| lesson | one page | slides |
|---|---|---|"""
STYLE = (Path(__file__).parent / "handouts.css").read_text(encoding="utf-8")
SYMBOLS = {r"\sigma": "σ", r"\varepsilon": "ε", r"\sqrt ": "√"}


def formula(text: str, options: object) -> str:
    """Return a short formula as HTML; a `ValueError` names what is too much for that."""
    for name, symbol in SYMBOLS.items():
        text = text.replace(name, symbol)
    if re.search(r"[\\{}^]", text):
        raise ValueError(f"a formula that the hand-outs cannot write: {text}")
    slanted = re.sub(r"[A-Za-zα-ω]", r"<i>\g<0></i>", text)
    return re.sub(r"_(\w)", r"<sub>\1</sub>", slanted)


MARKDOWN = MarkdownIt().use(dollarmath_plugin, renderer=formula)


def written(markdown: str) -> str:
    """Return Markdown as HTML, without its links, which paper does not have."""
    return MARKDOWN.render(LINK.sub(r"\2", markdown))


def page(title: str, body: str) -> str:
    """Return a whole page."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def figures(cell: dict) -> list[tuple[str, str, str]]:
    """Return each figure of a cell: how it moves, if it does; as it stands; what it shows."""
    outputs = [(o.get("data", {}), o.get("metadata", {})) for o in cell.get("outputs", [])]
    captions = ["".join(data["text/markdown"]) for data, _ in outputs if "text/markdown" in data]
    found = []
    for data, facts in outputs:
        if "image/png" in data:
            text, png = html.escape(facts["image/png"]["alt"]), "".join(data["image/png"]).strip()
            image = f'<img alt="{text}" src="data:image/png;base64,{png}">'
            # The bold sentence of the caption if it has one, else all of it
            told = re.match(r"\*\*Figure \d+\.\*\* (\*\*.+?\*\*|.+)", captions[len(found)])
            found.append(("".join(data.get("text/html", "")), image, written(told[1])))
    return found


def handout(path: Path) -> tuple[str, str, str]:
    """Return a lesson's title, its page, and its slides."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(c["source"]) if c["cell_type"] == "markdown" else "" for c in cells]
    [title] = re.findall(r"^# (.+)", texts[0])
    [question, answer] = re.findall(
        r"^\*\*(?:Question|Answer)\.\*\* (.+?)\n\n", texts[0], re.M | re.S
    )
    [saw] = re.findall(r"^## What we saw\n\n((?:[- ] .+\n?)+)", "\n\n".join(texts), re.M)
    image, finding = next(rest for c in cells for moving, *rest in figures(c) if moving)
    asked = written(f"**Question.** {question}")
    lesson = f'<a href="../notebooks/{path.stem}.html">The lesson</a>'
    link = f"<small>{lesson}, with code and exercises</small>"
    sheet = (
        f'<main class="page"><h1>{written(title)[3:-5]}</h1>{asked}{image}{finding}'
        f"<h2>The answer</h2>{written(answer)}<h2>To remember</h2>{written(saw)}{link}</main>"
    )
    slides = [f"<h1>{written(title)[3:-5]}</h1>{asked}{link}"]
    heading = ""
    for cell, text in zip(cells, texts, strict=True):
        heading = (re.findall(r"^##+ (.+)", text, re.M) or [heading])[-1]
        told = f"<h2>{written(heading)[3:-5]}</h2>"
        predict = re.findall(r"^\*\*Predict\.\*\* .+(?:\n.+)*", text, re.M)
        slides += [told + written(one) for one in predict]
        slides += [told + (moving or image) + finding for moving, image, finding in figures(cell)]
    slides += [f"<h2>The answer</h2>{written(answer)}", f"<h2>To remember</h2>{written(saw)}"]
    deck = "".join(f"<section>{one}</section>" for one in slides)
    return title, page(title, sheet), page(title, f'<main class="slides">{deck}</main>')


def write(lessons: list[Path], site: Path) -> str:
    """Write the pages and the slides of lessons into the site; return the list of them."""
    (site / FOLDER).mkdir(parents=True)
    rows = []
    for path in lessons:
        number = path.stem[:2]
        title, sheet, slides = handout(path)
        (site / FOLDER / f"{number}.html").write_text(sheet, encoding="utf-8")
        (site / FOLDER / f"{number}_slides.html").write_text(slides, encoding="utf-8")
        links = [
            f'<a href="handouts/{number}{kind}.html">{what}</a>'
            for kind, what in (("", "one page"), ("_slides", "slides"))
        ]
        rows.append(f"| [{number} {title}](notebooks/{path.name}) | {' | '.join(links)} |")
    return "\n".join([INDEX, *rows, ""])

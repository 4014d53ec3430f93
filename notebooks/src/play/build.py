"""Build ``notebooks/play.html``, one file that trains in the reader's browser.

``python notebooks/src/play/build.py`` puts the modules, the style and the digits into
``template.html``. The page needs no server and no network, so it also opens from the disk.

The modules are plain ES modules. In the page they are scripts, without their ``import`` and
``export``: ``engine.js`` and ``scenes.js`` run in the page and in its worker. Each module of
``explorers/`` whose name begins with the number of a lesson exports ``mount(element, data)``, with
``explorers/data.json`` as the data. It gets a section of its own, whose id is the file's name, in
the order of the names. ``maths.js`` and ``draw.js`` are what they share.
"""

import json
import re
from pathlib import Path

from cflkit import datasets

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "play.html"
EXPLORERS = HERE / "explorers"
STYLES = (HERE / "style.css", EXPLORERS / "explorers.css")
# What the page holds of each pixel: a letter for one of the 17 grey levels
LETTERS = "abcdefghijklmnopq"


def script(*names: str) -> str:
    """Return modules as one script, without imports and exports."""
    text = "\n".join((HERE / name).read_text(encoding="utf-8") for name in names)
    text = re.sub(r"^import\b[^;]*;\n", "", text, flags=re.M)
    return re.sub(r"^export (?=(async )?(function|const|class)\b)", "", text, flags=re.M)


def digits() -> str:
    """Return the kit's digits as JSON: 64 letters per image, and its label.

    The first ``train`` images are for training, and the others for the test.
    """
    images = datasets.load("digits-8x8")
    pixels = [*images.images.flatten(1).tolist(), *images.test_images.flatten(1).tolist()]
    levels = {round(level * 255 / 16): letter for level, letter in enumerate(LETTERS)}
    return json.dumps(
        {
            "train": len(images.images),
            "levels": list(levels),
            "labels": "".join(map(str, [*images.labels.tolist(), *images.test_labels.tolist()])),
            "pixels": "".join(levels[pixel] for image in pixels for pixel in image),
        }
    )


def explorers() -> tuple[str, str]:
    """Return the sections of the explorers, and the script that fills them."""
    names = sorted(path.stem for path in EXPLORERS.glob("[0-9]*.js"))
    sections = "\n".join(f'<section class="explorer" id="{name}"></section>' for name in names)
    calls = "\n".join(
        # Each in a task of its own, so that the page answers in between
        f"setTimeout(() => {{\n{script(f'explorers/{name}.js')}\n"
        f'mount(document.getElementById("{name}"), explorerData);\n}});'
        for name in names
    )
    read = (
        'const explorerData = JSON.parse(document.getElementById("explorer-data").textContent);\n'
    )
    shared = script("explorers/maths.js", "explorers/draw.js")
    return sections, f"(() => {{\n{read}{shared}\n{calls}\n}})();"


def page() -> str:
    """Return the page."""
    sections, calls = explorers()
    data = EXPLORERS / "data.json"
    parts = {
        "style": "\n".join(path.read_text(encoding="utf-8") for path in STYLES),
        "explorers": sections,
        "digits": digits(),
        "data": data.read_text(encoding="utf-8") if data.exists() else "{}",
        "engine": script("engine.js", "scenes.js"),
        "worker": script("worker.js"),
        "view": script("charts.js", "view.js") + calls,
    }
    template = (HERE / "template.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.name}: {PAGE.stat().st_size / 1000:.0f} kB")

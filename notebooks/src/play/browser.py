"""A page in Chromium without a window, for the tests and for README's picture of it.

``python notebooks/src/play/browser.py`` draws ``figures/play.gif``: rounds of its last scene.
"""

import asyncio
import base64
import contextlib
import io
import itertools
import json
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from PIL import Image
from tornado.websocket import WebSocketClientConnection, websocket_connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-quic", "--no-first-run"),
    *("--hide-scrollbars", "--remote-debugging-port=0"),
)
PAGE = Path(__file__).parents[2] / "play.html"
PICTURE = Path(__file__).parents[3] / "figures" / "play.gif"
ROUNDS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 13, 14, 15, 40)  # that are in the picture
WINDOW = (14, 236, 850, 648)  # and the part of the page that is in it


class Tab:
    """A tab of the browser, by the protocol of its developer tools."""

    def __init__(self, socket: WebSocketClientConnection) -> None:
        self.socket, self.numbers = socket, itertools.count(1)
        self.events: list[dict[str, Any]] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        await self.socket.write_message(json.dumps(message))
        while True:
            text = await self.socket.read_message()
            if text is None:
                raise RuntimeError("Chromium has ended")
            answer = json.loads(text)
            if answer.get("id") == number:
                return answer["result"]
            self.events.append(answer)

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of the page; a promise is awaited."""
        options = {"awaitPromise": True, "returnByValue": True}
        result = await self.call("Runtime.evaluate", expression=expression, **options)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"]["description"])
        return result["result"].get("value")

    async def until(self, condition: str, seconds: float = 40) -> None:
        """Wait until an expression of the page is true."""
        for _ in range(int(10 * seconds)):
            if await self.evaluate(condition):
                return
            await asyncio.sleep(0.1)
        raise TimeoutError(f"not in {seconds} seconds: {condition}")

    async def look(self, width: int, height: int, dark: bool = False, calm: bool = False) -> None:
        """Set the window's size, and what the reader prefers."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        features = {
            "prefers-color-scheme": "dark" if dark else "light",
            "prefers-reduced-motion": "reduce" if calm else "no-preference",
        }
        listed = [{"name": name, "value": value} for name, value in features.items()]
        await self.call("Emulation.setEmulatedMedia", features=listed)

    async def picture(self, whole: bool = False) -> Image.Image:
        """Return a picture of the window, or of the whole page."""
        result = await self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        return Image.open(io.BytesIO(base64.b64decode(result["data"])))


@contextlib.asynccontextmanager
async def opened(address: str) -> AsyncIterator[Tab]:
    """Open a page in a new browser, which has ended when the block ends."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [CHROMIUM or "chromium", *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        browser = subprocess.Popen(command, **quiet)
        try:
            found = Path(folder) / "DevToolsActivePort"
            while not (found.exists() and found.read_text()):
                if browser.poll() is not None:
                    raise RuntimeError(f"Chromium ended with {browser.returncode}")
                await asyncio.sleep(0.05)
            port = found.read_text().split()[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as listed:
                target = next(tab for tab in json.load(listed) if tab["type"] == "page")
            socket = await websocket_connect(target["webSocketDebuggerUrl"])
            tab = Tab(socket)
            for domain in ("Page", "Runtime", "Network", "Log"):
                await tab.call(f"{domain}.enable")
            await tab.look(1440, 900)
            await tab.call("Page.navigate", url=address)
            yield tab
            socket.close()
        finally:
            browser.terminate()
            browser.wait()


def few_colours(picture: Image.Image, many: int) -> Image.Image:
    """Give each pixel the nearest of the picture's most frequent colours."""
    counted = sorted(picture.getcolors(picture.width * picture.height) or [], reverse=True)
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in counted[:many] for part in colour])
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


async def draw() -> None:
    """Play the scene in which waiting pays, and draw some of its rounds."""
    async with opened(f"{PAGE.as_uri()}#scene=steps&epochs=0&rule=halves&seed=5") as tab:
        await tab.look(1280, 720, calm=True)
        await tab.until("typeof run === 'object' && run.rounds.length === 1")
        frames = []
        for last in ROUNDS:
            await tab.evaluate(
                f"(async () => {{ while (run.rounds.length < {last}) await step(); }})()"
            )
            await asyncio.sleep(0.4)  # until the lamp has its light
            frames.append(few_colours((await tab.picture()).convert("RGB").crop(WINDOW), 96))
    times = [900] * (len(frames) - 1) + [4000]
    frames[0].save(PICTURE, save_all=True, append_images=frames[1:], duration=times, loop=0)
    print(f"{PICTURE.name}: {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    asyncio.run(draw())

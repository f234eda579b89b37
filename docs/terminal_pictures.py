"""Draw the pictures of the terminal: ``python -m docs.terminal_pictures`` runs commands at one of 80 columns.

A browser without a window draws the output. Paths of this machine are replaced.
"""

from __future__ import annotations

import html
import io
import os
import pty
import random
import select
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image
from rich.console import Console
from rich.text import Text

import offloader
from offloader.settings import Settings

if TYPE_CHECKING:
    from playwright.sync_api import Page

FOLDER = Path(__file__).resolve().parent / "how-to" / "pictures"
COLUMNS, ROWS = 80, 60
#: What stands for the scratch folder.
SHOWN = "/srv/shop"
#: Picture -> the command's arguments.
COMMANDS = {
    "terminal-help": ["--help"],
    "terminal-status": ["status", "--config", "offloader.toml"],
    "terminal-doctor": ["doctor", "--config", "offloader.toml"],
}
#: A progress bar at a moment, as commands draw it.
PROGRESS = """
import sys
from offloader.cli.output import EntryProgress
with EntryProgress(sys.stderr, 40_000) as shown:
    shown.at(26_000, 26_000_000, None)
"""
SETTINGS = '[serve]\nstore = "file://{folder}/store"\n\n[retention]\nkeep = "7d"\n'
PAGE = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; display: inline-block; background: #fff }}
pre {{ margin: 0; padding: 14px 18px; font: 14px/1.35 "DejaVu Sans Mono", monospace; color: #1d2733 }}
.typed {{ color: #5b6775 }}
</style><pre><span class="typed">$ {typed}</span>
{output}</pre>"""
COLOURS = 32


def main() -> int:
    """Returns the exit code."""
    from playwright.sync_api import sync_playwright

    from services.chromium import find_chromium

    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        fill(folder)
        as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=as_root)
        page = browser.new_page(viewport={"width": 760, "height": 200}, device_scale_factor=2)
        for picture, words in COMMANDS.items():
            output = printed(["-m", "offloader", *words], folder).replace(str(folder), SHOWN)
            draw(page, picture, f"offloader {' '.join(words)}", output, folder)
        frames = printed(["-c", PROGRESS], folder).replace("\r", "\n").splitlines()
        bar = [each for each in frames if "26,000" in each][-1]
        draw(page, "terminal-progress", "offloader export parquet orders --dest file:///srv/shop/lake", bar, folder)
        browser.close()
    return 0


def draw(page: Page, picture: str, typed: str, output: str, folder: Path) -> None:
    """Writes one picture."""
    page.set_content(PAGE.format(typed=typed, output=marked(output)))
    page.locator("body").screenshot(path=folder / "page.png")
    with Image.open(folder / "page.png") as drawn:
        few = drawn.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        few.save(FOLDER / f"{picture}.png", optimize=True)


def fill(folder: Path) -> None:
    """A store with two streams, of which one is behind, and a settings file."""
    (folder / "offloader.toml").write_text(SETTINGS.format(folder=folder))
    store = offloader.open_store(f"file://{folder}/store")
    drawn = random.Random(1)  # noqa: S311 - payloads of a picture
    settings = Settings.of({"ledgers": {"ledger_entries_max": 5000}})
    for stream, entries in (("orders", 40_000), ("payments", 10_000)):
        name = f"shop/eu/persistent/{stream}"
        with store.stream(name).open_ledger(f"sqlite:///{folder}/ledgers.db", settings=settings) as ledger:
            for _ in range(entries // 1000):
                ledger.append_batch([drawn.randbytes(200) + b"." * 800 for _ in range(1000)])
            ledger.offload()


def printed(words: list[str], folder: Path) -> str:
    """The output of a Python program at a terminal of 80 columns."""
    end, terminal = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm-256color"}
    running = subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    output = b""
    with suppress(OSError):  # the program has ended
        while select.select([end], [], [])[0]:
            if not (piece := os.read(end, 65536)):
                break
            output += piece
    running.wait()
    os.close(end)
    return output.decode().replace("\r\n", "\n").rstrip()


def marked(output: str) -> str:
    """Terminal output as HTML; bold text and colours remain."""
    console = Console(record=True, width=200, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(output), soft_wrap=True)
    return console.export_html(inline_styles=True, code_format="{code}") or html.escape(output)


if __name__ == "__main__":
    sys.exit(main())

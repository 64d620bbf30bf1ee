"""Make the pictures of README from a real build: python site/pictures.py [FOLDER]

    docs/pictures/terminal.svg   what two commands print, recorded in a terminal
    docs/pictures/report.png     the head of the report that the first one writes, in Chromium

FOLDER keeps the artifact and the store; a second run in it is short. The target is an L4, so no
figure in the pictures depends on the load of this machine. It needs the packages of `dev`, and
Chromium (`make browser`).
"""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
ARTIFACT = "artifacts/house-numbers-l4-int8"
COMMANDS = (
    "optkit build --recipe house-numbers --target l4 --precision int8 --quiet",
    f"optkit explain {ARTIFACT}",
)
WIDTH = 92
FONTS = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)  # they are on a server elsewhere
PAGE = {"width": 1120, "height": 900}
COLORS = 128


def recorded(command: str, folder: Path) -> str:
    """What a command prints in a terminal."""
    master, end = pty.openpty()
    program = [sys.executable, "-c", "from optkit.cli import main; main()"]
    environment = {**os.environ, "COLUMNS": str(WIDTH), "TERM": "xterm-256color",
                   "PYTHONPATH": str(ROOT), "OPTKIT_CACHE": str(folder / "store")}  # fmt: skip
    child = subprocess.Popen(
        [*program, *shlex.split(command)[1:]], cwd=folder, env=environment, stdin=end, stdout=end,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(end)
    parts = []
    try:
        while part := os.read(master, 1 << 16):
            parts.append(part)
    except OSError:  # the other end is closed
        pass
    if child.wait():
        raise SystemExit(f"{command}: exit code {child.returncode}")
    return b"".join(parts).decode().replace("\r\n", "\n")


def terminal(folder: Path) -> str:
    """An SVG of the commands and what they print."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    for command in COMMANDS:
        console.print(Text("$ ", "bold green") + Text(command, "bold"))
        console.print(Text.from_ansi(recorded(command, folder)))
    return console.export_svg(
        title="optkit", theme=SVG_EXPORT_THEME, code_format=FONTS.sub("", CONSOLE_SVG_FORMAT),
        unique_id="optkit",
    )  # fmt: skip


def report(folder: Path) -> Image.Image:
    """The first screen of the report, in the light theme."""
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport=PAGE, color_scheme="light")
        page.goto((folder / ARTIFACT / "report.html").as_uri())
        taken = page.screenshot()
        browser.close()
    return Image.open(io.BytesIO(taken)).convert("RGB").quantize(COLORS)


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else scratch).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        (ROOT / "docs/pictures/terminal.svg").write_text(terminal(folder), encoding="utf-8")
        report(folder).save(ROOT / "docs/pictures/report.png", optimize=True)


if __name__ == "__main__":
    main()

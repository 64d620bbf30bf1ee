"""A terminal as a picture: what a command prints, when, and that as SVG, still or moving.

A moving picture is CSS keyframes: each line of text is there from one time to another. Whoever asks
for reduced motion sees the end. Nothing is loaded, and there is no script.
"""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import termios
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from optkit.facts.evidence import Evidence
from optkit.show.report.evidence_look import LOOKS

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 92  # columns
LINE, LETTER, TOP, SIDE = 19, 8.4, 44, 16  # pixels: of a line and a letter; around the text
SECONDS, HOLD = 30.0, 5.0  # of a moving picture, and of them on its end
PER_SECOND = 3  # pictures
GROUND, INK = "#161d25", "#e5eaf0"
Frame = tuple[float, tuple[str, ...]]


def _rgb(colour: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(colour[1:])
    return red, green, blue


def theme() -> TerminalTheme:
    """The colours of a terminal on which those of evidence are the ones of the dark pages."""
    looks = {known: _rgb(look.dark) for known, look in LOOKS.items()}
    red, yellow, gray = _rgb("#ff8a80"), _rgb("#f0b64a"), _rgb("#9ba8b6")
    green, blue = looks[Evidence.MEASURED], looks[Evidence.COMPILED]
    magenta, cyan = looks[Evidence.PREDICTED], looks[Evidence.SIMULATED]
    eight = [gray, red, green, yellow, blue, magenta, cyan, _rgb(INK)]
    return TerminalTheme(_rgb(GROUND), _rgb(INK), eight, eight)


@dataclass
class Screen:
    """The lines of a terminal, for what optkit and rich write to one."""

    lines: list[str] = field(default_factory=lambda: [""])
    at: int = 0
    fresh: bool = True  # the cursor is at the begin of its line

    def feed(self, text: str) -> None:
        for part in re.finditer(r"\x1b\[([0-9;?]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+", text):
            self._take(part[0], part[1] or "", part[2])

    def _take(self, said: str, number: str, what: str | None) -> None:
        if said == "\r":
            self.fresh = True
        elif said == "\n":
            self.at += 1
            self.lines += [""] * (self.at + 1 - len(self.lines))
        elif what == "A":
            self.at -= int(number or 1)
        elif what == "K":
            self.lines[self.at] = ""
        elif what is None or what == "m":
            self.lines[self.at] = said if self.fresh else self.lines[self.at] + said
            self.fresh = False
        elif what not in ("h", "l"):  # the cursor is hidden and shown
            raise SystemExit(f"a control sequence that this screen does not know: {said!r}")


def run(command: str, folder: Path, store: Path, *, quiet: bool = False) -> list[tuple[float, str]]:
    """What a command prints on a terminal: seconds since its begin, and text. `quiet`: its results
    only, without what is said on stderr."""
    master, end = pty.openpty()
    termios.tcsetwinsize(end, (40, WIDTH))
    program = [sys.executable, "-c", "from optkit.cli import main; main()"]
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {
        "TERM": "xterm-256color",
        "PYTHONPATH": str(ROOT),
        "OPTKIT_CACHE": str(store),
    }
    begin = time.monotonic()
    child = subprocess.Popen(
        [*program, *shlex.split(command)[1:]],
        cwd=folder,
        env=environment,
        stdin=end,
        stdout=end,
        stderr=subprocess.DEVNULL if quiet else end,
    )
    os.close(end)
    parts, text = [], b""
    try:
        while part := os.read(master, 1 << 16):
            text += part
            whole = text.decode(errors="ignore")  # a letter may come in two parts
            parts.append((time.monotonic() - begin, whole))
            text = text[len(whole.encode()) :]
    except OSError:  # the other end is closed
        pass
    os.close(master)
    if code := child.wait():
        raise SystemExit(f"{command}: exit code {code}\n{parts[-1:]}")
    return parts


def kept(file: Path, command: str, folder: Path, store: Path) -> list[tuple[float, str]]:
    """The parts of a run with an empty store, which `file` keeps."""
    if not file.exists() or json.loads(file.read_text())["command"] != command:
        shutil.rmtree(store, ignore_errors=True)
        parts = run(command, folder, store)
        file.write_text(json.dumps({"command": command, "parts": parts}))
    return [(seconds, text) for seconds, text in json.loads(file.read_text())["parts"]]


def frames(command: str, parts: Sequence[tuple[float, str]]) -> list[Frame]:
    """The lines at each time of a moving picture, from its begin to its end."""
    screen, prompt = Screen(), f"\x1b[1;32m$\x1b[0m \x1b[1m{command}\x1b[0m"
    whole = parts[-1][0] / (SECONDS - HOLD)
    found: list[Frame] = [(0.0, (prompt,))]
    for seconds, text in parts:
        screen.feed(text)
        at = seconds / whole
        if at - found[-1][0] >= 1 / PER_SECOND:
            found.append((at, (prompt, *screen.lines)))
    found.append((SECONDS - HOLD, (prompt, *screen.lines)))
    return found


def still(commands: Mapping[str, str]) -> list[Frame]:
    """One picture of commands and their outputs."""
    lines: list[str] = []
    for command, text in commands.items():
        screen = Screen()
        screen.feed(text)
        lines += [f"\x1b[1;32m$\x1b[0m \x1b[1m{command}\x1b[0m", *screen.lines]
    return [(0.0, tuple(lines))]


def _wrapped(lines: Iterable[str]) -> list[list[Segment]]:
    """Lines as a terminal folds them, in parts of one style."""
    console = Console(width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="256")
    whole = Text("\n").join(Text.from_ansi(line, overflow="fold") for line in lines)
    whole.overflow = "fold"
    return console.render_lines(whole, pad=False)


def _part(text: str, style: Style | None, colours: TerminalTheme) -> str:
    """Text with its colour and weight. Its spaces do not break."""
    look = ""
    if style is not None and style.color is not None and not style.color.is_default:
        look += f' fill="{style.color.get_truecolor(colours).hex}"'
    if style is not None and style.bold:
        look += ' font-weight="700"'
    told = escape(text, quote=False).replace(" ", "\xa0")
    return f"<tspan{look}>{told}</tspan>" if look else told


def _line(parts: Sequence[Segment], row: int, colours: TerminalTheme) -> str:
    """A line of the terminal; empty if nothing stands there."""
    whole = "".join(part.text for part in parts).rstrip()
    if not whole:
        return ""
    drawn, rest = "", len(whole)
    for text, style, _ in parts:
        shown = text[:rest]
        rest -= len(shown)
        drawn += _part(shown, style, colours) if shown.strip() else "\xa0" * len(shown)
    y, width = TOP + 15 + row * LINE, len(whole) * LETTER
    return f'<text x="{SIDE}" y="{y}" textLength="{width:.0f}">{drawn}</text>'


def svg(shown: Sequence[Frame], title: str, most: int | None = None) -> str:
    """The picture of a terminal with at most so many lines, which scroll."""
    colours = theme()
    spans: list[tuple[int, float, float, str]] = []  # row, begin, end, what is drawn
    open_rows: dict[int, tuple[float, str]] = {}
    heights: list[tuple[float, int]] = []
    for at, lines in [*shown, (SECONDS, ())]:
        rows = [_line(parts, row, colours) for row, parts in enumerate(_wrapped(lines))]
        while rows and not rows[-1]:
            rows.pop()
        if lines:
            heights.append((at, len(rows)))
        now = {row: text for row, text in enumerate(rows) if text}
        for row, (begin, text) in list(open_rows.items()):
            if now.get(row) != text:
                spans.append((row, begin, at, text))
                del open_rows[row]
        for row, text in now.items():
            open_rows.setdefault(row, (at, text))
    most = min(most or 10**6, max(height for _, height in heights))
    return _document(spans, heights, title, most)


def _document(
    spans: list[tuple[int, float, float, str]],
    heights: list[tuple[float, int]],
    title: str,
    most: int,
) -> str:
    names: dict[tuple[float, float], str] = {}
    drawn = []
    for _row, begin, end, text in sorted(spans, key=lambda span: (span[1], span[0])):
        gone = "" if end == SECONDS else ' class="g"'
        if (begin, end) == (0, SECONDS):
            drawn.append(text)
        else:
            name = names.setdefault((begin, end), f"k{len(names)}")
            drawn.append(f'<g{gone} style="animation-name:{name}">{text}</g>')
    moved = [
        (at, max(0, height - most))
        for before, (at, height) in zip([None, *heights], heights, strict=False)
        if before is None or before[1] != height
    ]
    width, height = round(2 * SIDE + WIDTH * LETTER), TOP + most * LINE + SIDE
    body = "\n".join(drawn)
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" \
aria-label="{escape(title)}">
<title>{escape(title)}</title>
<style>
svg {{ font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; \
fill: {INK}; }}
{_motion(names, moved)}</style>
<rect width="{width}" height="{height}" rx="10" fill="{GROUND}"/>
<circle cx="20" cy="20" r="6" fill="#ff5f57"/><circle cx="40" cy="20" r="6" fill="#febc2e"/>\
<circle cx="60" cy="20" r="6" fill="#28c840"/>
<text x="84" y="25" fill="#9ba8b6">{escape(title)}</text>
<clipPath id="c"><rect x="0" y="{TOP + 1}" width="{width}" height="{most * LINE + 4}"/></clipPath>
<g clip-path="url(#c)"><g id="s">
{body}
</g></g>
</svg>
"""


def _motion(names: Mapping[tuple[float, float], str], moved: Sequence[tuple[float, int]]) -> str:
    """The style of what moves; empty for a still picture."""
    if not names:
        return ""

    def percent(at: float) -> str:
        return f"{100 * at / SECONDS:.1f}%"

    rules = [f"g {{ animation: {SECONDS:g}s step-end infinite; }}", ".g { visibility: hidden; }"]
    for (begin, end), name in names.items():
        steps = {"0%": "hidden", percent(begin): "visible"}
        if end != SECONDS:
            steps[percent(end)] = "hidden"
        told = " ".join(f"{at} {{ visibility: {word}; }}" for at, word in steps.items())
        rules.append(f"@keyframes {name} {{ {told} }}")
    if moved[-1][1]:
        told = " ".join(f"{percent(at)} {{ {_up(by)} }}" for at, by in moved)
        rules += [f"#s {{ {_up(moved[-1][1])} animation-name: s; }}", f"@keyframes s {{ {told} }}"]
    rules.append("@media (prefers-reduced-motion: reduce) { g { animation: none !important; } }")
    return "\n".join(rules) + "\n"


def _up(lines: int) -> str:
    return f"transform: translateY({-lines * LINE}px);"

"""Steps in a notebook: one output of the cell, which is replaced while the steps run."""

from __future__ import annotations

import html
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from optkit.facts.printable import printable

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

_PAUSE = 0.25  # seconds between two drawings of the same steps


@dataclass
class _Running:
    label: str
    what: str = ""
    fraction: float = 0.0


class Notebook:
    """A listener that shows finished steps with their seconds, and running ones with a bar. The
    last state stays in the notebook. Each thread may run one step at the same time.

    It uses no widgets, so it needs no extension of the notebook. Colours are those of the page.
    """

    _STYLE: ClassVar[str] = "font:12px/1.6 ui-monospace,Menlo,Consolas,monospace;white-space:pre"

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._running: dict[int, _Running] = {}  # by thread
        self._hits = 0
        self._drawn = 0.0
        self._handle: DisplayHandle | None = None
        self._lock = threading.RLock()

    def start(self, step: str, label: str) -> None:
        with self._lock:
            self._running[threading.get_ident()] = _Running(label)
            self._draw()

    def progress(self, what: str, fraction: float) -> None:
        with self._lock:
            step = self._running.get(threading.get_ident())
            if step is not None:
                step.what, step.fraction = what, fraction
                if time.monotonic() - self._drawn > _PAUSE:
                    self._draw()

    def done(self, step: str, label: str, hit: bool, seconds: float) -> None:
        with self._lock:
            self._running.pop(threading.get_ident(), None)
            if hit:
                self._hits += 1
            else:
                self._lines.append(f"{seconds:8.1f} s  {label}")
            self._draw()

    def failed(self, step: str, label: str) -> None:
        with self._lock:
            if self._running.pop(threading.get_ident(), None) is not None:
                self._lines.append(f"    failed  {label}")
                self._draw()

    def note(self, text: str) -> None:
        with self._lock:
            self._lines.append(f"      note  {text}")
            self._draw()

    def _draw(self) -> None:
        from IPython.display import display

        data = {"text/html": self._html(), "text/plain": "\n".join(self._text())}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
        self._drawn = time.monotonic()

    def _text(self) -> list[str]:
        lines = [printable(line) for line in self._lines]
        if self._hits:
            lines.append(f"{self._hits:8}    {'step' if self._hits == 1 else 'steps'} in the store")
        return lines

    def _html(self) -> str:
        rows = [html.escape(line) for line in self._text()]
        for step in self._running.values():
            what = f"{step.label}: {step.what}" if step.what else step.label
            bar = f'<progress max="1" value="{step.fraction:.3f}" style="width:4.5em"></progress>'
            rows.append(f"{bar}  {html.escape(printable(what))}")
        return f'<div class="optkit-steps" style="{self._STYLE}">{"<br>".join(rows)}</div>'

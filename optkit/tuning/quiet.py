"""A listener that tells of a search as one line per trial, whatever steps a trial takes."""

from __future__ import annotations

import time

from optkit.execute.runner import Listener


class Quiet:
    """Passes on progress, and a note once; the steps' own lines stay out."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._notes: set[str] = set()
        self._label = ""
        self._started: float | None = None

    def begins(self, label: str) -> None:
        """A trial begins."""
        self._started = time.monotonic()
        self._listener.start("tune", label)

    def told(self, text: str) -> None:
        """The trial ended; without a beginning it was known already."""
        seconds = 0.0 if self._started is None else time.monotonic() - self._started
        self._listener.done("tune", text, self._started is None, seconds)
        self._started = None

    def start(self, step: str, label: str) -> None:
        self._label = label

    def progress(self, what: str, fraction: float) -> None:
        self._listener.progress(f"{self._label}, {what}", fraction)

    def done(self, step: str, label: str, hit: bool, seconds: float) -> None: ...

    def note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.add(text)
            self._listener.note(text)

"""A listener that reports a search as one line per trial, instead of one per step."""

from __future__ import annotations

import threading
import time

from optkit.ground.execute.runner import Listener


class _Trial(threading.local):
    """The trial that runs in this thread."""

    label = ""
    started: float | None = None


class Quiet:
    """Forwards progress, and each note once; leaves out the lines of steps. Several threads may
    each run a trial."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._notes: set[str] = set()
        self._own = _Trial()

    def begins(self, label: str) -> None:
        """A trial begins."""
        self._own.started = time.monotonic()
        self._listener.start("tune", label)

    def told(self, text: str) -> None:
        """The trial ended. If it did not begin, its outcome was in the store."""
        started, self._own.started = self._own.started, None
        seconds = 0.0 if started is None else time.monotonic() - started
        self._listener.done("tune", text, started is None, seconds)

    def start(self, step: str, label: str) -> None:
        self._own.label = label

    def progress(self, what: str, fraction: float) -> None:
        self._listener.progress(f"{self._own.label}, {what}", fraction)

    def done(self, step: str, label: str, hit: bool, seconds: float) -> None: ...

    def failed(self, step: str, label: str) -> None:
        """With its step, the trial ends."""
        self._listener.failed("tune", label)

    def note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.add(text)
            self._listener.note(text)

"""Steps as lines of text: live on a terminal, one after the other in a log file."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from optkit.facts.printable import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

# Seconds until the first line about a step that still runs in a log; each further wait is twice as
# long, but shorter than the ten minutes after which CI services end a job without output.
_SILENCE = 60
_LONGEST_SILENCE = 480


def stderr() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


class Terminal:
    """The listener of a runner. On a terminal it shows a live line per running step. Elsewhere it
    prints a plain line when a step ends. Only a step that runs for more than a minute, or does not
    end, has other lines. Each thread may run one step at the same time."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self._console: Console | None = None
        self._bar: Progress | None = None
        self._running: dict[int, _Running] = {}  # by thread
        self._lock = threading.RLock()

    @property
    def console(self) -> Console:
        if self._console is None:
            self._console = stderr()
        return self._console

    def start(self, step: str, label: str) -> None:
        if self.quiet:
            return
        with self._lock:
            running = _Running(label, time.monotonic(), _SILENCE)
            if self.console.is_terminal:
                if self._bar is None:
                    self._bar = _live_lines(self.console)
                running.task = self._bar.add_task(printable(label), total=None, pace="")
            else:
                running.timer = threading.Timer(_SILENCE, self._announce, [running])
                running.timer.daemon = True
                running.timer.start()
            self._running[threading.get_ident()] = running

    def _announce(self, step: _Running) -> None:
        """Print the line of a step that has not ended, unless it was printed before."""
        with self._lock:
            if step in self._running.values() and not step.announced:
                step.speak(time.monotonic())
                self._line(f"  ... {step.label}")

    def progress(self, what: str, fraction: float) -> None:
        with self._lock:
            step = self._running.get(threading.get_ident())
            if step is None:
                return
            now = time.monotonic()
            if step.first is None:
                # the first progress of a step that continues after a kill
                step.first = fraction, now
            done, since = step.first
            told = f"{fraction:.0%}"
            if not what.endswith(" left"):  # a step that counts samples reports its rate itself
                told += pace(fraction, fraction - done, now - since)
            if self._bar is not None and step.task is not None:
                shown = printable(f"{step.label}: {what}")
                self._bar.update(
                    step.task, total=1.0, completed=fraction, description=shown, pace=told
                )
            elif now - step.said > step.silence:
                step.speak(now)
                self._line(f"  ... {step.label}: {what}, {told}")

    def done(self, step: str, label: str, hit: bool, seconds: float) -> None:
        with self._lock:
            ended = self._running.pop(threading.get_ident(), None)
            if ended is not None and ended.timer is not None:
                ended.timer.cancel()
            if self._bar is not None and ended is not None and ended.task is not None:
                self._bar.remove_task(ended.task)
            if not self._running:
                self.close()
            if self.quiet or (hit and not self.verbose):
                return
            self._line(f"  {'hit' if hit else f'{seconds:.1f} s':>8}  {label}")

    def failed(self, step: str, label: str) -> None:
        with self._lock:
            running = self._running.get(threading.get_ident())
            if running is None:
                return
            if running.timer is not None:
                running.timer.cancel()
                self._announce(running)
            del self._running[threading.get_ident()]
            if self._bar is not None and running.task is not None:
                self._bar.remove_task(running.task)
            if not self._running:
                self.close()

    def note(self, text: str) -> None:
        self._line(f"  note: {text}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the live lines, if there are any. In a log, name the steps that did not end."""
        with self._lock:
            for step in self._running.values():
                if step.timer is not None:
                    step.timer.cancel()
                    self._announce(step)
            self._running.clear()
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def _line(self, text: str) -> None:
        self.console.print(printable(text), markup=False)


@dataclass(eq=False)
class _Running:
    """A running step. `said`: the time of its start or of its last line; `silence`: seconds from
    then to its next line; `announced`: whether it had a line; `task`: its live line; `first`: the
    time and the fraction of its first progress; `timer`: prints its first line."""

    label: str
    said: float
    silence: float
    announced: bool = False
    task: TaskID | None = None
    first: tuple[float, float] | None = None
    timer: threading.Timer | None = None

    def speak(self, now: float) -> None:
        """It has a line now."""
        self.silence = min(2 * self.silence, _LONGEST_SILENCE)
        self.announced, self.said = True, now


def pace(fraction: float, done: float, seconds: float) -> str:
    """Rate and remaining time of a step that did a share `done` in `seconds`, e.g. ", 2.1%/s, 27 s
    left"; empty if they cannot be estimated."""
    if done <= 0 or seconds <= 0:
        return ""
    rate = 100 * done / seconds
    fast = f"{rate:.1f}%/s" if rate >= 0.1 else f"{60 * rate:.1f}%/min"
    return f", {fast}, {_span(seconds * (1 - fraction) / done)} left"


def _span(seconds: float) -> str:
    """A time in seconds, or from one minute on as on a clock."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _live_lines(console: Console) -> Progress:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    step = TextColumn(
        "{task.description}",
        markup=False,
        table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
    )
    bar = Progress(
        SpinnerColumn(),
        step,
        BarColumn(bar_width=12),
        TextColumn("{task.fields[pace]}", table_column=Column(no_wrap=True)),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        expand=True,
        redirect_stdout=sys.stdout.isatty(),
    )
    bar.start()
    return bar

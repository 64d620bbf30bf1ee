"""The output of commands: progress on stderr, results on stdout, errors in three lines.

rich is loaded only if something is drawn; it follows NO_COLOR and TERM=dumb. Colour only repeats
what the text says. Control characters in foreign names never reach a terminal.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

from optkit.errors import OptkitError, StorageError, WorkerFailed
from optkit.report.figures import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

WIDTH = 80
_SILENCE = 10  # seconds between two lines about a running step


def stderr() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Output:
    """How a command prints: `json`: one object on stdout; `quiet`: no progress; `verbose`: cache
    hits, every rewritten node, logs and tracebacks."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False

    def terminal(self) -> Terminal:
        return Terminal(quiet=self.quiet, verbose=self.verbose)


class Terminal:
    """The listener of a runner. On a terminal it shows a live line per running step. Elsewhere it
    prints a plain line when a step ends, and before that only for a step that runs long or does not
    end. Each thread may run one step at the same time."""

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
            running = _Running(label, time.monotonic())
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
                step.announced, step.said = True, time.monotonic()
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
            elif now - step.said > _SILENCE:
                step.announced, step.said = True, now
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
    """A running step. `said`: the time of its start or of its last line; `announced`: whether it
    had a line; `task`: its live line; `first`: the time and the fraction of its first progress;
    `timer`: prints its first line."""

    label: str
    said: float
    announced: bool = False
    task: TaskID | None = None
    first: tuple[float, float] | None = None
    timer: threading.Timer | None = None


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

    step = TextColumn("{task.description}", markup=False,
                      table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))  # fmt: skip
    bar = Progress(
        SpinnerColumn(), step, BarColumn(bar_width=12),
        TextColumn("{task.fields[pace]}", table_column=Column(no_wrap=True)), TimeElapsedColumn(),
        console=console, transient=True, expand=True,
    )  # fmt: skip
    bar.start()
    return bar


def keep_stderr() -> None:
    """Let the command continue if stderr cannot be written: closed, full, or a broken pipe."""
    if not isinstance(sys.stderr, _Heedless):
        sys.stderr = _Heedless(sys.stderr)


class _Heedless:
    """A text stream that ignores failed writes, because no stream is left for a message."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream if stream is not None else io.StringIO()

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def keep_stdout() -> None:
    """Reserve stdout for results. Output of libraries, native code and child processes to
    descriptor 1 goes to stderr."""
    if not isinstance(sys.stdout, _Aside):
        sys.stdout = _Aside(_alone_on_its_descriptor(sys.stdout))


def _alone_on_its_descriptor(stdout: TextIO) -> TextIO:
    """The target of stdout under a new descriptor that no other code knows; descriptor 1 then leads
    to stderr. Returns `stdout` itself if it is not a stream of descriptor 1 (there is none, or a
    test captures it)."""
    try:
        if stdout.fileno() != 1:
            return stdout
        stdout.flush()
        apart = os.fdopen(os.dup(1), "w", encoding=stdout.encoding, errors=stdout.errors)
        os.dup2(2 if sys.__stderr__ is not None else os.open(os.devnull, os.O_WRONLY), 1)
    except (OSError, ValueError, AttributeError):
        return stdout
    return apart


class _Aside:
    """A replacement of stdout: only `put` writes to `results`, other output goes to stderr."""

    def __init__(self, results: TextIO) -> None:
        self.results = results

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.results, name)


def told_as(error: Exception, *, verbose: bool) -> OptkitError:
    """The error that the user sees. An exception that is not an OptkitError is reported as a bug,
    or as an error of the disk."""
    from optkit.store import storage_errors

    if isinstance(error, OptkitError):
        return error
    if verbose:
        sys.stderr.write("".join(traceback.format_exception(error)))
    if not isinstance(error, OSError):
        return OptkitError(
            f"{type(error).__name__}: {error}",
            hint="this is a bug in optkit; --verbose shows the traceback",
        )
    _settle_stdout()  # the logging itself may fail
    try:
        with storage_errors(Path("optkit")):
            raise error
    except StorageError as told:
        return told


def show_error(error: OptkitError, *, verbose: bool = False) -> None:
    """Print on stderr what is wrong, where, and what to do."""
    console = stderr()
    where = f"{error.where}: " if error.where else ""
    console.print("error:", style="bold red", end=" ")
    console.print(printable(f"{where}{error.message}"), markup=False)
    if error.hint:
        console.print("hint:", style="bold", end=" ")
        console.print(printable(error.hint), markup=False)
    if isinstance(error, WorkerFailed) and error.log.strip():
        lines = error.log.strip().splitlines()
        console.print("log:", style="bold")
        told = "\n".join(f"  {line}" for line in lines[-(len(lines) if verbose else 12) :])
        console.print(printable(told), markup=False)


def put_json(value: object) -> None:
    """Print one JSON object on stdout."""
    put(json.dumps(value, indent=2, ensure_ascii=False))


def put(text: str, end: str = "\n") -> None:
    """Print a result on stdout: unchanged into a pipe or a file, without control characters on a
    terminal. Raises StorageError if it cannot be written."""
    try:
        _stdout().write((printable(text) if _stdout().isatty() else text) + end)
        _stdout().flush()
    # a closed pipe, a full disk, or no descriptor 1
    except (OSError, ValueError, AttributeError) as error:
        _settle_stdout()
        reason = error.strerror if isinstance(error, OSError) else "it is closed"
        raise StorageError(
            f"the result could not be written: {reason}",
            where="stdout",
            hint="finished work is kept; run the same command with an open stdout",
        ) from error


def _stdout() -> TextIO:
    return sys.stdout.results if isinstance(sys.stdout, _Aside) else sys.stdout


def _settle_stdout() -> None:
    """After a failed write to stdout, do not try again when the process ends."""
    try:
        _stdout().flush()
    except (OSError, ValueError, AttributeError):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), _stdout().fileno())


def table(columns: list[str], rows: list[list[str]]) -> str:
    """Left-aligned columns as plain text, two spaces apart."""
    cells = [[printable(re.sub(r"\s", " ", cell)) for cell in row] for row in (columns, *rows)]
    widths = _widths(cells)
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in cells]
    return "\n".join(line.rstrip() for line in lines)


def folded(columns: list[str], rows: list[list[str]]) -> str:
    """A table of at most 80 columns. Columns that do not fit follow in a table below, which repeats
    the first column."""
    widths = _widths([columns, *rows])
    blocks: list[list[int]] = [[0]]
    for index in range(1, len(columns)):
        needed = sum(widths[i] + 2 for i in (*blocks[-1], index)) - 2
        if needed > WIDTH and len(blocks[-1]) > 1:
            blocks.append([0])
        blocks[-1].append(index)
    return "\n\n".join(
        table([columns[i] for i in block], [[row[i] for i in block] for row in rows])
        for block in blocks
    )


def _widths(cells: list[list[str]]) -> list[int]:
    return [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]

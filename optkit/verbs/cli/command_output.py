"""The output of commands: progress on stderr, results on stdout, errors in three lines.

rich is loaded only if something is drawn; it follows NO_COLOR and TERM=dumb. Colour only repeats
what the text says. Control characters in foreign names never reach a terminal.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from optkit.facts.codec import to_json
from optkit.facts.errors import OptkitError, StorageError, WorkerFailed
from optkit.facts.evidence import Evidence
from optkit.facts.printable import printable
from optkit.ground.progress.terminal import Terminal, stderr
from optkit.show.report.evidence_look import LOOKS

WIDTH = 80

_BEFORE = r"\(|, |  |engine |latency |accuracy |fidelity |figures "  # what leads to an evidence
_KNOWN = re.compile(f"(?:(?<={_BEFORE.replace('|', ')|(?<=')}))(?:{'|'.join(Evidence)})\\b")


@dataclass(frozen=True)
class Output:
    """How a command prints: `json`: one object on stdout; `quiet`: no progress; `verbose`: cache
    hits, every rewritten node, logs and tracebacks."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False

    def terminal(self) -> Terminal:
        return Terminal(quiet=self.quiet, verbose=self.verbose)


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
    from optkit.ground.store import storage_errors

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
    """Print one JSON object, or a document as one, on stdout."""
    put(json.dumps(to_json(value), indent=2, ensure_ascii=False))


def put(text: str, end: str = "\n", for_terminal: Callable[[str], str] = printable) -> None:
    """Print a result on stdout: unchanged into a pipe or a file, without control characters on a
    terminal. If the reader of a pipe has enough (`| head`), the command ends as it would have.
    Raises StorageError if it cannot be written otherwise."""
    try:
        _stdout().write((for_terminal(text) if _stdout().isatty() else text) + end)
        _stdout().flush()
    except BrokenPipeError:
        _settle_stdout()
    # a full disk, or no descriptor 1
    except (OSError, ValueError, AttributeError) as error:
        _settle_stdout()
        reason, hint = "it is closed", "run the same command with an open stdout"
        if isinstance(error, OSError):
            reason = str(error.strerror)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            hint = "free some space, then run the same command again"
        raise StorageError(
            f"the result could not be written: {reason}",
            where="stdout",
            hint=f"finished work is kept; {hint}",
        ) from error


def put_figures(text: str) -> None:
    """Print figures: on a terminal, the words for evidence have their colours where they say how a
    figure is known: in brackets, in a cell, or behind the name of a group of figures."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown")
    put(text, for_terminal=printable if plain else _coloured)


def _coloured(text: str) -> str:
    return _KNOWN.sub(
        lambda word: f"\x1b[{LOOKS[Evidence(word[0])].ansi}m{word[0]}\x1b[0m", printable(text)
    )


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

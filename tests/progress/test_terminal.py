"""Steps as lines on a terminal and in a log file."""

from __future__ import annotations

import io
import itertools
import re
import threading

import pytest
from rich.console import Console

from optkit.ground.progress import terminal


@pytest.mark.parametrize(
    ("fraction", "done", "seconds", "told"),
    [
        (0.0, 0.0, 5.0, ""),
        (0.43, 0.43, 20.0, ", 2.1%/s, 27 s left"),
        (0.5, 0.5, 60.0, ", 0.8%/s, 1:00 left"),
        (0.9, 0.1, 10.0, ", 1.0%/s, 10 s left"),  # the rest was there before
        (0.001, 0.001, 60.0, ", 0.1%/min, 16:39:00 left"),
    ],
)
def test_pace_tells_rate_and_time_left(
    fraction: float, done: float, seconds: float, told: str
) -> None:
    assert terminal.pace(fraction, done, seconds) == told


def told_by(ears: terminal.Terminal, tty: bool) -> str:
    """What two steps leave on a stream, one of which tells how far it is."""
    stream = io.StringIO()
    ears._console = Console(file=stream, force_terminal=tty, width=80, color_system=None)
    ears.start("calibrate", "calibrate \x1b]0;owned\x07")
    ears.progress("batch 1 of 4", 0.25)
    ears.progress("batch 3 of 4", 0.75)
    ears.progress("7 samples, 3/s, 9 s left", 0.8)
    ears.done("calibrate", "calibrate \x1b]0;owned\x07", False, 1.25)
    ears.close()
    return stream.getvalue()


def test_steps_are_plain_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=600)
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(clock))
    begun, pace, own, last = told_by(terminal.Terminal(), tty=False).splitlines()
    assert begun == "  ... calibrate \ufffd]0;owned\ufffd: batch 1 of 4, 25%"
    assert re.search(r"batch 3 of 4, 75%, [0-9.]+%/min, [0-9]+:00 left$", pace)
    assert own.endswith("7 samples, 3/s, 9 s left, 80%")
    assert last == "     1.2 s  calibrate \ufffd]0;owned\ufffd"
    assert told_by(terminal.Terminal(quiet=True), tty=False) == ""


def test_a_short_step_has_one_line_and_a_long_step_a_line_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ears, stream = terminal.Terminal(), io.StringIO()
    ears._console = Console(file=stream, width=80, color_system=None)
    ears.start("fuse", "fuse")
    ears.progress("rule 1 of 2", 0.5)
    ears.done("fuse", "fuse", False, 0.25)
    assert stream.getvalue() == "     0.2 s  fuse\n"
    monkeypatch.setattr(terminal, "_SILENCE", 0.01)
    ears.start("export", "export")
    timer = ears._running[threading.get_ident()].timer
    assert timer is not None
    timer.join()
    ears.done("export", "export", False, 12)
    assert stream.getvalue().splitlines()[1:] == ["  ... export", "    12.0 s  export"]


def test_the_lines_of_a_long_step_become_rare_but_never_cease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now)
    ears, stream = terminal.Terminal(), io.StringIO()
    ears._console = Console(file=stream, width=80, color_system=None)
    ears.start("tune", "tune")
    spoke = []
    for now in range(0, 3601, 5):
        before = stream.tell()
        ears.progress("trial", now / 4000)
        spoke += [now] if stream.tell() > before else []
    ears.done("tune", "tune", False, 3600)
    waits = [later - earlier for earlier, later in zip([0, *spoke], spoke, strict=False)]
    assert waits == sorted(waits) and 60 <= waits[0] < 70 and 480 <= waits[-1] < 600
    assert len(spoke) < 12


def test_a_log_names_the_step_that_failed() -> None:
    stream = io.StringIO()
    with terminal.Terminal() as ears:
        ears._console = Console(file=stream, width=80, color_system=None)
        ears.start("fuse", "fuse")
    ears.close()
    assert stream.getvalue() == "  ... fuse\n"


def test_a_terminal_gets_a_live_line_and_no_name_that_acts() -> None:
    told = told_by(terminal.Terminal(), tty=True)
    assert "\x1b]0" not in told and "\x07" not in told
    assert "calibrate" in told


def test_a_step_that_failed_leaves_no_live_line() -> None:
    ears, stream = terminal.Terminal(), io.StringIO()
    ears._console = Console(file=stream, force_terminal=True, width=80, color_system=None)
    ears.start("fuse", "fuse")
    bar = ears._bar
    assert bar is not None and bar.live.is_started
    ears.failed("fuse", "fuse")
    assert not bar.live.is_started and not ears._running
    ears.failed("fuse", "a step that did not start")

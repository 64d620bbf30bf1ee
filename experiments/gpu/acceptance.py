"""What an acceptance test is made of: checks with what they need and how long they may take, each
in a process of its own, the limits that judge their figures, and the exit code. No GPU is needed
here.

    passed    it ran, and its figures lie within the limits
    failed    they do not, or it raised, crashed, or ran out of its time
    skipped   this host lacks something, which the reason names
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from optkit.craft.benchmarking.intervals import wilson
from optkit.facts.measurement import Difference

SAME = 0.02  # how far the ratio of two equal sessions may lie from 1
SEEN = (0.85, 0.97)  # where the ratio lies when one of two sessions does 10 % more: 1 / 1.1 = 0.91
CLOSE = 0.05  # largest difference from the CPU's outputs over their largest value, of 16-bit floats
COVERED = 0.8  # least share of kernels inside the predictor's intervals, which claim nine of ten

Status = Literal["passed", "failed", "skipped"]
Need = Callable[[], str | None]  # what is missing, in words; None: it is here


@dataclass(frozen=True)
class Check:
    """`work` returns figures, or raises; `limit`: seconds."""

    name: str
    about: str
    limit: float
    needs: tuple[Need, ...]
    work: Callable[[], Mapping[str, Any]]

    def missing(self) -> str | None:
        """Why it cannot run here; None where it can."""
        return next((why for need in self.needs if (why := need()) is not None), None)


@dataclass(frozen=True)
class Outcome:
    check: str
    status: Status
    seconds: float = 0.0
    reason: str | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Beyond(Exception):
    """A figure lies beyond its limit. `figures`: all that were found."""

    def __init__(self, reason: str, figures: Mapping[str, Any]) -> None:
        super().__init__(reason)
        self.figures = dict(figures)


# ── running ────────────────────────────────────────────────────────────────────────────────────


def run(check: Check) -> Outcome:
    """In this process."""
    started = time.perf_counter()
    try:
        if (why := check.missing()) is not None:
            return Outcome(check.name, "skipped", reason=why)
        figures = dict(check.work())
    except Beyond as error:
        spent = time.perf_counter() - started
        return Outcome(check.name, "failed", spent, str(error), error.figures)
    except Exception as error:
        spent = time.perf_counter() - started
        return Outcome(check.name, "failed", spent, f"{type(error).__name__}: {error}")
    return Outcome(check.name, "passed", time.perf_counter() - started, figures=figures)


def run_apart(name: str, limit: float, command: Sequence[str], out: Path) -> Outcome:
    """In a process of its own, which writes an outcome to `out`: native code that crashes or hangs
    takes nothing else along."""
    started = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as child:
        try:
            told, _ = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            spent = time.perf_counter() - started
            return Outcome(name, "failed", spent, f"not done within {limit:.0f} s")
    if child.returncode == 0 and out.exists():
        return Outcome(**json.loads(out.read_text()))
    spent, last = time.perf_counter() - started, told.decode(errors="replace").strip()[-500:]
    return Outcome(name, "failed", spent, f"ended with {child.returncode}: {last}")


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """0: all that ran passed; 3: something failed; 4: nothing could run."""
    if any(one.status == "failed" for one in outcomes):
        return 3
    return 0 if any(one.status == "passed" for one in outcomes) else 4


# ── limits ─────────────────────────────────────────────────────────────────────────────────────


def same(found: Difference) -> dict[str, Any]:
    """Two equal sessions: the interval holds 1, or the ratio is too close to it to matter."""
    figures = asdict(found)
    if found.ci95 is None:
        raise Beyond("there is no interval", figures)
    if not found.ci95.low <= 1 <= found.ci95.high and abs(found.value - 1) > SAME:
        raise Beyond(f"two equal sessions differ by {found.value - 1:+.1%}", figures)
    return figures


def slower(found: Difference) -> dict[str, Any]:
    """One of two sessions does 10 % more: the interval tells, and the ratio is about right."""
    figures = asdict(found)
    if found.ci95 is None or not found.ci95.high < 1:
        raise Beyond("a slowdown of 10 % is not told from none", figures)
    low, high = SEEN
    if not low <= found.value <= high:
        raise Beyond(f"a slowdown of 10 % is seen as {found.value:.3f} times as fast", figures)
    return figures


def close(off: Mapping[str, float], figures: Mapping[str, Any]) -> dict[str, Any]:
    """`off`: output → largest difference from the CPU's over the largest value."""
    told = {**figures, "relative_difference": dict(off)}
    for name, value in off.items():
        if not value <= CLOSE:  # not a number, too
            raise Beyond(f"output {name!r} is {value:.3g} off the CPU's", told)
    return told


def covered(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`rows`: ms, predicted_ms, low_ms and high_ms of each kernel."""
    if not rows:
        raise Beyond("no kernel ran", {})
    inside = sum(row["low_ms"] <= row["ms"] <= row["high_ms"] for row in rows)
    errors = sorted(abs(row["predicted_ms"] / row["ms"] - 1) for row in rows)
    figures = {
        "kernels": len(rows),
        "inside": inside,
        "coverage": inside / len(rows),
        "ci95": list(wilson(inside, len(rows))),
        "median_error": errors[len(errors) // 2],
        "rows": list(rows),
    }
    if inside < COVERED * len(rows):
        raise Beyond(f"{inside} of {len(rows)} kernels lie inside their intervals", figures)
    return figures

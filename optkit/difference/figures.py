"""Figures of two builds: a difference is claimed only where the intervals of both allow it.

The interval of a difference of two figures that were found apart comes from theirs (MOVER, Zou &
Donner 2008; for two proportions that is Newcombe's 1998 method 10):

    low  = b - a - √((b - b_low)² + (a_high - a)²)
    high = b - a + √((b_high - b)² + (a - a_low)²)

For latencies the same of their logarithms, which gives the ratio. Accuracies on the same samples
are closer than that says: a drop judged in one build, sample by sample, sees more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import exp, hypot, log
from typing import Any

from optkit.difference.side import Side

Json = Mapping[str, Any]


def compare(a: Side, b: Side) -> list[dict[str, Any]]:
    """`figures` of optkit.diff/v1. `seen`: lower, higher, none (no difference seen) or unknown (not
    to be compared, see `note`) of what has an interval; equal or other of what is exact."""
    assert a.result is not None
    assert b.result is not None
    rows = [
        *_latencies(a, b),
        *_accuracies(a, b),
        *_exact(a.result, b.result),
    ]
    return [row for row in rows if row["a"]["value"] is not None or row["b"]["value"] is not None]


def _latencies(a: Side, b: Side) -> Iterator[dict[str, Any]]:
    before, after = _by_batch(a), _by_batch(b)
    for batch in sorted({*before, *after}):
        old, new = before.get(batch), after.get(batch)
        known = [_figure(one, "p50_ms", ("ci95_ms", "band")) for one in (old, new)]
        why = _elsewhere(a, b, old, new)
        yield _row(f"latency, batch {batch}", "ms", *known, change=_ratio, why=why)


def _by_batch(side: Side) -> dict[int, Json]:
    found = side.report["latencies"]["engine"] if side.report else [(side.result or {})["latency"]]
    return {one["batch"]: one for one in found if one}


_SHOWN = {"batch": "batch {}", "samples": "{} samples"}


def _apart(old: Json | None, new: Json | None, *keys: str) -> str | None:
    """Why two records say nothing about each other: their evidence differs, or one of `keys`."""
    if old is None or new is None:
        return "only one of the two"
    for key in ("evidence", *keys):
        if old[key] != new[key]:
            return " beside ".join(_SHOWN.get(key, "{}").format(one[key]) for one in (old, new))
    return None


def _elsewhere(a: Side, b: Side, old: Json | None, new: Json | None) -> str | None:
    """Why two latencies say nothing about each other."""
    apart = _apart(old, new, "batch")
    if apart is not None or old is None or new is None:
        return apart
    targets = [(side.result or {})["target"] for side in (a, b)]
    if targets[0] != targets[1]:
        return "on another target"
    machines = [_machine(side) for side in (a, b)]
    if all(machines) and machines[0] != machines[1]:
        return "on another machine"
    if old.get("marks") or new.get("marks"):
        return "measured under bad conditions"
    return None


def _machine(side: Side) -> Json | None:
    """The device of the machine that measured, where the report tells it; not the host's name, of
    which there may be many, nor the driver, which is software."""
    told = side.report["provenance"] if side.report else {}
    found = (told.get("finished") or told).get("machine")
    return found and {key: found[key] for key in found.keys() - {"gpus", "host"}}


def _accuracies(a: Side, b: Side) -> Iterator[dict[str, Any]]:
    old, new = (a.result or {})["accuracy"], (b.result or {})["accuracy"]
    why = _apart(old, new, "metric", "samples")
    if why is None and len({_samples(a), _samples(b)} - {None}) > 1:
        why = "on other samples"
    metric = (new or old or {}).get("metric", "accuracy")
    known = [_figure(one, "value", ("ci95",)) for one in (old, new)]
    yield _row(metric, None, *known, change=_difference, why=why)
    for name, unit, change in (("drop", None, _difference), ("speedup", "×", _ratio)):
        pair = [(side.result or {})[name] for side in (a, b)]
        timed = [(side.result or {})["latency"] for side in (a, b)]
        beneath = why if name == "drop" else _elsewhere(a, b, *timed)
        known = [_figure(one, "value", ("ci95",)) for one in pair]
        yield _row(name, unit, *known, change=change, why=_apart(*pair) or beneath)
    pair = [(side.result or {})["fidelity"] for side in (a, b)]
    known = [_figure(one, "sqnr_db", ("ci95",)) for one in pair]
    why = _apart(*pair, "reference", "samples")
    if why is None and None in (known[0]["value"], known[1]["value"]):
        why = "one of the two is bit-equal to its reference"
    yield _row("SQNR", "dB", *known, change=_difference, why=why)


def _samples(side: Side) -> str | None:
    """Digest of the samples that were scored, where it is known."""
    digest: str | None = side.data.get("evaluation", {}).get("digest")
    return digest


def _exact(a: Json, b: Json) -> Iterator[dict[str, Any]]:
    for name, unit, place in (
        ("engine size", "bytes", ("engine", "bytes")),
        ("fused layers", None, ("engine", "layers")),
        ("bytes between layers", "bytes", ("engine", "bytes_moved")),
        ("nodes planned", None, ("engine", "landing", "planned")),
        ("nodes landed", None, ("engine", "landing", "landed")),
        ("verdict", None, ("gate", "verdict")),
    ):
        known = []
        for side in (a, b):
            value: Any = side
            for key in place:
                value = value and value[key]
            engine = side["engine"] if name != "verdict" else None
            evidence = engine and engine["evidence"]
            known.append({"value": value, "interval": None, "evidence": evidence})
        seen = "equal" if known[0]["value"] == known[1]["value"] else "other"
        yield {"figure": name, "unit": unit, "a": known[0], "b": known[1], "change": None,
               "seen": seen, "note": None}  # fmt: skip


def _figure(record: Json | None, key: str, intervals: tuple[str, ...]) -> dict[str, Any]:
    if record is None:
        return {"value": None, "interval": None, "evidence": None}
    interval = next((record[name] for name in intervals if record.get(name)), None)
    return {"value": record[key], "interval": interval, "evidence": record["evidence"]}


def _row(
    figure: str,
    unit: str | None,
    a: Json,
    b: Json,
    *,
    change: Callable[[Json, Json], tuple[float, float, float] | None],
    why: str | None,
) -> dict[str, Any]:
    row = {"figure": figure, "unit": unit, "a": a, "b": b, "change": None, "seen": "unknown",
           "note": why}  # fmt: skip
    if why is not None:
        return row
    if not a["interval"] or not b["interval"]:
        return {**row, "note": "without an interval"}
    found = change(a, b)
    if found is None:
        return {**row, "note": "no ratio of such values"}
    value, low, high = found
    kind, neutral = ("ratio", 1.0) if change is _ratio else ("difference", 0.0)
    seen = "higher" if low > neutral else "lower" if high < neutral else "none"
    told = {"kind": kind, "value": value, "interval": [low, high]}
    return {**row, "change": told, "seen": seen}


def _difference(a: Json, b: Json) -> tuple[float, float, float]:
    """b - a with the ends of its interval."""
    x, y = a["value"], b["value"]
    (x_low, x_high), (y_low, y_high) = a["interval"], b["interval"]
    return y - x, y - x - hypot(y - y_low, x_high - x), y - x + hypot(y_high - y, x - x_low)


def _ratio(a: Json, b: Json) -> tuple[float, float, float] | None:
    """b / a with the ends of its interval; None where a logarithm does not exist, or
    the ratio is too large for a number."""
    if min(a["value"], b["value"], *a["interval"], *b["interval"]) <= 0:
        return None
    logs = [{"value": log(one["value"]), "interval": [log(end) for end in one["interval"]]}
            for one in (a, b)]  # fmt: skip
    try:
        value, low, high = map(exp, _difference(*logs))
    except OverflowError:
        return None
    return value, low, high

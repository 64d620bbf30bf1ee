"""The requests that a plan of serving is made for: drawn at random, or read from a file."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import floor, inf
from pathlib import Path
from typing import Any

import numpy as np

from optkit.facts.errors import InputRefused
from optkit.satellites.serving.token_lengths import TokenLengths

_COLUMNS = ("arrival", "prompt", "output")
_MOST = 10_000_000
_FORM = (
    "a CSV file with the columns arrival,prompt,output and perhaps prefix, or one JSON object with "
    "these keys per line"
)


@dataclass(frozen=True)
class Arrival:
    """A request. `at`: seconds from the start; `shared`: how many tokens at the start of its prompt
    all requests of the same `prefix` have in common."""

    at: float
    prompt: int
    new: int
    prefix: str = ""
    shared: int = 0


def poisson(
    rate: float,
    prompt: TokenLengths,
    new: TokenLengths,
    count: int,
    *,
    seed: int,
    shared: float = 0.0,
) -> list[Arrival]:
    """`count` requests at random moments, `rate` per second on average. `shared`: the share of a
    prompt that all prompts begin with."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / rate, count))
    prompts, answers = prompt.draw(rng, count), new.draw(rng, count)
    return [
        Arrival(float(at), int(read), int(written), "", floor(shared * int(read)))
        for at, read, written in zip(times, prompts, answers, strict=True)
    ]


def every(arrivals: Sequence[Arrival], step: float) -> list[Arrival]:
    """What one of `step` equal groups of devices gets: every `step`-th request, with the same
    distances between them as in the file on average."""
    count = max(1, floor(len(arrivals) / step))
    return [arrivals[floor(place * step)] for place in range(count)]


def faster(arrivals: Sequence[Arrival], factor: float) -> list[Arrival]:
    """The same requests at `factor` times the rate."""
    return [replace(one, at=one.at / factor) for one in arrivals]


def read_trace(path: Path, shared: float = 0.0) -> list[Arrival]:
    """The requests of a file, in the order of their arrival; the first one arrives at 0.

    Raises InputRefused for a file that cannot be read or has no requests, and for a line that is
    none, with its number."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputRefused(f"it cannot be read: {error}", where=f"--trace {path}") from error
    found = [
        _arrival(row, f"{path}, line {number}", shared) for number, row in _rows(text, str(path))
    ]
    if not found:
        raise InputRefused("it has no requests", where=f"--trace {path}", hint=f"it is {_FORM}")
    found.sort(key=lambda one: one.at)
    return [replace(one, at=one.at - found[0].at) for one in found]


def _rows(text: str, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The number of each line, and its values."""
    if not text.lstrip().startswith("{"):
        rows = csv.DictReader(text.splitlines(), skipinitialspace=True)
        missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
        if missing:
            raise InputRefused(
                f"no column {missing[0]!r}", where=f"{where}, line 1", hint=f"it is {_FORM}"
            )
        yield from ((rows.line_num, row) for row in rows)
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise InputRefused(
                    "no JSON object", where=f"{where}, line {number}", hint=f"it is {_FORM}"
                )
            yield number, row


def _arrival(row: dict[str, Any], where: str, shared: float) -> Arrival:
    values = []
    for name, least, most in zip(_COLUMNS, (0.0, 1.0, 1.0), (inf, _MOST, _MOST), strict=True):
        try:
            value = float(row.get(name, ""))
        except (TypeError, ValueError):
            value = -1.0
        if not least <= value <= most or value == inf:
            what = "seconds" if name == "arrival" else "a number of tokens"
            raise InputRefused(
                f"{name} is {str(row.get(name))[:40]!r}, not {what}",
                where=where,
                hint=f"it is {_FORM}",
            )
        values.append(value)
    at, prompt, new = values
    prefix = str(row.get("prefix") or "")
    return Arrival(at, int(prompt), int(new), prefix, floor(shared * prompt))

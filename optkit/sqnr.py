"""Which of several figures in dB is judged, and what it is called."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol, TypeVar


class _Decibels(Protocol):
    @property
    def sqnr_db(self) -> float | None: ...


class _Output(_Decibels, Protocol):
    @property
    def output(self) -> str: ...

    @property
    def part(self) -> str | None: ...


D = TypeVar("D", bound=_Decibels)


def worst(rows: Iterable[D]) -> D | None:
    """The first row with the least SQNR; None if no row has one."""
    known = ((row.sqnr_db, row) for row in rows if row.sqnr_db is not None)
    return min(known, key=lambda one: one[0], default=(0.0, None))[1]


def called(row: _Output) -> str:
    """`output 'pred', channels 4 to 8`."""
    return ", ".join(filter(None, (f"output {row.output!r}", row.part)))


def where(rows: Collection[_Output]) -> str:
    """The name of the worst row; empty where it says nothing, for a single row or none."""
    found = worst(rows) if len(rows) > 1 else None
    return "" if found is None else called(found)

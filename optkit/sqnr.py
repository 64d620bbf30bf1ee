"""Which of several figures in dB is judged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class _Decibels(Protocol):
    @property
    def sqnr_db(self) -> float | None: ...


D = TypeVar("D", bound=_Decibels)


def worst(rows: Iterable[D]) -> D | None:
    """The first row with the least SQNR; None if no row has one."""
    known = ((row.sqnr_db, row) for row in rows if row.sqnr_db is not None)
    return min(known, key=lambda one: one[0], default=(0.0, None))[1]

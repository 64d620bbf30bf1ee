"""One reason to doubt a set of samples. Workers import this module, so it has no pydantic."""

from __future__ import annotations

from dataclasses import dataclass

from optkit.facts.plain_record import Number, PlainRecord


@dataclass(frozen=True)
class DataFinding(PlainRecord):
    """A suspicious property of calibration data. `kind`: its short name; `what`: a sentence with
    the figures; `measured` and `expected`: the two numbers that contradict each other; `hint`: what
    to do."""

    kind: str
    input: str | None
    """Null if it concerns the whole set."""
    what: str
    measured: Number
    expected: Number | None
    hint: str

    def __str__(self) -> str:
        of = "" if self.input is None else f"input {self.input!r}: "
        return f"{of}{self.what}; {self.hint}"

"""One reason to doubt a set of samples."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Finding:
    """`kind`: its short name; `what`: a sentence with the figures; `measured` and `expected`: the
    two numbers that contradict each other (None: there is only one); `hint`: what to do."""

    kind: str
    input: str | None  # None: the finding is about the whole set
    what: str
    measured: float
    expected: float | None
    hint: str

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        of = "" if self.input is None else f"input {self.input!r}: "
        return f"{of}{self.what}; {self.hint}"

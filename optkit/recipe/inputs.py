"""Inputs as the steps get them: plain JSON, which a worker turns back into types of `tensors`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from optkit.tensors import AxisRange, TensorInfo


@dataclass(frozen=True)
class InputSpec:
    """One input of the model; `range` bounds random values (both ends included)."""

    info: TensorInfo
    range: tuple[float, float] | None = None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self.info), "shape": list(self.info.shape), "range": self.range}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        info = TensorInfo(row["name"], row["dtype"], tuple(row["shape"]))
        return cls(info, None if row["range"] is None else (row["range"][0], row["range"][1]))


def inputs_from_json(rows: Iterable[Mapping[str, Any]]) -> tuple[InputSpec, ...]:
    """Inputs as JSON."""
    return tuple(map(InputSpec.from_json, rows))


def axes_from_json(rows: Mapping[str, Mapping[str, int]]) -> dict[str, AxisRange]:
    """What `Recipe.to_json()["axes"]` holds."""
    return {name: AxisRange(**row) for name, row in rows.items()}

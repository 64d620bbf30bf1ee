"""An input of a model, in the form for steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self

from optkit.codec import from_json
from optkit.tensors import TensorInfo


@dataclass(frozen=True)
class InputSpec:
    """One input of the model; `range` bounds random values (both ends included)."""

    info: TensorInfo
    range: tuple[float, float] | None = None

    def to_json(self) -> dict[str, object]:
        return {**asdict(self.info), "shape": list(self.info.shape), "range": self.range}

    @classmethod
    def from_json(cls, row: Mapping[str, object]) -> Self:
        info = {name: value for name, value in row.items() if name != "range"}
        bounds = row.get("range")
        return cls(
            from_json(TensorInfo, info),
            None if bounds is None else from_json(tuple[float, float], bounds),
        )

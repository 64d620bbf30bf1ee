"""What a source hands on beside the graph: where it came from and how it was checked."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from optkit.runtime import TensorInfo


@dataclass(frozen=True)
class Check:
    """One comparison with the source: axis sizes, and the largest difference of each output (of
    integers and bools: the share that differs)."""

    sizes: dict[str, int]
    errors: dict[str, float]


@dataclass(frozen=True)
class ExportLog:
    """`opset` is read back from the graph. `checks` is empty for an `.onnx`, which is its own
    source; there `converted_from` tells the opset it had, None when it was kept."""

    source: Literal["python", "pt2", "onnx"]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    opset: int
    nodes: int
    checks: tuple[Check, ...] = ()
    converted_from: int | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

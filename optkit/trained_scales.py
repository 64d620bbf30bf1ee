"""The scales that a quantization-aware training has learned, as text in the metadata of a graph.

The graph itself is float: it has the trained weights under the names that an export gives. The
quantization of the graph takes these scales instead of those that statistics give.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Self, TypeVar

import numpy as np

from optkit.errors import InputRefused

T = TypeVar("T")

KEY = "optkit.trained_scales"
"""Of the metadata of a model."""


@dataclass(frozen=True)
class TrainedActivation:
    """Scale and zero point of a value, of rank 0."""

    scale: float
    zero_point: int


@dataclass(frozen=True)
class TrainedWeight:
    """The scale of the codes: one number, or one per output channel. `ratio` [channels]: what a Mul
    after the product applies; None: nothing."""

    scale: float | tuple[float, ...]
    ratio: tuple[float, ...] | None = None


@dataclass(frozen=True)
class TrainedScales:
    """Value → its scale, node → the scales of its weight, by their names in the fused graph. All
    numbers are float32. `target`, `precision`: for which they were trained."""

    target: str
    precision: str
    activations: Mapping[str, TrainedActivation] = field(default_factory=dict)
    weights: Mapping[str, TrainedWeight] = field(default_factory=dict)

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> Self | None:
        """Those of a graph with this metadata; None if it was not trained so. Raises InputRefused
        for other text than `text` returns."""
        text = metadata.get(KEY)
        if text is None:
            return None
        try:
            data = json.loads(text)
            return cls(
                str(data["target"]),
                str(data["precision"]),
                {name: TrainedActivation(_positive(row["scale"]), int(row["zero_point"]))
                 for name, row in data["activations"].items()},
                {name: _weight(**row) for name, row in data["weights"].items()},
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputRefused(
                f"its trained scales cannot be read: {type(error).__name__}: {error}",
                where=f"metadata {KEY}",
                hint="export the model again with optkit.qat",
            ) from error

    def text(self) -> str:
        """JSON. A float32 as decimal digits is the same number when it is read."""
        return json.dumps(asdict(self), sort_keys=True)

    def activation(self, value: str) -> TrainedActivation:
        """Raises InputRefused for a value that was not quantized in the training."""
        return self._known(self.activations, value, "tensor")

    def weight(self, node: str, shape: tuple[int, ...]) -> TrainedWeight:
        """Raises InputRefused for a node that was not quantized in the training, or with scales of
        another shape."""
        found = self._known(self.weights, node, "node")
        size = np.shape(found.scale if found.ratio is None else found.ratio)
        if size != shape:
            raise self._other(f"node {node!r}", f"its trained scales are {size}, not {shape}")
        return found

    def check_all_used(self, values: Collection[str], nodes: Collection[str]) -> None:
        """Raise InputRefused if something was quantized in the training and is not quantized
        now."""
        left = [f"tensor {name!r}" for name in self.activations if name not in values]
        left += [f"node {name!r}" for name in self.weights if name not in nodes]
        if left:
            raise self._other(left[0], "it was quantized in the training, and is in float now")

    def _known(self, scales: Mapping[str, T], name: str, kind: str) -> T:
        if name not in scales:
            raise self._other(f"{kind} {name!r}", "it has no trained scale")
        return scales[name]

    def _other(self, where: str, problem: str) -> InputRefused:
        return InputRefused(
            problem,
            where=where,
            hint=f"the scales were trained for {self.target} in {self.precision}: build for it, "
            "with the recipe of the training and the same version of torch",
        )


def _weight(scale: float | list[float], ratio: list[float] | None) -> TrainedWeight:
    numbers = tuple(map(_positive, scale)) if isinstance(scale, list) else _positive(scale)
    return TrainedWeight(numbers, None if ratio is None else tuple(map(_positive, ratio)))


def _positive(number: float) -> float:
    """The number, which a scale of float32 can be. Raises ValueError for another one."""
    scale = float(np.float32(number))
    if not 0 < scale < np.inf:
        raise ValueError(f"{number} is no scale")
    return scale

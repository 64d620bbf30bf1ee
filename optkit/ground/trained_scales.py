"""The scales that a quantization-aware training has learned, as text in the metadata of a graph.

The graph itself is float: it has the trained weights under the names that an export gives. The
quantization of the graph takes these scales instead of those that statistics give.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self, TypeVar

import numpy as np

from optkit.facts.errors import InputRefused

T = TypeVar("T")

KEY = "optkit.trained_scales"
"""Of the metadata of a model."""


@dataclass(frozen=True)
class TrainedActivation:
    """Scale and zero point of a value, of rank 0."""

    scale: float
    zero_point: int


@dataclass(frozen=True)
class BlockScales:
    """One scale per block of a weight, `shape` = (channels, blocks): float32, little-endian, row
    by row, in base64, because there are many. A scale may be negative."""

    shape: tuple[int, int]
    base64: str

    @classmethod
    def of(cls, scales: np.ndarray) -> Self:
        """`scales` [channels, blocks]"""
        channels, blocks = scales.shape
        return cls((channels, blocks), b64encode(scales.astype("<f4").tobytes()).decode())

    def array(self) -> np.ndarray:
        """float32 [channels, blocks]. Raises ValueError for other text than `of` writes."""
        numbers = np.frombuffer(b64decode(self.base64, validate=True), "<f4")
        return numbers.reshape(self.shape).astype(np.float32)


@dataclass(frozen=True)
class TrainedWeight:
    """The scale of the codes: one number, or one per output channel or per block. `ratio`
    [channels]: what a Mul after the product applies; None: nothing."""

    scale: float | tuple[float, ...] | BlockScales
    ratio: tuple[float, ...] | None = None

    @property
    def numbers(self) -> np.ndarray:
        """`scale` as float32: rank 0, [channels] or [channels, blocks]"""
        if isinstance(self.scale, BlockScales):
            return self.scale.array()
        return np.asarray(self.scale, np.float32)


@dataclass(frozen=True)
class TrainedScales:
    """Value → its scale, node → the scales of its weight, by their names in the fused graph. All
    numbers are float32. `target`, `precision`: for which they were trained. `adapters`: modules
    whose products were trained in floats beside quantized ones, and stay in float."""

    target: str
    precision: str
    activations: Mapping[str, TrainedActivation] = field(default_factory=dict)
    weights: Mapping[str, TrainedWeight] = field(default_factory=dict)
    adapters: tuple[str, ...] = ()

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
                {
                    name: TrainedActivation(_positive(row["scale"]), int(row["zero_point"]))
                    for name, row in data["activations"].items()
                },
                {name: _weight(**row) for name, row in data["weights"].items()},
                tuple(map(str, data.get("adapters", ()))),
            )
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
        size = found.numbers.shape if found.ratio is None else np.shape(found.ratio)
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


def _weight(
    scale: float | list[float] | dict[str, Any], ratio: list[float] | None
) -> TrainedWeight:
    ratios = None if ratio is None else tuple(map(_positive, ratio))
    if isinstance(scale, dict):
        return TrainedWeight(_blocks(**scale), ratios)
    numbers = tuple(map(_positive, scale)) if isinstance(scale, list) else _positive(scale)
    return TrainedWeight(numbers, ratios)


def _blocks(shape: list[int], base64: str) -> BlockScales:
    """Raises ValueError for numbers that are no scales."""
    channels, blocks = shape
    found = BlockScales((int(channels), int(blocks)), str(base64))
    numbers = found.array()
    if min(found.shape) < 1 or not np.isfinite(numbers).all() or not numbers.all():
        raise ValueError("a number is no scale")
    return found


def _positive(number: float) -> float:
    """The number, which a scale of float32 can be. Raises ValueError for another one."""
    scale = float(np.float32(number))
    if not 0 < scale < np.inf:
        raise ValueError(f"{number} is no scale")
    return scale

"""A constant weight in the layout that its node reads."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.numerics import scales
from optkit.craft.quantization.numerics.scales import Scale
from optkit.craft.quantization.placement import weighted_nodes
from optkit.facts.dtypes import FLOATS
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import NumberFormat

MATRIX = ("MatMul", "Gemm")


class ReadWeight(NamedTuple):
    """The weight of `node`, the axes that its scales may have, and its bias. `split`: one scalar
    scale before the node, and the ratios of the channels after it."""

    node: ir.Node
    name: str
    numbers: np.ndarray  # float32, holding what the carrier holds
    format: NumberFormat
    rules: PlacementRules
    axis: int | None
    split: bool
    bias: np.ndarray | None
    scale: Scale = Scale(np.ones((), np.float32), np.zeros((), np.int8), 0)

    @property
    def key(self) -> tuple[str, int | None, bytes, NumberFormat]:
        """Weights with the same key have the same codes."""
        return self.name, self.axis, self.scale.scale.tobytes(), self.format

    @property
    def live(self) -> np.ndarray:
        """bool [channels]: those that are not all zero."""
        others = tuple(d for d in range(self.numbers.ndim) if d != self.axis)
        return np.asarray(self.numbers.any(axis=others))

    @property
    def is_matrix(self) -> bool:
        return self.node.op_type in MATRIX

    @property
    def in_blocks(self) -> bool:
        return self.format.granularity == "block"

    @property
    def can_be_solved(self) -> bool:
        return self.is_matrix and scales.scalable(self.numbers)

    @property
    def by_columns(self) -> np.ndarray:
        """[K, N]"""
        return _by_columns(self.node, self.numbers)

    def as_read(self, codes: np.ndarray) -> np.ndarray:
        """Codes [K, N] in the layout of the node."""
        return np.ascontiguousarray(_by_columns(self.node, codes))

    def scale_as_read(self) -> Scale:
        """The scale in the layout of the node: blocks are found along the first axis."""
        if not self.in_blocks or weighted_nodes.summed_axis(self.node) == 0:
            return self.scale
        zero = self.scale.zero_point
        return self.scale._replace(
            scale=self.scale.scale.T, zero_point=zero.T if zero.ndim else zero
        )


def matrix(node: ir.Node) -> np.ndarray:
    """The weight of a MatMul or Gemm as [K, N]: K the summed axis, N the output channels."""
    return _by_columns(node, weighted_nodes.weight(node))


def _by_columns(node: ir.Node, weight: np.ndarray) -> np.ndarray:
    return weight if weighted_nodes.summed_axis(node) == 0 else weight.T


def held(numbers: np.ndarray, carrier: np.dtype) -> np.ndarray:
    """The weight after the cast: rounded to the carrier, or in FP32 if it is beyond the carrier's
    range."""
    if float(np.abs(numbers).max(initial=0.0)) > FLOATS[carrier.name].largest:
        return numbers.astype(np.float32)
    return numbers.astype(carrier).astype(np.float32)

"""The matrices of experts as the graph of an artifact has them.

QMoE, MoE   all matrices of a mixture; the rows of gate and up alternate
MatMul      of the matrices that a lookup finds for each token, where the rule `experts` of the
            `ort` form declined, and for a GPU
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.ort.expert_matrices import ExpertLookup
from optkit.craft.quantization.qdq import nbits
from optkit.craft.quantization.qdq.codes import Codes
from optkit.ground import graph

_STACKS = {"QMoE": ((2, 3), (5, 6)), "MoE": ((2, None), (4, None))}  # weight, scales
MIXTURES = tuple(_STACKS)


@dataclass(frozen=True)
class StoredExperts:
    """The matrices of all experts for one of the two products of a mixture.

    weight  floats [E, N, K]; codes uint8 [E, N, K · bits / 8]
    scales  float [E, N, K / block] of codes
    bits    None: floats
    order   of the rows N: "plain"; "paired": gate and up alternate; "last": floats [E, K, N]
    """

    weight: ir.Value
    scales: ir.Value | None
    bits: int | None
    block: int
    order: Literal["plain", "paired", "last"]

    @property
    def shape(self) -> tuple[int, int, int]:
        """E, N and K."""
        assert self.weight.shape is not None
        count, rows, width = self.weight.shape.numpy()
        if self.order == "last":
            return count, width, rows
        return count, rows, width if self.bits is None else width * 8 // self.bits

    def read(self, expert: int, rows: slice) -> Codes | np.ndarray:
        """These rows of an expert's matrix, gate before up: [N, K]."""
        index: slice | np.ndarray = rows
        if self.order == "paired":
            index = np.arange(self.shape[1]).reshape(-1, 2).T.reshape(-1)[rows]
        weight = self._numbers(self.weight)[expert]
        if self.bits is None:
            return np.ascontiguousarray((weight.T if self.order == "last" else weight)[index])
        scales = self._numbers(self.scales)[expert][index]
        zeros = np.full(scales.shape, 1 << self.bits - 1, np.uint8)
        return Codes(nbits.unpack(weight[index], self.bits), scales, zeros, self.block, self.bits)

    @staticmethod
    def _numbers(value: ir.Value | None) -> np.ndarray:
        numbers = graph.array(value)
        assert numbers is not None
        return numbers


def stored_experts(node: ir.Node) -> list[StoredExperts]:
    """Of both products of a mixture, or of one product; empty for other nodes."""
    number = node.attributes.get_int
    found = []
    for at, (weight, scales) in enumerate(_STACKS.get(node.op_type, ())):
        stack, of_codes = node.inputs[weight], None if scales is None else node.inputs[scales]
        bits = None if of_codes is None else number("expert_weight_bits", 4)
        assert stack is not None
        block, first = number("block_size", 0), at == 0
        found.append(StoredExperts(stack, of_codes, bits, block, "paired" if first else "plain"))
    for place, value in enumerate(node.inputs[:2] if node.op_type == "MatMul" else ()):
        looked_up = ExpertLookup.of(value, turned=place == 1)
        if looked_up is not None:
            stack, _, of_codes, turned, bits, block = looked_up
            order: Literal["plain", "last"] = "last" if turned else "plain"
            found.append(StoredExperts(stack, of_codes, bits, block, order))
    return found

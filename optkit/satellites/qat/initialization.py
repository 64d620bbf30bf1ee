"""The start of a training: the codes and biases that the build without a training has.

GPTQ gives a weight a code c that need not be the nearest one, because it compensates the error of
other weights. Fake quantization rounds to nearest, so the weight becomes the number nearest to it
with this code (`WeightQuantizer.nearest_of`). Biases become the corrected ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import Module

from optkit.craft.quantization.placement import weighted_nodes
from optkit.craft.quantization.qdq import weight_reader
from optkit.facts.dtypes import BY_SHORT
from optkit.ground import graph
from optkit.satellites.qat.fake_quantization import WeightQuantizer
from optkit.satellites.qat.products import Product
from optkit.satellites.qat.quantization_plan import QuantizationPlan


@dataclass(frozen=True)
class WeightStart:
    """`codes`: of the weight, as numbers of the grid, in its shape. `taken`: whether the module has
    them; a weight that other modules share stays as it is. `bias`: a correction for which the
    module has no bias; None: there is none."""

    codes: Tensor
    taken: bool
    bias: Tensor | None


def initialize(model: Module, plan: QuantizationPlan) -> Mapping[str, WeightStart]:
    """Give the products of the module the codes and biases of the Q/DQ graph. Returns node → what
    the graph has."""
    written, fused = plan.written(), graph.load(plan.fused)
    nodes, floats = ({str(node.name): node for node in found.graph} for found in (written, fused))
    dtype = np.dtype(BY_SHORT[plan.carrier].name)
    readers = Counter(id(x) for part in model.modules() for x in part.parameters(recurse=False))
    starts = {}
    for product in model.modules():
        if not isinstance(product, Product):
            continue
        if not isinstance(product.weight_quantizer, WeightQuantizer):
            continue
        name, weight = product.weight_quantizer.node, product.weight
        numbers = torch.from_numpy(weight_reader.grid_numbers(nodes[name])).to(weight.device)
        codes = numbers.reshape(weight.shape)
        taken = readers[id(weight)] == 1
        if taken:
            product.start_from(codes)
        change = _correction(written, nodes[name], floats[name], dtype)
        correction = None if change is None else torch.from_numpy(change).to(weight.device)
        left = correction is not None and not product.correct(correction)
        starts[name] = WeightStart(codes, taken, correction if left else None)
    return starts


def _correction(
    written: ir.Model, node: ir.Node, fused: ir.Node, dtype: np.dtype
) -> np.ndarray | None:
    """float32 [channels]: what the quantization adds to the bias, which the graph has in this
    dtype; None: nothing. By the names that `qdq.writer` gives."""
    constants = written.graph.initializers
    before = weighted_nodes.bias(fused)
    if (steps := constants.get(f"{node.name}_bias_quantized")) is not None:
        codes, scale = graph.array(steps), graph.array(constants[f"{node.name}_bias_scale"])
        assert codes is not None and scale is not None
        return _change(codes * scale.astype(np.float64), before)
    if (behind := constants.get(f"{node.name}_channel_bias")) is not None:
        return _change(graph.array(behind), before, dtype)
    if (joined := constants.get(f"{node.name}_bias")) is None:
        return None
    if before is None:  # the constant of an Add after the node
        assert fused.graph is not None
        (use,) = joined.uses()
        add = next(other for other in fused.graph if other.name == use.node.name)
        before = graph.array(add.inputs[use.idx])
    return _change(graph.array(joined), before, dtype)


def _change(
    after: np.ndarray | None, before: np.ndarray | None, dtype: np.dtype | type = np.float32
) -> np.ndarray:
    """What is between two biases, of which the first was rounded to the dtype."""
    assert after is not None
    numbers = after.astype(np.float64).reshape(-1)
    if before is not None:
        numbers -= before.reshape(-1).astype(dtype)
    return numbers.astype(np.float32)

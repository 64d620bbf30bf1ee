"""Whether a prepared module computes what its graph does."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from optkit.craft.sources import torch_module, wrappers
from optkit.craft.sources.outputs import leaves
from optkit.facts.errors import InputRefused
from optkit.facts.tensors import Feed
from optkit.ground import graph
from optkit.ground.runtimes import SessionOptions, simulator
from optkit.road.jobs.batches import Batch
from optkit.road.steps.file_names import GRAPH
from optkit.satellites.qat.calls import call
from optkit.satellites.qat.fake_quantization import ActivationQuantizer, CodeGrid, WeightQuantizer
from optkit.satellites.qat.initialization import WeightStart
from optkit.satellites.qat.quantization_plan import QuantizationPlan, QuantizedValue

_FOLDING = 1e-3  # of the largest output: folding rounds in float32
# A number near the middle between two codes gets one of them in torch and its neighbour in ONNX
# Runtime, because sums round in another order. A graph for a GPU also has its constants in FP16:
# each moves a number of 127 steps by 0.06 of a step at most and 0.03 on average, and so many of the
# codes; those before a product are a bias or a gain, or both (in our tests 0.3 % of the codes).
# Quantized graphs have no other carrier.
_OTHER_CODES = {"fp32": 0.01, "fp16": 0.05}
_MOVED = 2.0**-11
"""By what part of the largest number the others may move: codes of E4M3 are denser near 0."""
_LEAST_SQNR = 30.0  # dB


def results(model: Module, example_inputs: Batch) -> list[np.ndarray]:
    """The tensors that the module returns, in the mode that it has."""
    with torch.no_grad():
        returned = call(model, example_inputs)
    tensors = [leaf for leaf in leaves(returned).values() if isinstance(leaf, Tensor)]
    return [np.asarray(tensor.float().cpu()) for tensor in tensors]


def alike(before: Sequence[np.ndarray], after: Sequence[np.ndarray]) -> bool:
    """Whether outputs differ by no more than folding BatchNorm may change them."""
    return all(
        np.abs(x - y).max(initial=0.0) <= _FOLDING * np.abs(x).max(initial=0.0)
        for x, y in zip(before, after, strict=True)
    )


def check_same(
    model: Module, example_inputs: Batch, plan: QuantizationPlan, starts: Mapping[str, WeightStart]
) -> None:
    """Raise InputRefused if a quantized value, a weight or an output of the prepared module is not
    that of the Q/DQ graph. Each quantizer passes on the numbers of the graph, so each layer is
    compared alone: in a deep network, few other codes of one layer change many codes of the last.
    `starts`: node → what the module took from the graph."""
    where = type(model).__name__
    expected, outputs = _run(plan, torch_module.named(model, example_inputs))
    of_graph = {value.value: expected[value.dequantized] for value in plan.values}
    quantized: dict[str, np.ndarray] = {}

    def keep(quantizer: Module, inputs: object, output: Tensor) -> Tensor:
        found = np.asarray(output.float().clone().cpu())
        quantized[str(quantizer.value)] = found
        same = of_graph[str(quantizer.value)]
        # a copy, because the module may change it in place
        return torch.tensor(same).to(output) if same.shape == found.shape else output

    def as_in_graph(quantizer: Any, inputs: Any, output: Any) -> tuple[Tensor, Tensor | None]:
        start = starts[quantizer.node]
        weight, bias = output
        same = quantizer.values_of(start.codes, *inputs)
        if start.taken and not torch.equal(weight, same):
            raise _differs(f"codes of the weight of {quantizer.node!r} are others", where)
        return same, bias if start.bias is None else start.bias

    hooks = [
        part.register_forward_hook(keep if isinstance(part, ActivationQuantizer) else as_in_graph)
        for part in model.modules()
        if isinstance(part, ActivationQuantizer)
        or (isinstance(part, WeightQuantizer) and part.node in starts)
    ]
    try:
        with wrappers.evaluating(model):
            computed = results(model, example_inputs)
    finally:
        for hook in hooks:
            hook.remove()
    for value in plan.values:
        if value.value not in quantized:
            raise _differs(f"{value.value!r} is never quantized in it", where)
        share, far = _other_codes(value, quantized[value.value], of_graph[value.value])
        if share > _OTHER_CODES[plan.carrier]:
            raise _differs(f"{share:.0%} of the codes of {value.value!r} are others", where)
        if far:
            how = f"{far} codes of {value.value!r} are more than one step from those of the graph"
            raise _differs(how, where)
    for x, y in zip(outputs, computed, strict=True):
        if (found := sqnr(x, y)) < _LEAST_SQNR:
            raise _differs(f"{found:.1f} dB of an output are the same", where)


def sqnr(x: np.ndarray, y: np.ndarray) -> float:
    """The power of x over that of y - x, in dB."""
    signal, noise = (float(np.square(a, dtype=np.float64).sum()) for a in (x, y - x))
    return float("inf") if noise == 0 else 10 * float(np.log10(signal / noise))


def _run(plan: QuantizationPlan, feed: Feed) -> tuple[Feed, list[np.ndarray]]:
    """The dequantized values and the outputs of the graph."""
    model = plan.written()
    names = {value.dequantized for value in plan.values}
    ends = [output.name for output in model.graph.outputs]
    model.graph.outputs.extend(
        value
        for node in model.graph
        for value in node.outputs
        if value.name in names and value.name not in ends
    )
    with tempfile.TemporaryDirectory() as folder:
        graph.save(model, Path(folder) / GRAPH)
        with simulator().session(Path(folder) / GRAPH, SessionOptions(1, level="none")) as session:
            found = session.run(feed)
    return found, [found[str(name)] for name in ends]


def _other_codes(
    value: QuantizedValue, computed: np.ndarray, expected: np.ndarray
) -> tuple[float, int]:
    """The share of other codes, and how many of them are no neighbours. A quantizer before a Relu
    has negative numbers too. 0 for another shape: the graph selects before the layer what the
    module selects after it."""
    if computed.shape != expected.shape:
        return 0.0, 0
    if value.made_by is not None and expected.min(initial=0.0) >= 0:
        computed = np.maximum(computed, 0.0)
    grid = CodeGrid.of(value.format, value.zero_point)
    ours, theirs = (grid.nearest(torch.tensor(x) / value.scale) for x in (computed, expected))
    below, above = grid.neighbours(theirs)
    other = (ours != theirs) & ((ours - theirs).abs() > _MOVED * grid.high)
    far = other & (ours != below) & (ours != above)
    return float(other.float().mean()), int(far.sum())


def _differs(how: str, where: str) -> InputRefused:
    return InputRefused(
        f"the prepared module differs from the quantized graph: {how}",
        where=where,
        hint="the code of the module computes the value where qat does not see it; leave the layer "
        "that reads it in float, with `quantization.nodes` of the recipe",
    )

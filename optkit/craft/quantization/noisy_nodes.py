"""Which products need finer activations than one scale for all, by the outputs of the model.

The noise of a product says little about the outputs: in a sentence encoder (all-mpnet-base-v2) the
inputs of the attention's projections with 38 dB cost more than those of its output projections with
34 dB. So each activation alone is rounded in the float graph, where an input of the graph switches
it:

    x ──┬── Q ── DQ ──► Where(switch) ──► MatMul, Gemm, Conv
        └─────────────►

The noises of activations that are rounded one at a time add up, if their errors are independent
(Lin, Talathi, Annapureddy, ICML 2016; see `benchmarking.sensitivity`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.numerics.qparams import ActivationQParams
from optkit.craft.quantization.placement.islands import float_results, slower_in_floats
from optkit.craft.quantization.placement.product_forms import Products, products
from optkit.craft.quantization.placement.qdq_placement import QdqPlacement, Rules, tail
from optkit.craft.quantization.placement.read_weight import MATRIX
from optkit.craft.quantization.placement.weighted_nodes import known_dtype
from optkit.facts.assignment import Assignment
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import Precision
from optkit.ground import graph
from optkit.ground.statistics import Statistics

SWITCHES = "noisy_nodes.switches"
"""The input of the graph, bool [activations]: whether each is rounded."""


@dataclass(frozen=True)
class RoundedActivation:
    """An activation, and the nodes that multiply it. `products`: theirs; None: they cannot have
    finer activations. `maker`: the integer convolution whose result it is; in floats it rounds no
    result. `slower`: nanoseconds per sample that the convolution then takes longer; None: integers
    are made of this result too."""

    nodes: tuple[str, ...]
    products: Products | None
    maker: str | None = None
    slower: float | None = None


def two_terms(
    activations: Iterable[tuple[QdqPlacement, ActivationQParams]], sizes: Mapping[str, int]
) -> list[RoundedActivation]:
    """Those that have two terms, because one leaves too much noise in their products. `sizes`: of
    named axes."""
    found = []
    for placement, numbers in activations:
        if numbers.rest is not None:
            nodes = [node for node, index in placement.readers if _multiplies(node, index)]
            names = tuple(str(node.name) for node in nodes)
            found.append(RoundedActivation(names, products(placement.value, nodes, sizes)))
    return found


def insert_switches(
    model: ir.Model,
    activations: Iterable[tuple[QdqPlacement, ActivationQParams]],
    assignment: Assignment,
    rules: Rules,
    sizes: Mapping[str, int],
    statistics: Statistics | None = None,
) -> list[RoundedActivation]:
    """Let the graph, in place, round each activation that `SWITCHES` says, in this order. Those of
    two terms, and formats with scales computed at run time, are left out. `sizes`: of named
    axes."""
    planned = assignment.quantized()
    results = _results(model, planned, rules, statistics)
    names = graph.FreeNames(model)
    switches = ir.Value(name=SWITCHES, type=ir.TensorType(ir.DataType.BOOL))
    found: list[RoundedActivation] = []
    for placement, numbers in activations:
        if numbers.rest is not None or numbers.format.granularity == "block":
            continue
        readers = [node for node, index in placement.readers if index == 0 and node.name in planned]
        able = len(readers) == len(placement.readers) and all(
            _multiplies(node) and _can_be_finer(rules[planned[str(node.name)]]) for node in readers
        )
        read = products(placement.value, readers, sizes) if able else None
        maker, slower = results.get(placement.value, (None, None))
        nodes = tuple(str(node.name) for node in readers)
        found.append(RoundedActivation(nodes, read, maker, None if readers else slower))
        _insert(model.graph, placement, numbers, switches, len(found) - 1, names)
    switches.shape = ir.Shape([len(found)])
    model.graph.inputs.append(switches)
    return found


def _results(
    model: ir.Model, planned: Mapping[str, Precision], rules: Rules, statistics: Statistics | None
) -> dict[ir.Value, tuple[str, float | None]]:
    """What integer convolutions round, with `maker` and `slower` of RoundedActivation."""
    integer = {name for name, own in planned.items() if "Conv" in rules[own].quantize_outputs}
    for_floats, found = float_results(model, integer), {}
    for node in model.graph:
        if node.name in integer:
            name, value = str(node.name), tail(node)
            speeds = rules[planned[name]].kernels
            alone = value in for_floats
            found[value] = name, slower_in_floats(node, speeds, statistics) if alone else None
    return found


def _can_be_finer(rules: PlacementRules) -> bool:
    """What finer activations gain beside weights of 7 bits was not measured."""
    return rules.two_term and rules.weight.limit_bits is None


def _multiplies(node: ir.Node, index: int = 0) -> bool:
    return index == 0 and node.op_type in MATRIX


def _insert(
    owner: ir.Graph,
    placement: QdqPlacement,
    numbers: ActivationQParams,
    switches: ir.Value,
    index: int,
    names: graph.FreeNames,
) -> None:
    value, name = placement.value, str(placement.value.name)
    scale = numbers.scale.scale.astype(known_dtype(value).numpy())

    def constant(what: str, number: np.ndarray) -> ir.Value:
        return graph.add_constant(owner, names.value(f"{name}_{what}"), number)

    def node(op: str, inputs: Sequence[ir.Value], what: str) -> ir.Node:
        made = ir.node(op, inputs, name=names.node(f"{name}_{what}"))
        made.outputs[0].name = names.value(f"{name}_{what}")
        return made

    s, z = constant("scale", scale), constant("zero_point", numbers.scale.zero_point)
    quantize = node("QuantizeLinear", [value, s, z], "quantized")
    dequantize = node("DequantizeLinear", [quantize.outputs[0], s, z], "dequantized")
    at = constant("index", np.asarray(index, np.int64))
    switch = node("Gather", [switches, at], "switch")
    choose = node("Where", [switch.outputs[0], dequantize.outputs[0], value], "rounded")
    nodes = [quantize, dequantize, switch, choose]
    producer = value.producer()
    if producer is None:
        owner.insert_before(owner[0], nodes)
    else:
        owner.insert_after(producer, nodes)
    for reader, position in placement.readers:
        reader.replace_input_with(position, choose.outputs[0])


def chosen(
    noises: Sequence[float], costs: Sequence[float], together: float, allowed: float
) -> list[int]:
    """The indices of the activations that must be finer, in their order: as little time as the
    order of noise per time finds, until the noise of the rest is at most `allowed`.

    noises: of each activation alone, relative to the outputs' power; costs: nanoseconds that finer
    products take longer; together: the noise of all of them at once, of which each has
    the share that it has of the sum.
    """
    total = sum(noises)
    if together <= allowed or not total:
        return []
    shares = [together * noise / total for noise in noises]
    order = sorted(range(len(noises)), key=lambda at: shares[at] / max(costs[at], 1), reverse=True)
    left, found = together, []
    for at in order:
        if left <= allowed:
            break
        left -= shares[at]
        found.append(at)
    for at in list(found):  # those that a later, larger one has made unnecessary
        if left + shares[at] <= allowed:
            left += shares[at]
            found.remove(at)
    return sorted(found)

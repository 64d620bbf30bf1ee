"""Which nodes get which precision, by the rules of the backend that runs them. Nothing here changes
the graph."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from math import prod

import onnx_ir as ir

from optkit.craft.quantization.placement import weighted_nodes
from optkit.craft.quantization.placement.block_size import fitting_block
from optkit.craft.quantization.placement.expert_formats import expert_block
from optkit.craft.quantization.placement.islands import MARGIN, Island, between_codes, islands, pays
from optkit.craft.quantization.placement.output_layers import (
    averages_bins,
    last_layers,
    output_layers,
)
from optkit.craft.quantization.placement.qdq_placement import tail
from optkit.craft.quantization.placement.recurrent_cells import cell_precisions
from optkit.facts.assignment import Assignment, Scheme
from optkit.facts.dtypes import FLOATS
from optkit.facts.errors import InputRefused
from optkit.facts.node_names import module_of
from optkit.facts.placement import KernelSpeeds, PlacementRules
from optkit.facts.precisions import PRECISIONS, NumberFormat, Precision
from optkit.ground import graph
from optkit.ground.statistics import Statistics

_LEAST_CODES = 64  # of an integer activation, on its wider side
_FOLDABLE = ("Transpose", "Identity", "Cast")


def assign(
    model: ir.Model,
    scheme: Scheme,
    statistics: Statistics | None = None,
    overrides: Mapping[str, Precision] | None = None,
    adapters: Collection[str] = (),
) -> Assignment:
    """Assign a precision to every Conv, ConvTranspose, MatMul and Gemm with a constant weight.

    A node gets the precision of the last matching pattern in `overrides` (node name with `*` and
    `?` → precision), else the precision that its rules give to last layers, else that of the
    scheme; or, with the reason, the carrier. If the precision of last layers has no rules in the
    scheme, these layers get the scheme's. A node stays in float if it reads a value that has no
    range in `statistics`, if its module is one of `adapters`, or if it is in a body of If, Loop or
    Scan.

    Raises InputRefused if all products of the model are in such bodies, and if a pattern matches
    none of the products.
    """
    precision, rules, overrides = scheme.precision, scheme.rules, overrides or {}
    unbounded = {} if statistics is None else statistics.unbounded()
    last, predicting = last_layers(model), output_layers(model)
    at_the_end = _of_last_layers(scheme)
    nodes: dict[str, Precision] = {}
    reasons: dict[str, str] = {}
    for node in model.graph:
        weight = graph.constant_weight(node)
        if weight is None:
            continue
        name = str(node.name)
        wanted = _wanted(name, at_the_end if node in last else precision, overrides)
        reason = _why_float(node, weight, wanted, rules, predicting, unbounded)
        if module_of(name) in adapters:
            reason = "it is part of an adapter, which was trained in floats"
        if reason is None and statistics is not None and rules[wanted].activation is not None:
            reason = _why_too_small(node, rules[wanted].activation, statistics, scheme)
        nodes[name] = scheme.unquantized if reason else wanted
        if reason:
            reasons[name] = reason
    if not nodes and precision.quantized:
        _refuse_bodies(model)
    of_cells, why_cells = cell_precisions(model, scheme, lambda name: _named(name, overrides))
    _refuse_unmatched(overrides, [*nodes, *_stacked(model), *of_cells])
    floats = _slow_in_integers(model, nodes, rules, overrides, statistics)
    floats |= dict.fromkeys(_in_bodies(model), "it is in a body of If, Loop or Scan")
    of_experts, why = _experts(model, scheme, overrides)
    return Assignment(
        nodes | dict.fromkeys(floats, scheme.unquantized) | of_experts | of_cells,
        reasons | floats | why | why_cells,
        frozenset(of_experts),
        frozenset(of_cells),
    )


def _experts(
    model: ir.Model, scheme: Scheme, overrides: Mapping[str, Precision]
) -> tuple[dict[str, Precision], dict[str, str]]:
    """The precisions of the products of experts, and the reasons of those in float. Their kernels
    round activations themselves, so only weights have codes."""
    nodes: dict[str, Precision] = {}
    reasons: dict[str, str] = {}
    for node in model.graph:
        stack = graph.stack_of(node)
        if stack is None:
            continue
        name = str(node.name)
        wanted = _wanted(name, scheme.precision, overrides)
        fmt = scheme.rules[wanted].experts if wanted in scheme.rules else None
        if not wanted.quantized:
            reasons[name] = f"{wanted} quantizes nothing"
        elif fmt is None:
            reasons[name] = f"the matrices of experts have no {wanted} kernel in this backend"
        elif stack.stored.dtype != ir.DataType.FLOAT:
            reasons[name] = "the matrices of its experts are no plain float32 tensor"
        elif expert_block(stack, fmt) is None:
            reasons[name] = f"no block size fits: none divides its {stack.sizes[2]} summed channels"
        whole = wanted if wanted.weight_codes_only else PRECISIONS["int8-weight-only"]
        nodes[name] = scheme.unquantized if name in reasons else whole
    return nodes, reasons


def _of_last_layers(scheme: Scheme) -> Precision:
    """The precision of last layers, if it has rules."""
    own = scheme.rules.get(scheme.precision)
    named = None if own is None else own.last
    return scheme.precision if named is None or named not in scheme.rules else named


def _stacked(model: ir.Model) -> list[str]:
    """The products of experts, by name."""
    return [str(node.name) for node in model.graph if graph.stack_of(node) is not None]


def _in_bodies(model: ir.Model) -> list[str]:
    """The products in subgraphs, by name."""
    inner = (node for node in model.graph.all_nodes() if node.graph is not model.graph)
    return [str(node.name) for node in inner if graph.constant_weight(node) is not None]


def _slow_in_integers(
    model: ir.Model,
    nodes: Mapping[str, Precision],
    rules: Mapping[Precision, PlacementRules],
    overrides: Collection[str],
    statistics: Statistics | None,
) -> dict[str, str]:
    """Convolutions that are faster in float because of what is around them, with the reason:
    depthwise ones beside float operators, and those whose island is too small to pay for its
    borders (not if the recipe names one of them)."""
    wanted = {name: rules[each] for name, each in nodes.items() if each.quantized}
    convolutions = [
        node
        for node in model.graph
        if node.name in wanted and node.op_type in wanted[node.name].quantize_outputs
    ]
    integer = [str(node.name) for node in convolutions]
    joining = {
        str(node.name)
        for node in convolutions
        if wanted[str(node.name)].depthwise_conv == "between" and weighted_nodes.is_depthwise(node)
    }
    beside = joining - between_codes(model, integer, joining)
    found = dict.fromkeys(beside, "depthwise: beside float operators, float is as fast")

    def too_small() -> Iterator[tuple[Island, KernelSpeeds]]:
        left = [name for name in integer if name not in found]
        for island in islands(model, left, statistics):
            speeds = wanted[island.nodes[0]].kernels
            named = any(fnmatchcase(node, each) for node in island.nodes for each in overrides)
            if speeds is not None and not named and not pays(island, speeds):
                yield island, speeds

    costly = "depthwise: in integers it costs what its neighbours gain"
    for island, _ in too_small():
        found |= dict.fromkeys(joining.intersection(island.nodes), costly)
    for island, speeds in too_small():
        found |= dict.fromkeys(island.nodes, _why(island, speeds))
    return found


def _why(island: Island, speeds: KernelSpeeds) -> str:
    """Why the island stays in float."""
    return (
        "the borders to floats cost more than integers save: "
        f"its island of {len(island.nodes)} would save {_told(island.saved(speeds))} in integers "
        f"and lose {_told(island.spent(speeds))} at its borders, per sample on one core with the "
        f"kernels of {speeds.source}; it must save {MARGIN} times what it loses"
    )


def _told(ms: float) -> str:
    return f"{1000 * ms:.0f} µs" if abs(ms) < 1 else f"{ms:.1f} ms"


def _refuse_bodies(model: ir.Model) -> None:
    """Refuse a model all of whose products are in bodies of If and Loop. Raises InputRefused."""
    bodies = _in_bodies(model)
    if not bodies:
        return
    deciding = [
        name for name, argument in graph.arguments(model).items() if argument.role == "condition"
    ]
    message = f"all its {len(bodies)} products are in bodies of If or Loop, which stay in float"
    if not deciding:
        hint = "export the model without the If or Loop"
        raise InputRefused(message, where=f"node {bodies[0]!r}", hint=hint)
    name = deciding[0]
    value = next(value for value in model.graph.inputs if value.name == name)
    dtype = value.dtype.numpy().name if value.dtype is not None else "int64"
    raise InputRefused(
        f"it chooses a branch of an If, and {message}",
        where=f"input {name!r}",
        hint="make it a constant of the model, so that one branch remains; in Python, with your "
        "MODEL and the VALUE that you use:\n"
        f"import numpy as np, onnx; m = onnx.load('MODEL.onnx'); i = m.graph.input; "
        f"i.remove(next(x for x in i if x.name == {name!r})); m.graph.initializer.append("
        f"onnx.numpy_helper.from_array(np.array(VALUE, {dtype!r}), {name!r})); "
        "onnx.save(m, 'MODEL-one.onnx')",
    )


def _refuse_unmatched(overrides: Collection[str], names: Collection[str]) -> None:
    """Refuse a pattern that changes nothing, which is probably misspelt. Raises InputRefused."""
    for pattern in overrides:
        if names and not any(fnmatchcase(name, pattern) for name in names):
            near = get_close_matches(pattern.strip("*"), names, cutoff=0) or sorted(names)[:3]
            raise InputRefused(
                f"no product or convolution with weights has a name that matches {pattern!r}",
                where="quantization.nodes",
                hint=f"the graph has {len(names)}, such as {', '.join(near)}",
            )


def _wanted(name: str, precision: Precision, overrides: Mapping[str, Precision]) -> Precision:
    return _named(name, overrides) or precision


def _named(name: str, overrides: Mapping[str, Precision]) -> Precision | None:
    matching = [chosen for pattern, chosen in overrides.items() if fnmatchcase(name, pattern)]
    return matching[-1] if matching else None


def _why_float(
    node: ir.Node,
    weight: tuple[int, ir.Value],
    precision: Precision,
    rules: Mapping[Precision, PlacementRules],
    predicting: frozenset[ir.Node],
    unbounded: Mapping[str, str],
) -> str | None:
    """The first reason against quantizing the node, or None."""
    if not precision.quantized:
        return f"{precision} quantizes nothing"
    wanted = rules[precision]
    reason = _why_not_its_operator(node, weight, wanted)
    if reason is None and wanted.activation is not None:
        reason = _why_not_its_values(node, wanted, predicting, unbounded)
    return reason


def _why_not_its_operator(
    node: ir.Node, weight: tuple[int, ir.Value], rules: PlacementRules
) -> str | None:
    index, constant = weight
    op = node.op_type
    if weighted_nodes.multiplies_outliers(node):
        return "it multiplies the outlier channels of its activation"
    if op in rules.excluded:
        return rules.excluded[op]
    if op not in rules.ops:
        return f"{op} has no {rules.weight.dtype} kernel in this backend"
    if index == 0:
        return "the constant is the left operand: its scale would lie along the summed axis"
    if not _is_typed(node):
        return "the type of what it reads or makes is not known: a foreign operator is before it"
    if not _is_plain(node.inputs[index], constant):
        return "its weight is quantized already or not a plain float tensor"
    if (reason := _why_not_its_form(node, constant, rules)) is not None:
        return reason
    if rules.weight.block_size is not None and fitting_block(node, rules) is None:
        return f"no block size fits: none divides its {weighted_nodes.summed(node)} summed channels"
    return None


def _why_not_its_form(node: ir.Node, weight: ir.Value, rules: PlacementRules) -> str | None:
    match node.op_type:
        case "Gemm" if not _is_plain_gemm(node):
            return "Gemm with transA, alpha or beta has no integer kernel"
        case "MatMul" if weight.shape is not None and len(weight.shape) != 2:
            return "the weight is not a matrix: one scale per column would mix different matrices"
        case "Conv":
            return _why_not_its_kernel(node, weight, rules)
        case _:
            return None


def _why_not_its_kernel(node: ir.Node, weight: ir.Value, rules: PlacementRules) -> str | None:
    if _is_thin(node, weight, rules):
        return f"fewer than {rules.min_conv_channels} input channels: {rules.thin_conv}"
    if not rules.grouped_conv and node.attributes.get_int("group", 1) > 1:
        return "a convolution in groups has no kernel of this precision"
    if rules.depthwise_conv == "nowhere" and weighted_nodes.is_depthwise(node):
        return "depthwise: float is as fast, and one scale for all channels loses the small ones"
    if rules.max_kernel is not None and _kernel(weight) > rules.max_kernel:
        return (
            f"its kernel is too large: {_kernel(weight)} elements, {rules.max_kernel} are the most"
        )
    if not rules.biased_1d_to_one and _is_biased_1d_to_one(node, weight):
        return "the compiler fails with a 1-D convolution to one output channel that has a bias"
    return None


def _why_not_its_values(
    node: ir.Node,
    rules: PlacementRules,
    predicting: frozenset[ir.Node],
    unbounded: Mapping[str, str],
) -> str | None:
    op = node.op_type
    assert node.inputs[0] is not None
    activation = str(weighted_nodes.uncast(node.inputs[0]).name)
    if activation in unbounded:
        return f"what it reads has no range: {activation}: {unbounded[activation]}"
    if op in rules.integer_bias and weighted_nodes.loose_bias(node):
        return "its bias is not one constant per output channel, as an integer kernel needs"
    at_the_end = (rules.float_output and node in predicting) or tail(node).is_graph_output()
    if op in rules.quantize_outputs and at_the_end:
        return "its result is a model output, and an integer kernel would leave 8 bits of it"
    if rules.float_output and averages_bins(node):
        return "it averages the bins of a distribution, and few of 256 codes describe small ones"
    return None


def _why_too_small(
    node: ir.Node, fmt: NumberFormat | None, statistics: Statistics, scheme: Scheme
) -> str | None:
    """A scale is at least the smallest normal number of the carrier, because kernels divide by it.
    An activation that reaches less than half of the codes of this scale stays in float. Codes of
    floating point formats have no fixed steps, and lose nothing."""
    assert node.inputs[0] is not None
    name = str(weighted_nodes.uncast(node.inputs[0]).name)
    value = statistics.values.get(name)
    if fmt is None or not fmt.is_integer or value is None or value.unbounded is not None:
        return None
    smallest = FLOATS[scheme.dtype.name].smallest
    reach = max(-value.low, value.high, 0.0)
    if not 0 < reach < _LEAST_CODES * smallest:
        return None
    return (
        f"what it reads is too small for a scale: {name} reaches {reach:.1e}, and the smallest "
        f"{scheme.carrier} scale is {smallest:.1e}"
    )


def _is_typed(node: ir.Node) -> bool:
    ends = (node.inputs[0], node.outputs[0])
    return all(value is not None and value.dtype is not None for value in ends)


def _is_plain(value: ir.Value | None, constant: ir.Value) -> bool:
    """Whether only layout operators and float casts are between the stored float tensor and the
    node."""
    while value is not None and value is not constant:
        producer = value.producer()
        if producer is None or producer.op_type not in _FOLDABLE:
            return False
        value = producer.inputs[0]
    return constant.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def _is_plain_gemm(node: ir.Node) -> bool:
    attributes = node.attributes
    return (
        attributes.get_int("transA", 0) == 0
        and attributes.get_float("alpha", 1.0) == 1.0
        and (not weighted_nodes.has_bias(node) or attributes.get_float("beta", 1.0) == 1.0)
    )


def _is_thin(node: ir.Node, weight: ir.Value, rules: PlacementRules) -> bool:
    """Whether a convolution has too few input channels to be faster in integers."""
    assert weight.shape is not None
    channels = int(weight.shape.numpy()[1]) * node.attributes.get_int("group", 1)
    return channels < rules.min_conv_channels


def _is_biased_1d_to_one(node: ir.Node, weight: ir.Value) -> bool:
    assert weight.shape is not None
    shape = weight.shape.numpy()
    return shape[0] == 1 and len(shape) == 3 and weighted_nodes.has_bias(node)


def _kernel(weight: ir.Value) -> int:
    assert weight.shape is not None
    return prod(weight.shape.numpy()[2:])

"""What holds for every format and every graph: nothing is further from its code than half the step
there, and Q/DQ is all that quantizing adds.

(That shards merge bit-equal in any order: tests/statistics/test_statistics.py, tests/calibration.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from optkit.craft.quantization.choose_qparams import choose_qparams
from optkit.craft.quantization.numerics.format_codes import NF4
from optkit.craft.quantization.numerics.qparams import QParams
from optkit.craft.quantization.numerics.scales import (
    Scale,
    activation_scale,
    dequantize,
    expand,
    quantize,
    weight_scale,
)
from optkit.craft.quantization.placement import weighted_nodes
from optkit.craft.quantization.placement.assign import assign
from optkit.craft.quantization.placement.qdq_placement import qdq_placements
from optkit.craft.quantization.qdq.insertion import apply, taps
from optkit.craft.quantization.rounding.rtn import round_to_nearest
from optkit.facts.assignment import Assignment, Scheme
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import PRECISIONS, Codes, Granularity, NumberFormat, Precision
from optkit.ground import graph
from optkit.ground.devices import target
from optkit.ground.recipe import Quantization
from optkit.ground.runtimes import backend
from optkit.ground.statistics import Statistics
from tests.networks import NETWORKS, feed, network
from tests.quantization.workshop import INT8, Workshop

DTYPES: tuple[Codes, ...] = (
    "int8", "uint8", "int4", "uint4", "float8e4m3fn", "float4e2m1", "nf4",
)  # fmt: skip
GRANULARITIES: tuple[Granularity, ...] = ("tensor", "channel", "block")
CARRIERS = (np.float16, np.float32, ml_dtypes.bfloat16)
NUMBERS = st.floats(-1e4, 1e4, width=32)
WEIGHTS = hnp.arrays(np.float32, st.tuples(st.integers(1, 50), st.integers(1, 5)), elements=NUMBERS)


def scheme(dtype: Codes, granularity: Granularity) -> NumberFormat:
    size = 16 if granularity == "block" else None
    return NumberFormat(dtype, granularity, not dtype.startswith("u"), block_size=size)


def values_of(fmt: NumberFormat, zero_point: int = 0) -> np.ndarray:
    """All numbers that codes stand for in units of the scale, rising, from ml_dtypes."""
    if fmt.dtype == "nf4":
        return NF4.astype(np.float64)
    if fmt.is_integer:
        return np.arange(fmt.qmin, fmt.qmax + 1, dtype=np.float64) - zero_point
    codes = np.arange(1 << fmt.bits, dtype=np.uint8)
    minifloat = {"float8e4m3fn": ml_dtypes.float8_e4m3fn, "float4e2m1": ml_dtypes.float4_e2m1fn}
    found = codes.view(minifloat[fmt.dtype]).astype(np.float64)
    return np.unique(found[np.isfinite(found)])


def check_half_a_step(x: np.ndarray, held: np.ndarray, scale: float, grid: np.ndarray) -> None:
    """Each number is at most half the step from its code, where the grid has steps; beyond its ends
    it is the end. Up to the rounding of x / s and q * s in float32."""
    points = grid * scale
    right = np.clip(np.searchsorted(points, x), 1, len(points) - 1)
    half = (points[right] - points[right - 1]) / 2
    inside = (x >= points[0]) & (x <= points[-1])
    ends = np.where(x < points[0], points[0], points[-1])
    slack = np.abs(x) * 2e-6 + 1e-30
    error = np.abs(np.where(inside, x, ends) - held)
    assert (error <= np.where(inside, half, 0) + slack).all(), (x, held, scale)


def check_weight(w: np.ndarray, held: np.ndarray, scale: Scale, fmt: NumberFormat) -> None:
    for place in np.ndindex(w.shape):
        s, z = (
            np.broadcast_to(expand(part, fmt, len(w)), w.shape)[place]
            for part in (scale.scale, scale.zero_point)
        )
        x, found = w[place].astype(np.float64), held[place].astype(np.float64)
        check_half_a_step(np.array([x]), np.array([found]), float(s), values_of(fmt, int(z)))


@settings(deadline=None, max_examples=150)
@given(WEIGHTS, st.sampled_from(DTYPES), st.sampled_from(GRANULARITIES), st.sampled_from(CARRIERS))
def test_a_weight_is_within_half_a_step_in_every_format(
    w: np.ndarray, dtype: Codes, granularity: Granularity, carrier: type
) -> None:
    fmt = scheme(dtype, granularity)
    axis = None if granularity == "tensor" else 1
    scale = weight_scale(w, axis, fmt, carrier)
    held = dequantize(quantize(w, scale, fmt, axis), scale, axis, fmt)
    check_weight(w, held, scale, fmt)
    found = round_to_nearest(w, fmt, carrier)
    check_weight(w, found.dequantize(), found.scale, fmt)


@settings(deadline=None, max_examples=200)
@given(
    hnp.arrays(np.float32, st.integers(1, 30), elements=NUMBERS),
    NUMBERS,
    NUMBERS,
    st.sampled_from(["int8", "uint8", "float8e4m3fn"]),
    st.sampled_from(CARRIERS),
)
def test_an_activation_is_within_half_a_step_also_where_it_is_clipped(
    x: np.ndarray, a: float, b: float, dtype: Codes, carrier: type
) -> None:
    fmt = scheme(dtype, "tensor")
    scale = activation_scale(min(a, b), max(a, b), fmt, carrier)
    held = dequantize(quantize(x, scale, fmt), scale, fmt=fmt)
    grid = values_of(fmt, int(scale.zero_point.astype(np.float32)))
    check_half_a_step(x.astype(np.float64), held.astype(np.float64), float(scale.scale), grid)


# ── Q/DQ leaves the FP32 path as it was ────────────────────────────────────────────────────────

RULES: Mapping[str, Mapping[Precision, PlacementRules]] = MappingProxyType(
    {
        where: {
            PRECISIONS[name]: replace(
                backend("onnxruntime" if where == "cpu" else "tensorrt-rtx").rules(
                    target(where), PRECISIONS[name]
                ),
                kernels=None,  # the networks are too small to gain in integers
            )
            for name in names
        }
        for where, names in {"cpu": ("int8",), "l4": ("int8", "fp8")}.items()
    }
)
PLAIN = Quantization(weights="rtn", bias_correction=False, two_term=())
NETS = ("residual", "attention")


class Learned:
    """A workshop, and of each network the model and the statistics that any assignment needs."""

    def __init__(self, workshop: Any, nets: dict[str, tuple[ir.Model, Statistics]]) -> None:
        self.workshop, self.nets = workshop, nets


@pytest.fixture(scope="module")
def learned(
    tmp_path_factory: pytest.TempPathFactory, ) -> Learned:  # fmt: skip
    workshop = Workshop(tmp_path_factory.mktemp("properties"))
    found = {}
    for net in NETS:
        model = network(NETWORKS[net])
        wanted = []
        for rules in RULES.values():
            for name, own in rules.items():
                wanted += taps(model, assign(model, Scheme(name, "fp32", {name: own})), rules)
        unique = {tap.name: tap for tap in wanted}
        found[net] = model, workshop.statistics(model, list(unique.values()))
    return Learned(workshop, found)


def unquantized(quantized: ir.Model, model: ir.Model, qparams: QParams) -> None:
    """Take every pair out of `quantized`, in place: readers get what went into it, and weights and
    biases the floats of `model`, divided by what is multiplied behind."""
    floats = {node.name: node for node in model.graph}
    for node in quantized.graph:
        for index, value in enumerate(node.inputs):
            held = value.producer() if value is not None else None
            if held is None or held.op_type != "DequantizeLinear":
                continue
            assert held.inputs[0] is not None
            pair = held.inputs[0].producer()
            if pair is not None:
                assert pair.op_type == "QuantizeLinear"
                node.replace_input_with(index, pair.inputs[0])
                continue
            original = floats[node.name]
            numbers = (
                graph.array(original.inputs[2]) if index == 2 else weighted_nodes.weight(original)
            )
            assert numbers is not None
            ratio = qparams.weights[str(node.name)].ratio
            if index == 1 and ratio is not None:
                along = [1] * numbers.ndim
                along[weighted_nodes.channel_axis(original)] = -1
                numbers = numbers / ratio.reshape(along)
            name = f"{node.name}_{index}_float"
            node.replace_input_with(index, graph.add_constant(quantized.graph, name, numbers))


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data(), st.sampled_from(NETS), st.sampled_from(sorted(RULES)))
def test_without_its_pairs_a_quantized_graph_is_the_graph(
    learned: Learned, data: st.DataObject, net: str, where: str
) -> None:
    """Any subset of nodes, in any precision each."""
    workshop, known = learned.workshop, learned.nets
    (model, statistics), rules = known[net], RULES[where]
    able = {
        name: assign(model, Scheme(name, "fp32", {name: own})).quantized()
        for name, own in rules.items()
    }
    nodes = sorted(set().union(*able.values()))
    drawn = {
        node: data.draw(
            st.sampled_from([PRECISIONS["fp32"], *(n for n in rules if node in able[n])]), node
        )
        for node in nodes
    }
    assignment = Assignment(drawn)
    qparams = choose_qparams(
        model, assignment, statistics, rules, PLAIN,
        method="minmax", percentile=100.0, carrier=np.float32,
    )  # fmt: skip
    quantized = model.clone()
    wanted = qdq_placements(quantized, assignment, rules)
    pairs = {
        str(placement.value.name): {(str(node.name), index) for node, index in placement.readers}
        for placement in wanted
    }
    many = len(pairs) < len(wanted)  # one value in two formats
    readers = {
        str(value.name): {(str(use.node.name), use.idx) for use in value.uses()}
        for node in quantized.graph
        for value in node.inputs
        if value is not None and not graph.is_constant(value)
    }
    log = apply(quantized, qparams, assignment, rules, statistics, scale_dtype=np.float32)
    assert log.nodes.keys() == assignment.quantized().keys()
    if not many:
        check_float_readers(quantized, readers, pairs)
    unquantized(quantized, model, qparams)
    given_ = feed(model, 4, data.draw(st.integers(0, 99), "seed"))
    reference, found = (workshop.run(one, given_)["y"] for one in (model, quantized))
    np.testing.assert_allclose(found, reference, rtol=1e-4, atol=1e-5 * np.abs(reference).max())


def check_float_readers(
    quantized: ir.Model,
    readers: Mapping[str, set[tuple[str, int]]],
    pairs: Mapping[str, set[tuple[str, int]]],
) -> None:
    """Who is no reader of a placement reads the float value, as before."""
    named = {str(node.name): node for node in quantized.graph}
    for value, before in readers.items():
        for node, index in before - pairs.get(value, set()):
            read = named[node].inputs[index]
            assert read is not None and read.name == value, (node, index, read)


def test_a_pair_that_changes_the_float_path_is_seen(learned: Learned) -> None:
    """The check above can fail: a pair with another value in it gives other outputs."""
    workshop, known = learned.workshop, learned.nets
    (model, statistics), rules = known["residual"], RULES["l4"]
    assignment = assign(model, Scheme(INT8, "fp32", {INT8: rules[INT8]}))
    qparams = choose_qparams(
        model, assignment, statistics, rules, PLAIN,
        method="minmax", percentile=100.0, carrier=np.float32,
    )  # fmt: skip
    quantized = model.clone()
    apply(quantized, qparams, assignment, rules, statistics, scale_dtype=np.float32)
    pair = next(n for n in quantized.graph if n.op_type == "QuantizeLinear" and _is(n, "r1"))
    other = next(v for n in quantized.graph for v in n.outputs if v.name == "sr")
    pair.replace_input_with(0, other)
    unquantized(quantized, model, qparams)
    given_ = feed(model, 4, 0)
    reference, found = (workshop.run(one, given_)["y"] for one in (model, quantized))
    assert np.abs(found - reference).max() > 0.01 * np.abs(reference).max()


def _is(node: ir.Node, name: str) -> bool:
    return node.inputs[0] is not None and node.inputs[0].name == name

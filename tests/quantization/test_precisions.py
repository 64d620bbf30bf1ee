"""Every precision from graph to engine: it lands where the hardware has it, is refused before work
where not, and its simulation holds the numbers that the compiled graph holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

from optkit.craft.backends.onnxruntime import OnnxRuntime
from optkit.craft.backends.tensorrt_rtx import _CAPABILITIES, TensorRTRTX
from optkit.craft.precision_cast.cast import HALVES, to_half
from optkit.craft.quantization.choose_qparams import choose_qparams
from optkit.craft.quantization.numerics.format_codes import storage
from optkit.craft.quantization.placement.assign import assign
from optkit.craft.quantization.placement.block_size import fitting_block
from optkit.craft.quantization.qdq import nbits
from optkit.craft.quantization.qdq.dynamic import rounded
from optkit.craft.quantization.qdq.insertion import apply, taps
from optkit.facts.assignment import Assignment, Scheme
from optkit.facts.codec import to_json
from optkit.facts.engines import Engine
from optkit.facts.errors import Impossible
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import PRECISIONS, NumberFormat, precision, run_time_blocks
from optkit.facts.tensors import AxisRange
from optkit.ground import graph
from optkit.ground.devices import target
from optkit.ground.recipe import Quantization, Recipe
from optkit.ground.runtimes import SessionOptions
from optkit.ground.statistics import Tap
from optkit.road.pipeline import Job, check_pair
from optkit.road.pipeline.job_rules import rules_of
from tests.networks import NETWORKS, network, sqnr

HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'
PLAIN = Quantization(weights="rtn", bias_correction=False, embeddings=False)

# query, key and value apart, a gate, tied output weights behind a Transpose; odd widths
DECODER = """g (float[N,8,96] x, float[96] g_1, float[96,96] w_q, float[96,96] w_k,
        float[96,96] w_v, float[96,96] w_o, float[96] b_q, float[96,336] w_gate, float[96,336] w_up,
        float[336,96] w_down, float[80,96] w_out) => (float[N,8,80] y) {
    [norm] n1 = Mul (x, g_1)
    [q] q = MatMul (n1, w_q)
    [bias] qq = Add (q, b_q)
    [k] k = MatMul (n1, w_k)
    [v] v = MatMul (n1, w_v)
    [shape] hs = Constant <value_ints=[0, 8, 4, 24]> ()
    [split_q] q4 = Reshape (qq, hs)
    [split_k] k4 = Reshape (k, hs)
    [split_v] v4 = Reshape (v, hs)
    [turn_q] qt = Transpose <perm=[0,2,1,3]> (q4)
    [turn_k] kt = Transpose <perm=[0,2,3,1]> (k4)
    [turn_v] vt = Transpose <perm=[0,2,1,3]> (v4)
    [scores] s = MatMul (qt, kt)
    [softmax] a = Softmax (s)
    [mix] m = MatMul (a, vt)
    [turn] mt = Transpose <perm=[0,2,1,3]> (m)
    [flat] fl = Constant <value_ints=[0, 8, 96]> ()
    [merge] mm = Reshape (mt, fl)
    [o] o = MatMul (mm, w_o)
    [add] r = Add (x, o)
    [gate] gt = MatMul (r, w_gate)
    [sigmoid] sg = Sigmoid (gt)
    [silu] si = Mul (gt, sg)
    [up] u = MatMul (r, w_up)
    [gated] gu = Mul (si, u)
    [down] d = MatMul (gu, w_down)
    [add2] e = Add (r, d)
    [tied] wt = Transpose <perm=[1,0]> (w_out)
    [logits] y = MatMul (e, wt)
}"""

# a stem of three channels and 49 elements, a grouped convolution, a residual sum, a Gemm
CONVOLUTIONS = """g (float[N,3,16,16] x, float[32,3,7,7] w_stem, float[32] b_stem,
        float[32,32,3,3] w_1, float[32] b_1, float[32,1,3,3] w_dw, float[32] b_dw,
        float[32,32,1,1] w_p, float[32] b_p, float[10,32] w_head, float[10] b_head)
    => (float[N,10] y) {
    [stem] s = Conv <pads=[3,3,3,3], strides=[2,2]> (x, w_stem, b_stem)
    [stem_relu] sr = Relu (s)
    [pool] p0 = MaxPool <kernel_shape=[2,2], strides=[2,2]> (sr)
    [conv] c = Conv <pads=[1,1,1,1]> (p0, w_1, b_1)
    [relu] r = Relu (c)
    [depth] d = Conv <pads=[1,1,1,1], group=32> (r, w_dw, b_dw)
    [relu2] r2 = Relu (d)
    [point] p = Conv (r2, w_p, b_p)
    [sum] a = Add (p, p0)
    [relu3] r3 = Relu (a)
    [mean] m = GlobalAveragePool (r3)
    [flat] f = Flatten (m)
    [head] y = Gemm <transB=1> (f, w_head, b_head)
}"""
NETS = {"decoder": DECODER, "convolutions": CONVOLUTIONS}

# compute capability → the precisions that TensorRT-RTX compiles for it; fp32: see below
TARGETS = {"7.5": "t4", "8.0": "a100-sxm-80gb", "8.6": "a10", "8.9": "l4", "12.0": "rtx5090"}
FLOATS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_ALL = ("fp16", "int8")
_AMPERE = ("fp32", *_ALL, "bf16", "int8-weight-only", "int4")
SUPPORTED = {
    "7.5": _ALL,
    "8.0": _AMPERE,
    "8.6": _AMPERE,
    "8.9": (*_AMPERE, "fp8"),
    "12.0": (*_AMPERE, "fp8", "nvfp4"),
    "12.1": (*_AMPERE, "fp8", "nvfp4"),
}


@pytest.fixture(scope="module")
def rtx() -> TensorRTRTX:
    pytest.importorskip("tensorrt_rtx", exc_type=ImportError)
    return TensorRTRTX()


def quantized(
    workshop: Any,
    model: ir.Model,
    name: str,
    named: Mapping[str, PlacementRules],
    *,
    carrier: str = "fp32",
    overrides: Mapping[str, str] | None = None,
) -> tuple[ir.Model, ir.Model, Assignment]:
    """(the graph for the compiler, its FP32 simulation, assignment); precisions by name"""
    rules = {PRECISIONS[precision]: own for precision, own in named.items()}
    patterns = {node: PRECISIONS[precision] for node, precision in (overrides or {}).items()}
    assignment = assign(model, Scheme(PRECISIONS[name], carrier, rules), overrides=patterns)
    wanted = taps(model, assignment, rules)
    statistics = workshop.statistics(model, wanted) if wanted else None
    dtype = np.float32 if carrier == "fp32" else np.float16
    qparams = choose_qparams(
        model, assignment, statistics, rules, PLAIN,
        method="minmax", percentile=100.0, carrier=dtype,
    )  # fmt: skip
    real = half(model, "fp16") if carrier == "fp16" else model.clone()
    if any(own.weight.dtype == "float4e2m1" for own in rules.values()):
        real = graph.upgrade(real, 23)
    simulated = model.clone()
    apply(real, qparams, assignment, rules, statistics, scale_dtype=dtype)
    apply(simulated, qparams, assignment, rules, statistics, scale_dtype=dtype, simulated=True)
    return real, simulated, assignment


def half(model: ir.Model, carrier: str) -> ir.Model:
    cast = graph.upgrade(model.clone(), HALVES[carrier].opset)
    to_half(cast, carrier)
    return cast


def compiled(
    rtx: TensorRTRTX, model: ir.Model, capability: str, planned: Mapping[str, str], folder: Path
) -> Engine:
    """At one size, so that one compile does."""
    path = folder / "compiled.onnx"
    graph.save(model, path)
    graph.check(path)
    shapes = [
        tuple(4 if isinstance(d, str) else d for d in info.shape) for info in graph.inputs(model)
    ]
    spec = rtx.spec((), target(TARGETS.get(capability, "rtx5090")), PRECISIONS["fp32"], {})
    names = [info.name for info in graph.inputs(model)]
    profile = {name: (shape,) * 3 for name, shape in zip(names, shapes, strict=True)}
    spec = replace(spec, compute_capability=capability, profile=profile)
    return rtx.compile(path, spec, planned, folder, lambda what, done: None)


# ── TensorRT-RTX ───────────────────────────────────────────────────────────────────────────────


def test_the_table_names_every_compute_capability() -> None:
    assert SUPPORTED.keys() == _CAPABILITIES.keys()


@pytest.mark.parametrize("net", [*NETS, "attention"])
@pytest.mark.parametrize(
    ("capability", "name"),
    [
        pytest.param(c, name, marks=[] if c == "8.9" else pytest.mark.slow)
        for c, names in SUPPORTED.items()
        for name in names
        if precision(name).quantized
    ],
)
def test_all_that_is_planned_lands(
    capability: str, name: str, net: str, rtx: TensorRTRTX, workshop: Any,
    tmp_path: Path,
) -> None:  # fmt: skip
    where = target(TARGETS.get(capability, "rtx5090"))
    model = network(NETWORKS.get(net) or HEADER + NETS[net])
    real, _, assignment = quantized(
        workshop, model, name, {name: rtx.rules(where, PRECISIONS[name])}, carrier="fp16"
    )
    planned = assignment.quantized()
    engine = compiled(rtx, real, capability, planned, tmp_path)
    lost = [row for row in engine.landing.rows if not row.landed]
    assert not lost and engine.landing.planned == len(planned) > 0
    assert all(assignment.reasons[node] for node in assignment.nodes.keys() - planned.keys())


@pytest.mark.parametrize(
    ("capability", "name"), [(c, n) for c, names in SUPPORTED.items() for n in names if n in FLOATS]
)
def test_floats_multiply_in_their_own_dtype(
    capability: str, name: str, rtx: TensorRTRTX, tmp_path: Path
) -> None:
    model = network(HEADER + CONVOLUTIONS)
    model = model if name == "fp32" else half(model, name)
    layers = compiled(rtx, model, capability, {}, tmp_path).layers
    dtypes = {layer.dtype for layer in layers if layer.products}
    assert dtypes == {FLOATS[name]}


@pytest.mark.parametrize("capability", TARGETS)
@pytest.mark.parametrize("name", PRECISIONS)
def test_what_does_not_compile_is_refused_before_work(capability: str, name: str) -> None:
    where = target(TARGETS[capability])
    here = TensorRTRTX().refuses(where, PRECISIONS[name]) is None
    if name in SUPPORTED[capability]:
        check_pair(where, PRECISIONS[name])
        assert here
        return
    if name == "fp32":  # left to the full TensorRT
        assert not here
        return
    with pytest.raises(Impossible) as caught:
        check_pair(where, PRECISIONS[name])
    assert f"{TARGETS[capability]} takes fp32, fp16" in (caught.value.hint or "")


def test_a_processor_refuses_what_it_has_no_kernels_for() -> None:
    for name in PRECISIONS:
        if name in ("bf16", "fp8", "nvfp4"):
            with pytest.raises(Impossible, match="has no kernels in ONNX Runtime"):
                check_pair(target("cpu"), PRECISIONS[name])
        else:
            check_pair(target("cpu"), PRECISIONS[name])


@pytest.mark.parametrize("size", [33, 49])
def test_a_large_kernel_stays_out_of_fp8(
    size: int, rtx: TensorRTRTX, workshop: Any, tmp_path: Path
) -> None:
    """The rule's limit is the compiler's: 32 elements land, one more does not."""
    text = """g (float[N,16,4,64] x, float[16,16,1,{0}] w_1, float[8,16,1,1] w_2)
        => (float[N,8,4,{1}] y) {{
        [large] c = Conv (x, w_1)
        [small] y = Conv (c, w_2)
    }}"""
    fp8 = PRECISIONS["fp8"]
    rules = rtx.rules(target("l4"), fp8)
    for wide, lands in ((32, True), (size, False)):
        model = network(HEADER + text.format(wide, 65 - wide))
        assert ("large" in assign(model, Scheme(fp8, "fp16", {fp8: rules})).quantized()) is lands
        free = {"fp8": replace(rules, max_kernel=None)}
        real, _, assignment = quantized(workshop, model, "fp8", free, carrier="fp16")
        landing = compiled(rtx, real, "8.9", assignment.quantized(), tmp_path).landing
        assert {row.node: row.landed for row in landing.rows} == {"large": lands, "small": True}


def test_one_block_alone_is_dequantized_apart(
    rtx: TensorRTRTX, workshop: Any, tmp_path: Path
) -> None:
    """The reason for halving blocks, and what the landing says of it."""
    text = "g (float[N,32] x, float[32,64] w_1) => (float[N,64] y) { [fc] y = MatMul (x, w_1) }"
    model, rules = network(HEADER + text), rtx.rules(target("l4"), PRECISIONS["int4"])
    found = {}
    for blocks in ("halving", "any"):
        own = {"int4": replace(rules, blocks=blocks)}
        real, _, assignment = quantized(workshop, model, "int4", own, carrier="fp16")
        engine = compiled(rtx, real, "8.9", assignment.quantized(), tmp_path)
        (found[blocks],) = engine.landing.rows
    assert (found["halving"].landed, found["halving"].dtype) == (True, "int4")
    assert (found["any"].landed, found["any"].dtype) == (False, "float16")
    assert found["any"].note == "dequantized by a kernel of its own"


def test_precisions_mix_in_one_engine(rtx: TensorRTRTX, workshop: Any, tmp_path: Path) -> None:
    names = ("fp8", "int4")
    rules = {name: rtx.rules(target("l4"), PRECISIONS[name]) for name in names}
    overrides = {"[qkv]": "int4", "up": "int4", "logits": "fp16"}
    model = network(HEADER + DECODER)
    real, simulated, assignment = quantized(
        workshop, model, "fp8", rules, carrier="fp16", overrides=overrides
    )
    engine = compiled(rtx, real, "8.9", assignment.quantized(), tmp_path)
    assert (engine.landing.landed, engine.landing.planned) == (7, 7)
    assert engine.landing.by_dtype == {"int4": 4, "float8e4m3fn": 3}
    assert [layer.dtype for layer in engine.layers if "logits" in layer.products] == ["float16"]
    assert np.isfinite(workshop.run(simulated, feed(model))["y"]).all()


# ── What is rounded at run time ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["w4a8", "int2"])
def test_activations_that_the_kernel_rounds_are_told(name: str) -> None:
    precision = PRECISIONS[name]
    assert precision.weights is not None
    assert precision.activations == run_time_blocks(precision.weights.block_size)
    assert precision.activations.dynamic and not precision.weight_only
    # a graph holds codes of the weights alone
    assert precision.weight_codes_only and precision.activation_bits == precision.carrier_bits
    assert OnnxRuntime().rules(target("cpu"), precision).activation is None


def test_a_format_without_run_time_scales_is_written_as_before() -> None:
    assert "dynamic" not in to_json(PRECISIONS["int8"].activations)  # type: ignore[operator]


# ── ONNX Runtime ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["int8", "int8-weight-only", "int4", "w4a8", "int2", "nf4"])
def test_all_that_is_planned_lands_on_a_processor(name: str, workshop: Any, tmp_path: Path) -> None:
    backend, model = OnnxRuntime(), network(HEADER + DECODER)
    rules = {name: backend.rules(target("cpu"), PRECISIONS[name])}
    real, _, assignment = quantized(workshop, model, name, rules)
    landing = kernels(backend, real, assignment, tmp_path).landing
    assert landing.landed == landing.planned == 8, landing.rows


def test_precisions_mix_on_a_processor(workshop: Any, tmp_path: Path) -> None:
    backend, model = OnnxRuntime(), network(HEADER + DECODER)
    rules = {name: backend.rules(target("cpu"), PRECISIONS[name]) for name in ("int8", "int4")}
    overrides = {"[qkv]": "int4", "logits": "fp32"}
    real, _, assignment = quantized(workshop, model, "int8", rules, overrides=overrides)
    landing = kernels(backend, real, assignment, tmp_path).landing
    assert landing.landed == landing.planned == 7
    assert landing.by_dtype == {"int4": 3, "uint8": 4}


@pytest.mark.parametrize(
    ("name", "accuracy"),
    [
        ("int8-weight-only", 4),
        ("int4", 4),
        ("int4", 0),
        ("w4a8", 4),
        ("int2", 4),
        ("int2", 0),
        ("nf4", None),
    ],
)
@pytest.mark.parametrize("form", ["MatMul", "Gemm", "transposed Gemm"])
@pytest.mark.parametrize("width", [64, 80, 100])
def test_a_packed_weight_multiplies_as_its_codes_say(
    name: str, accuracy: int | None, form: str, width: int, workshop: Any
) -> None:
    """Against the product with the weight's values, decoded from the simulation's graph. Of
    accuracy 4 the kernel rounds activations."""
    shape, turned = (f"24,{width}", "<transB=1>") if form[0] == "t" else (f"{width},24", "")
    operator = "MatMul (x, w)" if form == "MatMul" else f"Gemm {turned} (x, w, b)"
    text = f"g (float[N,{width}] x, float[{shape}] w, float[24] b) => (float[N,24] y) {{"
    last = "[sum] y = Add (m, b)" if form == "MatMul" else "[same] y = Identity (m)"
    model = network(HEADER + f"{text} [fc] m = {operator} {last} }}")
    rules = {
        name: replace(OnnxRuntime().rules(target("cpu"), PRECISIONS[name]), nbits_accuracy=accuracy)
    }
    real, simulated, assignment = quantized(workshop, model, name, rules)
    if not assignment.quantized():
        assert name == "nf4" and width == 100, assignment.reasons
        return
    assert any(node.domain == "com.microsoft" for node in real.graph)
    given = feed(model)
    reference = ReferenceEvaluator(ir.to_proto(simulated)).run(None, given)[0]
    tolerance = 2e-2 if accuracy == 4 else 1e-5
    error = np.abs(workshop.run(real, given)["y"] - reference).max()
    assert error <= tolerance * np.abs(reference).max()


@pytest.mark.parametrize("accuracy", [0, 4])
def test_a_recipe_may_ask_for_zero_points(accuracy: int, workshop: Any) -> None:
    placement = {"zero_points": True, "nbits_accuracy": accuracy}
    recipe = Recipe.from_dict({"name": "net", "quantization": {"placement": placement}})
    found = rules_of(OnnxRuntime(), Job(recipe, target("cpu"), PRECISIONS["int4"]))
    rules = {precision.name: own for precision, own in found.items()}
    assert rules["int4"].weight.dtype == "uint4" and rules["int8-weight-only"].weight.symmetric
    text = "g (float[N,100] x, float[100,24] w) => (float[N,24] y) { [fc] y = MatMul (x, w) }"
    model = network(HEADER + text)
    real, simulated, _ = quantized(workshop, model, "int4", {"int4": rules["int4"]})
    (product,) = [node for node in real.graph if node.op_type == "MatMulNBits"]
    assert len(product.inputs) == 4  # the last one: zero points
    given = feed(model)
    reference = ReferenceEvaluator(ir.to_proto(simulated)).run(None, given)[0]
    error = np.abs(workshop.run(real, given)["y"] - reference).max()
    assert error <= (2e-2 if accuracy else 1e-5) * np.abs(reference).max()


@pytest.mark.parametrize(("name", "accuracy"), [("int4", 0), ("nf4", None)])
def test_a_bias_of_another_form_is_added_behind(
    name: str, accuracy: int | None, workshop: Any
) -> None:
    text = """g (float[5,64] x, float[5,1] b, float[64,24] w) => (float[5,24] y) {
        [fc] y = Gemm (x, w, b)
    }"""
    model = network(HEADER + text)
    rules = {
        name: replace(OnnxRuntime().rules(target("cpu"), PRECISIONS[name]), nbits_accuracy=accuracy)
    }
    real, simulated, _ = quantized(workshop, model, name, rules)
    assert [node.op_type for node in real.graph][-1] == "Add"
    given = feed(model)
    reference = workshop.run(simulated, given)["y"]
    np.testing.assert_allclose(workshop.run(real, given)["y"], reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("device", "names"),
    [("l4", ("int4", "int8-weight-only")), ("cpu", ("nf4", "int4", "int8-weight-only"))],
)
def test_products_of_one_value_are_solved_each_in_its_own_format(
    device: str, names: tuple[str, ...], workshop: Any
) -> None:
    products = " ".join(f"y{i} = MatMul (x, w{i})" for i, _ in enumerate(names))
    weights = "".join(f", float[64,32] w{i}" for i, _ in enumerate(names))
    model = network(f"{HEADER}g (float[N,64] x{weights}) => (float[N,32] y0) {{ {products} }}")
    nodes = [str(node.name) for node in model.graph]
    backend = OnnxRuntime() if device == "cpu" else TensorRTRTX()
    schemes = [PRECISIONS[name] for name in names]
    rules = {scheme: backend.rules(target(device), scheme) for scheme in schemes}
    learned = workshop.statistics(model, [Tap("x", -1, rows=True, moments=True)])
    found = choose_qparams(
        model, Assignment(dict(zip(nodes, schemes, strict=True))), learned, rules, Quantization(),
        method="minmax", percentile=100.0, carrier=np.float16,
    )  # fmt: skip
    for index, (node, name) in enumerate(zip(nodes, names, strict=True)):
        numbers, weight = found.weights[node], graph.array(model.graph.initializers[f"w{index}"])
        assert numbers.codes.dtype == storage(numbers.format)
        assert sqnr(weight, numbers.floats()) > (35 if name == "int8-weight-only" else 14)


@pytest.mark.parametrize(("name", "size"), [("int4", 64), ("w4a8", 64), ("nf4", 64), ("nvfp4", 16)])
def test_a_block_size_is_asked_of_those_that_have_none_of_their_own(name: str, size: int) -> None:
    scheme = precision(name)
    assert scheme.weights is not None
    own = PlacementRules(
        activation=scheme.activations, weight=scheme.weights, ops=frozenset({"MatMul"}),
        residual_adds=False, quantize_outputs=frozenset(), float_output=True,
    )  # fmt: skip
    model = network(
        HEADER + "g (float[N,128] x, float[128,8] w) => (float[N,8] y) { y = MatMul (x, w) }"
    )
    assert fitting_block(next(iter(model.graph)), own, 64) == size


@pytest.mark.parametrize("dtype", ["int2", "int4", "uint4", "int8", "uint8"])
@pytest.mark.parametrize(("accuracy", "tolerance"), [(0, 1e-4), (4, 0.02)])
@pytest.mark.parametrize("block", [16, 64])
def test_the_kernel_multiplies_by_what_was_packed(
    dtype: Any, accuracy: int, tolerance: float, block: int
) -> None:
    """MatMulNBits itself against the same codes dequantized by hand, in float64; K ends inside a
    block."""
    rng, n, k = np.random.default_rng(0), 5, 2 * block + 5
    fmt = NumberFormat(dtype, "block", symmetric=not dtype.startswith("u"), block_size=block)
    blocks = -(-k // block)
    codes = rng.integers(fmt.qmin, fmt.qmax + 1, (n, k))
    zero = np.zeros((n, blocks), int) if fmt.symmetric else rng.integers(0, fmt.qmax, (n, blocks))
    scale = rng.uniform(0.5, 2, (n, blocks)).astype(np.float32)
    if dtype in ("int2", "int4"):
        scale *= rng.choice([-1, 1], scale.shape)  # signed scales (`NumberFormat.signed_scale`)
    inputs = {"B": nbits.pack(codes, fmt, block), "s": scale}
    if not fmt.symmetric:
        inputs["z"] = nbits.pack_zero_points(zero, fmt)
    attributes = nbits.attributes(n, k, fmt.bits, block, accuracy)
    node = onnx.helper.make_node(
        "MatMulNBits", ["x", *inputs], ["y"], domain="com.microsoft", **attributes
    )
    graph = onnx.helper.make_graph(
        [node], "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3, k])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3, n])],
        [onnx.numpy_helper.from_array(array, name) for name, array in inputs.items()],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    x = rng.standard_normal((3, k)).astype(np.float32)
    found = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    along = np.arange(k) // block
    expected = x @ ((codes - zero[:, along]) * scale[:, along]).T
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


# ── simulation ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("name", ["int8", "int8-weight-only", "fp8", "int4"])
def test_a_simulation_computes_what_the_graph_says(name: str, net: str, workshop: Any) -> None:
    """ONNX Runtime at the level that simulations run at, against ONNX's own reference."""
    model = network(HEADER + NETS[net])
    rules = {name: TensorRTRTX().rules(target("rtx5090"), PRECISIONS[name])}
    _, simulated, _ = quantized(workshop, model, name, rules, carrier="fp16")
    given = feed(model)
    reference = ReferenceEvaluator(ir.to_proto(simulated)).run(None, given)[0]
    path = workshop.folder / "simulated.onnx"
    graph.save(simulated, path)
    with OnnxRuntime().session(path, SessionOptions(level="basic", threads=1)) as session:
        found = session.run(given)["y"]
    assert sqnr(reference, found) > 45  # sums in another order move a code here and there


def test_nvfp4_is_simulated_in_plain_nodes(workshop: Any) -> None:
    """Against numpy: activations and weights rounded by hand with ml_dtypes' own casts."""
    text = "g (float[N,3,64] x, float[64,24] w) => (float[N,3,24] y) { [fc] y = MatMul (x, w) }"
    model = network(HEADER + text)
    rules = {"nvfp4": TensorRTRTX().rules(target("rtx5090"), PRECISIONS["nvfp4"])}
    real, simulated, _ = quantized(workshop, model, "nvfp4", rules, carrier="fp16")
    kinds = {node.op_type for node in simulated.graph}
    assert "TRT_FP4DynamicQuantize" not in kinds
    (quantizer,) = (n for n in real.graph if n.op_type == "TRT_FP4DynamicQuantize")
    outer = float(graph.array(quantizer.inputs[1]))  # type: ignore[arg-type]
    given = feed(model)
    x = given["x"]
    assert outer == pytest.approx(abs(x).max() / (6 * 448), rel=0.5)
    held = by_hand(x, outer)
    np.testing.assert_array_equal(
        held, rounded(x, outer, rules["nvfp4"].activation or pytest.fail("not quantized"))
    )
    (weight,) = (graph.array(n.inputs[1]) for n in simulated.graph if n.op_type == "MatMul")
    np.testing.assert_allclose(workshop.run(simulated, given)["y"], held @ weight, rtol=1e-4,
                               atol=1e-4)  # fmt: skip


@pytest.mark.parametrize("form", ["MatMul (x, w)", "Gemm <transB=1> (x, w, b)"])
def test_powers_taken_out_of_nvfp4_scales_change_no_number(form: str, workshop: Any) -> None:
    shape = "64,24" if form.startswith("M") else "24,64"
    text = f"g (float[N,64] x, float[{shape}] w, float[24] b) => (float[N,24] y)"
    numbers = np.random.default_rng(1).standard_normal((64, 24)) * np.geomspace(1e-3, 1, 24)
    numbers = numbers if form.startswith("M") else numbers.T
    model = network(f"{HEADER}{text} {{ [fc] y = {form} }}", w=numbers)
    rules = {"nvfp4": TensorRTRTX().rules(target("rtx5090"), PRECISIONS["nvfp4"])}
    real, simulated, _ = quantized(workshop, model, "nvfp4", rules, carrier="fp16")
    constants = {
        str(v.name): numbers.astype(np.float32)
        for v in real.graph.initializers.values()
        if (numbers := graph.array(v)) is not None
    }
    axis = 1 if form.startswith("M") else 0
    blocks = constants["w_block_scale"] * constants["w_tensor_scale"]
    ratio = constants["fc_channel_scale"].reshape(-1)
    held = constants["w_quantized"] * np.repeat(blocks, 16, axis=1 - axis)
    held = held * (ratio[None, :] if axis else ratio[:, None])
    assert len(set(ratio)) > 5 and set(np.frexp(ratio)[0]) == {0.5}  # powers of two
    np.testing.assert_array_equal(held, graph.array(simulated.graph.initializers["w_simulated"]))


def by_hand(x: np.ndarray, outer: float) -> np.ndarray:
    held = np.empty_like(x)
    for place in np.ndindex(*x.shape[:-1]):
        for start in range(0, x.shape[-1], 16):
            block = x[(*place, slice(start, start + 16))]
            ideal = np.float32(np.abs(block).max() / np.float32(outer * 6.0))
            scale = np.float32(ideal.astype(ml_dtypes.float8_e4m3fn)) * np.float32(outer)
            codes = np.clip(block / scale, -6, 6).astype(ml_dtypes.float4_e2m1fn)
            held[(*place, slice(start, start + 16))] = codes.astype(np.float32) * scale
    return held


def feed(model: ir.Model) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    return {
        name: random.standard_normal([5 if isinstance(d, str) else d for d in shape]).astype(dtype)
        for name, dtype, shape in map(astuple, graph.inputs(model))
    }


def kernels(backend: OnnxRuntime, model: ir.Model, assignment: Assignment, folder: Path) -> Engine:
    path, out = folder / "kernels.onnx", folder / "kernels"
    out.mkdir()
    graph.save(model, path)
    graph.check(path)
    with backend.session(path, SessionOptions(level="none")) as session:
        spec = backend.spec(
            session.inputs, target("cpu"), PRECISIONS["fp32"], {"N": AxisRange(1, 4, 4)}
        )
    return backend.compile(path, spec, assignment.quantized(), out, lambda what, done: None)

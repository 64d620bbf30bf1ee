"""Weights quantized while they are saved: the same codes as from memory, and little of it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from optkit.craft.backends.onnxruntime import OnnxRuntime
from optkit.craft.quantization.choose_qparams import choose_qparams
from optkit.craft.quantization.out_of_core import streamed
from optkit.craft.quantization.placement.assign import assign
from optkit.craft.quantization.qdq import insertion as qdq
from optkit.facts.assignment import Assignment, Scheme
from optkit.facts.errors import InputRefused
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import PRECISIONS, Codes, NumberFormat, Precision
from optkit.ground import graph
from optkit.ground.devices import target
from optkit.ground.recipe import Quantization
from optkit.ground.runtimes import SessionOptions, backend
from optkit.road.pipeline.large import way

GRAPH = """<ir_version: 10, opset_import: ["" : 21]>
g (FLOAT[N,96] x) => (FLOAT[N,40] y, FLOAT[N,96] z, FLOAT[N,40] t) {
  y = MatMul (x, w)
  a = Gemm <transB = 1> (x, v)
  z = MatMul (a, u)
  t = MatMul (x, w)
}"""
SHAPES = {"w": (96, 40), "v": (130, 96), "u": (130, 96)}


def model(dtype: str, seed: int = 0) -> ir.Model:
    kind = {"float16": "float16", "float32": "float", "bfloat16": "bfloat16"}[dtype]
    built = ir.from_onnx_text(GRAPH.replace("FLOAT", kind))
    rng = np.random.default_rng(seed)
    for name, shape in SHAPES.items():
        numbers = rng.standard_normal(shape).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
        tensor = ir.Tensor(numbers, name=name)
        old = next(v for n in built.graph for v in n.inputs if v is not None and v.name == name)
        new = graph.add_tensor(built.graph, tensor)
        old.replace_all_uses_with(new)
    graph.ensure_names(built)
    return graph.infer_shapes(built)


def rules(fmt: NumberFormat) -> dict[Precision, PlacementRules]:
    return {
        PRECISIONS["int4"]: PlacementRules(
            None, fmt, frozenset({"MatMul", "Gemm"}), False, frozenset(), False
        )
    }


def constants(built: ir.Model) -> dict[str, tuple[object, bytes]]:
    found = {}
    for node in built.graph:
        if node.op_type == "DequantizeLinear":
            arrays = [graph.array(value) for value in node.inputs]
            (reader, *_) = sorted(str(n.name) for n in node.outputs[0].consumers())
            attributes = sorted((a.name, a.as_int()) for a in node.attributes.values())
            found[reader] = [(str(a.dtype), a.shape, a.tobytes()) for a in arrays], attributes
    return found


@pytest.mark.parametrize("weights", ["rtn", "auto"])
@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("codes", ["int4", "signed", "uint4", "int8", "float8e4m3fn"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_codes_and_scales_are_those_found_in_memory(
    weights: str,
    block: int,
    codes: str,
    dtype: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streamed, "_NUMBERS", 2000)  # several pieces of each weight
    fmt = NumberFormat(
        "int4" if codes == "signed" else codes,  # type: ignore[arg-type]
        "block", symmetric=codes != "uint4", block_size=block, signed_scale=codes == "signed",
    )  # fmt: skip
    carrier = np.dtype(getattr(ml_dtypes, dtype, dtype))
    settings, own = Quantization(weights=weights), rules(fmt)
    wanted, built = model(dtype), model(dtype)
    plan = Assignment(
        {str(n.name): PRECISIONS["int4"] for n in wanted.graph if n.op_type in ("MatMul", "Gemm")}
    )
    qparams = choose_qparams(
        model("float32") if dtype == "float32" else wanted, plan, None, own, settings,
        method="minmax", percentile=100, carrier=carrier,
    )  # fmt: skip
    log = qdq.apply(wanted, qparams, plan, own, None, scale_dtype=carrier)
    made = streamed.apply(built, plan, own, settings, carrier=carrier)
    graph.save(built, tmp_path / "m.onnx", inline_limit=0)
    graph.check(tmp_path / "m.onnx")
    loaded = graph.load(tmp_path / "m.onnx")
    assert constants(loaded) == constants(wanted)
    assert set(loaded.graph.initializers).isdisjoint(SHAPES)
    told = made.log()
    assert told.nodes.keys() == log.nodes.keys() and told.clamped == log.clamped
    for name, node in told.nodes.items():
        assert node == log.nodes[name]


def test_a_transpose_in_front_of_a_product_is_folded_in(tmp_path: Path) -> None:
    """The blocks run along what the node sums over, the columns of the matrix as it was stored."""
    built = model("float16")
    node = next(n for n in built.graph if n.op_type == "MatMul" and n.inputs[1].name == "u")
    stored = graph.add_constant(built.graph, "turned", graph.array(node.inputs[1]).T.copy())
    turn = ir.node("Transpose", [stored], {"perm": [1, 0]}, name="turn")
    turn.outputs[0].name, turn.outputs[0].type = "back", stored.type
    turn.outputs[0].shape = ir.Shape(SHAPES["u"])
    built.graph.insert_before(built.graph[0], turn)
    node.replace_input_with(1, turn.outputs[0])
    plan = Assignment({str(node.name): PRECISIONS["int4"]})
    fmt = NumberFormat("int4", "block", symmetric=True, block_size=32)
    streamed.apply(built, plan, rules(fmt), Quantization(weights="rtn"), carrier=np.float16)
    graph.save(built, tmp_path / "m.onnx", inline_limit=0)
    graph.check(tmp_path / "m.onnx")
    loaded = graph.load(tmp_path / "m.onnx")
    assert "turn" not in {str(n.name) for n in loaded.graph}
    (dq,) = (n for n in loaded.graph if n.op_type == "DequantizeLinear")
    codes, scale = (graph.array(value) for value in dq.inputs[:2])
    assert codes.shape == (130, 96) and scale.shape == (5, 96)
    assert dq.attributes.get_int("axis", 1) == 0
    spread = np.repeat(scale.astype(np.float32), 32, axis=0)[:130]
    weight = graph.array(model("float16").graph.initializers["u"])
    error = np.abs(codes.astype(np.float32) * spread - weight)
    assert (error <= spread * 0.5001).all()


@pytest.mark.parametrize("weights", ["rtn", "auto"])
@pytest.mark.parametrize("precision", ["int4", "w4a8", "nf4", "int8-weight-only"])
def test_products_of_onnx_runtime_are_those_written_from_memory(
    precision: str, weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MatMulNBits with its accuracy level, MatMulBnb4; also of a Gemm, whose bias comes behind."""
    monkeypatch.setattr(streamed, "_NUMBERS", 2000)
    chosen = PRECISIONS[precision]
    own = {chosen: backend("onnxruntime").rules(target("cpu"), chosen)}
    models = [model("float32"), model("float32")]
    for built in models:
        gemm = next(node for node in built.graph if node.op_type == "Gemm")
        bias = graph.add_constant(built.graph, "bias", np.arange(130, dtype=np.float32))
        gemm.resize_inputs(3)
        gemm.replace_input_with(2, bias)
    wanted, built = models
    plan, settings = assign(wanted, Scheme(chosen, "fp32", own)), Quantization(weights=weights)
    assert plan.quantized()
    qparams = choose_qparams(
        wanted, plan, None, own, settings, method="minmax", percentile=100, carrier=np.float32
    )
    qdq.apply(wanted, qparams, plan, own, None, scale_dtype=np.float32)
    streamed.apply(built, plan, own, settings, carrier=np.float32)
    found = {}
    for name, made in (("wanted", wanted), ("found", built)):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "m.onnx"
        graph.save(made, path, inline_limit=0)
        graph.check(path)
        loaded = graph.load(path)
        feed = {"x": np.random.default_rng(1).standard_normal((5, 96)).astype(np.float32)}
        with OnnxRuntime().session(path, SessionOptions(threads=1)) as session:
            outputs = session.run(feed)
        nodes = [
            (n.op_type, sorted((a.name, a.value) for a in n.attributes.values()))
            for n in loaded.graph
        ]
        numbers = {v.const_value.tobytes() for v in loaded.graph.initializers.values()}
        found[name] = nodes, numbers, {n: y.tobytes() for n, y in outputs.items()}
    assert found["found"] == found["wanted"]
    assert {op for op, _ in found["found"][0]} > {
        "MatMulBnb4" if precision == "nf4" else "MatMulNBits"
    }


def test_odd_weights_are_reported_as_from_memory(tmp_path: Path) -> None:
    built = model("float32")
    own = rules(NumberFormat("int4", "block", symmetric=True, block_size=32))
    built.graph.initializers["w"].const_value = ir.tensor(np.zeros((96, 40), np.float32))
    built.graph.initializers["u"].const_value = ir.tensor(np.full((130, 96), 1e-40, np.float32))
    plan = Assignment({str(n.name): PRECISIONS["int4"] for n in built.graph})
    qparams = choose_qparams(
        built, plan, None, own, Quantization(), method="minmax", percentile=100, carrier=np.float32
    )
    made = streamed.apply(built, plan, own, Quantization(), carrier=np.float32)
    graph.save(built, tmp_path / "m.onnx", inline_limit=0)
    assert made.log().warnings == qparams.warnings
    assert len(qparams.warnings) == 2 and "constant (0)" in str(qparams.warnings)


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_half_precision_that_nothing_simulates_is_told(dtype: str, tmp_path: Path) -> None:
    built = graph.upgrade(model(dtype), 22)
    graph.save(built, tmp_path / "m.onnx")
    own = rules(NumberFormat("int4", "block", symmetric=True, block_size=32))
    plan = Assignment({str(n.name): PRECISIONS["int4"] for n in built.graph})
    carrier = np.dtype(getattr(ml_dtypes, dtype, dtype))
    told = streamed.quantize(
        tmp_path / "m.onnx", tmp_path / "q.onnx", plan, own, Quantization(), carrier=carrier
    )
    assert any("no simulation" in one for one in told.warnings) == (dtype != "float32")


def test_columns_are_read_as_they_are_stored(tmp_path: Path) -> None:
    built = model("float16")
    graph.save(built, tmp_path / "m.onnx", inline_limit=0)
    stored = graph.load(tmp_path / "m.onnx").graph.initializers["v"]
    numbers = graph.array(built.graph.initializers["v"])
    for value in (stored, built.graph.initializers["v"]):
        blocks = list(graph.columns(value, 40))
        assert [block.shape for block in blocks] == [(130, 40), (130, 40), (130, 16)]
        np.testing.assert_array_equal(np.concatenate(blocks, axis=1), numbers)


def test_only_what_needs_no_data_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    built = model("float16")
    plan = Assignment({str(n.name): PRECISIONS["int4"] for n in built.graph})
    block = NumberFormat("int4", "block", symmetric=True, block_size=32)
    rtn = Quantization(weights="rtn")
    assert not streamed.is_for(built, plan, rules(block), rtn)  # small
    monkeypatch.setattr(graph, "INLINE_LIMIT", 1000)
    assert streamed.is_for(built, plan, rules(block), rtn)
    assert not streamed.is_for(built, plan, rules(block), Quantization(weights="gptq"))
    assert streamed.is_for(built, plan, rules(block), Quantization())
    assert not streamed.is_for(built, plan, rules(block), Quantization(), learned=True)
    channels = NumberFormat("int8", "channel", symmetric=True)
    assert not streamed.is_for(built, plan, rules(channels), rtn)
    floats = NumberFormat("float4e2m1", "block", symmetric=True, block_size=16)
    assert not streamed.is_for(built, plan, rules(floats), rtn)
    table = NumberFormat("nf4", "block", symmetric=True, block_size=32)
    assert streamed.is_for(built, plan, rules(table), rtn)


def test_a_bad_weight_is_reported_by_name(tmp_path: Path) -> None:
    built = model("float16")
    graph.array(built.graph.initializers["w"])[3, 3] = np.nan
    plan = Assignment({str(n.name): PRECISIONS["int4"] for n in built.graph})
    fmt = NumberFormat("int4", "block", symmetric=True, block_size=32)
    streamed.apply(built, plan, rules(fmt), Quantization(weights="rtn"), carrier=np.float16)
    with pytest.raises(InputRefused) as caught:
        graph.save(built, tmp_path / "m.onnx", inline_limit=0)
    assert "'w'" in str(caught.value)


def test_memory_is_that_of_a_few_pieces(tmp_path: Path) -> None:
    """A weight of 64 MiB: its codes alone would take 32."""
    built = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 21]>
    g (float16[N,8192] x) => (float16[N,4096] y) { y = MatMul (x, w) }""")
    graph.ensure_names(built)
    block = np.random.default_rng(0).standard_normal((1024, 4096), np.float32).astype(np.float16)
    form = graph.TensorForm("w", ir.DataType.FLOAT16, (8192, 4096))
    (tensor,) = graph.computed([form], lambda: ((block,) for _ in range(8)))
    built.graph[0].replace_input_with(1, graph.add_tensor(built.graph, tensor))
    graph.save(graph.infer_shapes(built), tmp_path / "m.onnx", inline_limit=0)
    loaded = graph.load(tmp_path / "m.onnx")
    plan = Assignment({str(loaded.graph[0].name): PRECISIONS["int4"]})
    fmt = NumberFormat("int4", "block", symmetric=True, block_size=32)
    (tmp_path / "q").mkdir()
    tracemalloc.start()
    try:
        made = streamed.apply(
            loaded, plan, rules(fmt), Quantization(weights="rtn"), carrier=np.float16
        )
        graph.save(loaded, tmp_path / "q" / "m.onnx", inline_limit=0)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
    assert made.log().nodes and (tmp_path / "q" / "m.onnx.data").stat().st_size < 20 << 20


@pytest.mark.parametrize("weights", ["rtn", "gptq"])
@pytest.mark.parametrize("codes", ["int4", "float8e4m3fn", "nf4", "float4e2m1"])
def test_a_way_is_chosen_only_where_it_can_be_gone(codes: Codes, weights: str) -> None:
    """The plan and the step read the same rules."""
    own = rules(NumberFormat(codes, "block", symmetric=True, block_size=16))
    chosen = way(1 << 30, 1 << 31, own, weights, sampled=True, where="m")
    assert (
        (chosen in ("layers", "pieces"))
        == own[PRECISIONS["int4"]].weights_in_blocks
        == (codes != "float4e2m1")
    )

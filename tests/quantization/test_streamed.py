"""Weights quantized while they are saved: the same codes as from memory, and little of it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from optkit import graph
from optkit.assignment import Assignment
from optkit.errors import InputRefused
from optkit.precision import NumberFormat
from optkit.quantization import qdq, streamed
from optkit.quantization.decide import decide
from optkit.recipe import Quantization
from optkit.runtime import PlacementRules

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


def rules(fmt: NumberFormat) -> dict[str, PlacementRules]:
    return {
        "int4": PlacementRules(None, fmt, frozenset({"MatMul", "Gemm"}), False, frozenset(), False)
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
@pytest.mark.parametrize("codes", ["int4", "uint4", "int8"])
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
    fmt = NumberFormat(codes, "block", symmetric=codes != "uint4", block_size=block)
    carrier = np.dtype(getattr(ml_dtypes, dtype, dtype))
    settings, own = Quantization(weights=weights), rules(fmt)
    wanted, built = model(dtype), model(dtype)
    plan = Assignment(
        {str(n.name): "int4" for n in wanted.graph if n.op_type in ("MatMul", "Gemm")}
    )
    decisions = decide(
        model("float32") if dtype == "float32" else wanted, plan, None, own, settings,
        method="minmax", percentile=100, carrier=carrier,
    )  # fmt: skip
    log = qdq.apply(wanted, decisions, plan, own, None, scale_dtype=carrier)
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


def test_a_transposed_weight_keeps_its_layout_on_disk(tmp_path: Path) -> None:
    """The blocks run along the stored matrix's columns, which the node sums over."""
    built = model("float16")
    node = next(n for n in built.graph if n.op_type == "MatMul" and n.inputs[1].name == "u")
    stored = graph.add_constant(built.graph, "turned", graph.array(node.inputs[1]).T.copy())
    turn = ir.node("Transpose", [stored], {"perm": [1, 0]}, name="turn")
    turn.outputs[0].name, turn.outputs[0].type = "back", stored.type
    turn.outputs[0].shape = ir.Shape(SHAPES["u"])
    built.graph.insert_before(built.graph[0], turn)
    node.replace_input_with(1, turn.outputs[0])
    plan = Assignment({str(node.name): "int4"})
    fmt = NumberFormat("int4", "block", symmetric=True, block_size=32)
    streamed.apply(built, plan, rules(fmt), Quantization(weights="rtn"), carrier=np.float16)
    graph.save(built, tmp_path / "m.onnx", inline_limit=0)
    graph.check(tmp_path / "m.onnx")
    loaded = graph.load(tmp_path / "m.onnx")
    assert "turn" not in {str(n.name) for n in loaded.graph}
    (dq,) = (n for n in loaded.graph if n.op_type == "DequantizeLinear")
    codes, scale = (graph.array(value) for value in dq.inputs[:2])
    assert codes.shape == (96, 130) and scale.shape == (96, 5) and dq.attributes["axis"].value == 1
    spread = np.repeat(scale.astype(np.float32), 32, axis=1)[:, :130]
    error = np.abs(
        codes.astype(np.float32) * spread - graph.array(model("float16").graph.initializers["u"]).T
    )
    assert (error <= spread * 0.5001).all()


def test_only_what_needs_no_data_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    built = model("float16")
    plan = Assignment({str(n.name): "int4" for n in built.graph})
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


def test_a_bad_weight_is_told_by_name(tmp_path: Path) -> None:
    built = model("float16")
    graph.array(built.graph.initializers["w"])[3, 3] = np.nan
    plan = Assignment({str(n.name): "int4" for n in built.graph})
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
    form = graph.Form("w", ir.DataType.FLOAT16, (8192, 4096))
    (tensor,) = graph.computed([form], lambda: ((block,) for _ in range(8)))
    built.graph[0].replace_input_with(1, graph.add_tensor(built.graph, tensor))
    graph.save(graph.infer_shapes(built), tmp_path / "m.onnx", inline_limit=0)
    loaded = graph.load(tmp_path / "m.onnx")
    plan = Assignment({str(loaded.graph[0].name): "int4"})
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

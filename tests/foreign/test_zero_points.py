"""Codes and zero points of all kinds: whatever becomes of a graph that another tool has quantized,
plain ONNX Runtime and the checker of the onnx library accept it, and it computes the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optkit.craft import foreign
from optkit.craft.foreign.qdq_parameters import codes_of
from optkit.craft.sources import onnx_file
from optkit.facts.documents.given_graph import GraphRepair
from optkit.ground import graph
from tests.foreign.test_foreign import run, sqnr
from tests.plain_tools import accepted

# what stands between a pair and the product
MOVES = {
    "nothing": "d = Identity(b)",
    "transpose": "c = Transpose<perm = [0, 2, 1]>(b) d = Transpose<perm = [0, 2, 1]>(c)",
    "reshape": "c = Reshape(b, flat) d = Reshape(c, back)",
    "squeeze": "c = Unsqueeze(b, axis) d = Squeeze(c, axis)",
    "slice": "d = Slice(b, axis, five, last)",
    "pool": "d = MaxPool<kernel_shape = [1]>(b)",
}
_TEXT = """<ir_version: 10, opset_import: ["" : {opset}]>
moved (float[2, 4, 6] x) => (float[2, 4, 3] y, float[2, 4, m] out)
<float s = {{0.03}}, {act} z = {{{zero}}}, float sw = {{0.02}}, {weight} zw = {{{weight_zero}}},
 {weight}[6, 3] w = {{{codes}}}, int64[2] flat = {{8, 6}}, int64[3] back = {{2, 4, 6}},
 int64[1] axis = {{0}}, int64[1] five = {{6}}, int64[1] last = {{2}}> {{
  [q] a = QuantizeLinear{attribute}(x, s{after}) [dq] b = DequantizeLinear(a, s{after})
  {move}
  [wdq] v = DequantizeLinear(w, sw, zw) [product] y = MatMul(d, v) out = Identity(d)
}}"""


def mixed(
    act: str, zero: int | None, weight: str, weight_zero: int, move: str, opset: int, named: bool
) -> onnx.ModelProto:
    """`zero` None: the pair has no zero point; `named`: it has the attribute output_dtype."""
    low = -100 if weight == "int8" else 28
    codes = np.random.default_rng(1).integers(low, low + 200, 18)
    number = onnx.TensorProto.DataType.Value(act.upper())
    return onnx.parser.parse_model(
        _TEXT.format(
            opset=opset, act=act, zero=zero or 0, after="" if zero is None else ", z",
            weight=weight, weight_zero=weight_zero, codes=", ".join(map(str, codes)),
            attribute=f"<output_dtype = {number}>" if named else "", move=MOVES[move],
        )
    )  # fmt: skip


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    act, weight = draw(st.sampled_from(["uint8", "int8"])), draw(st.sampled_from(["uint8", "int8"]))
    opset = draw(st.sampled_from([13, 19, 21, 23]))
    spans = {"uint8": st.integers(0, 255), "int8": st.integers(-128, 127)}
    # without the attribute a pair without a zero point has uint8 codes
    absent = st.none() if opset >= 21 or act == "uint8" else st.nothing()
    zero = draw(st.one_of(spans[act], st.sampled_from([0, 0 if act == "int8" else 128]), absent))
    named = opset >= 21 and (draw(st.booleans()) or (zero is None and act == "int8"))
    move = draw(st.sampled_from(sorted(MOVES)))
    return mixed(act, zero, weight, draw(spans[weight]), move, opset, named)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(proto=graphs())
def test_any_codes_and_zero_points_stay_valid_for_every_target(
    proto: onnx.ModelProto, tmp_path: Path
) -> None:
    onnx.checker.check_model(proto, full_check=True)
    _accepted_in_every_form(proto, tmp_path)


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize(("act", "zero"), [("uint8", 128), ("int8", 0), ("int8", 7)])
@pytest.mark.parametrize("weight", ["uint8", "int8"])
@pytest.mark.parametrize("named", [False, True])
def test_codes_behind_every_move_stay_valid_for_every_target(
    move: str, act: str, zero: int, weight: str, named: bool, tmp_path: Path
) -> None:
    proto = mixed(act, zero, weight, 128 if weight == "uint8" else 0, move, 21, named)
    _accepted_in_every_form(proto, tmp_path)


def _accepted_in_every_form(proto: onnx.ModelProto, folder: Path) -> None:
    """As optkit reads it, in Q/DQ pairs for a CPU, and repaired for TensorRT."""
    onnx.save(proto, folder / "given.onnx")
    given = ir.from_proto(proto)
    codes = codes_of(given.graph[0])
    assert codes is not None
    low, high = codes.range  # beyond it a pair clips, which a wider range does not
    feed = np.random.default_rng(0).uniform(low, high, (2, 4, 6)).astype(np.float32)
    expected = run(given, feed)
    onnx_file.export(folder / "given.onnx", (), folder / "exported.onnx")
    repairs: dict[str, tuple[GraphRepair, ...]] = {}
    for name, wanted in (("exported", None), ("cpu", foreign.FORMS), ("l4", foreign.REPAIRS)):
        model = graph.load(folder / "exported.onnx")
        if wanted is not None:
            repairs[name] = foreign.repair(model, wanted)
            graph.infer_shapes(model)
        graph.save(model, folder / f"{name}.onnx")
        assert accepted(folder / f"{name}.onnx")
        found = run(model, feed)
        if all(one.exact for one in repairs.get(name, ())):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert sqnr(expected, found) > 25  # its steps are at most twice as wide


_LINEAR = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
linear (float[2, 4] x) => (float[2, 4] y)
<float s = {{0.05}}, {codes} z = {{{zero}}}, float[4] w = {{-3, -1, 2, 4}}> {{
  q = QuantizeLinear(x, s, z) v = QuantizeLinear(w, s, z)
  [integer] c = com.microsoft.{product}
  y = DequantizeLinear(c, s, z)
}}"""


@pytest.mark.parametrize("codes", ["uint8", "int8"])
@pytest.mark.parametrize(
    "product",
    [
        "QLinearAdd(q, s, z, v, s, z, s)",
        "QLinearMul(q, s, z, v, s, z, s, )",
        "QLinearSigmoid(q, s, , s, z)",
    ],
)
def test_integer_operators_without_zero_points_have_zero(
    product: str, codes: str, tmp_path: Path
) -> None:
    """ONNX Runtime takes these three forms of its own operators; without others it ends."""
    proto = onnx.parser.parse_model(_LINEAR.format(codes=codes, zero=0, product=product))
    onnx.save(proto, tmp_path / "given.onnx")
    given_graph, model = (graph.load(tmp_path / "given.onnx") for _ in range(2))
    foreign.normal_form(model)
    assert not foreign.integer_operators(model)
    graph.infer_shapes(model)
    feed = np.random.default_rng(0).normal(0, 3, (2, 4)).astype(np.float32)
    np.testing.assert_allclose(run(model, feed), run(given_graph, feed), atol=0.0501)  # one code

"""Fidelity by layer, against the same quantities taken from tapped graphs in float64."""

from __future__ import annotations

from math import log10, sqrt
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from optkit.craft.backends.onnxruntime import OnnxRuntime
from optkit.craft.benchmarking.layer_comparison import (
    ComparedNode,
    NodeFidelity,
    restored,
    side_by_side,
    without,
)
from optkit.facts.errors import InputRefused
from optkit.ground import graph
from optkit.ground.runtimes import SessionOptions

FLOAT = """<ir_version: 10, opset_import: ["" : 21]>
g (float[N,8] x, float[8,16] w1, float[16,4] w2) => (float[N,4] y) {
  [first] h = MatMul (x, w1)
  [relu] r = Relu (h)
  [second] y = MatMul (r, w2)
}"""

# the first layer with its scale split: a power of the channel's is multiplied behind
CODES = """<ir_version: 10, opset_import: ["" : 21]>
g (float[N,8] x, int8[8,16] c1, float s1, float[16] behind, int8[16,4] c2, float[4] s2, float sx,
   int8 zx, float sr, int8 zr) => (float[N,4] y) {
  [dq1] v1 = DequantizeLinear (c1, s1)
  [dq2] v2 = DequantizeLinear <axis=1> (c2, s2)
  [qx] xq = QuantizeLinear (x, sx, zx)
  [dqx] xd = DequantizeLinear (xq, sx, zx)
  [first] h0 = MatMul (xd, v1)
  [Mul_h] h = Mul (h0, behind)
  [relu] r = Relu (h)
  [qr] rq = QuantizeLinear (r, sr, zr)
  [dqr] rd = DequantizeLinear (rq, sr, zr)
  [second] y = MatMul (rd, v2)
}"""

RNG = np.random.default_rng(7)
W1 = RNG.standard_normal((8, 16)).astype(np.float32)
W2 = RNG.standard_normal((16, 4)).astype(np.float32)
BEHIND = np.exp2(-RNG.integers(0, 3, 16)).astype(np.float32)
S1 = np.float32(np.abs(W1 / BEHIND).max() / 127)
S2 = (np.abs(W2).max(axis=0) / 127).astype(np.float32)
C1 = np.rint(W1 / BEHIND / S1).astype(np.int8)
C2 = np.rint(W2 / S2).astype(np.int8)
SX, SR = np.float32(3 / 127), np.float32(2 / 127)  # the second clips
FEEDS = [{"x": RNG.standard_normal((5, 8)).astype(np.float32)} for _ in range(3)]


NUMBERS: dict[str, np.ndarray] = {
    "w1": W1, "w2": W2, "c1": C1, "s1": S1, "behind": BEHIND, "c2": C2, "s2": S2, "sx": SX,
    "zx": np.array(0, np.int8), "sr": SR, "zr": np.array(0, np.int8),
}  # fmt: skip


def model(text: str) -> ir.Model:
    return filled(ir.from_onnx_text(text), NUMBERS)


def filled(made: ir.Model, numbers: dict[str, np.ndarray]) -> ir.Model:
    for value in [value for value in made.graph.inputs if value.name in numbers]:
        made.graph.inputs.remove(value)
        value.const_value = ir.Tensor(np.asarray(numbers[value.name]), name=value.name)
        made.graph.register_initializer(value)
    return made


def pair(x: np.ndarray, scale: np.float32) -> np.ndarray:
    return np.clip(np.rint(x / scale), -128, 127) * scale


def forward(x: np.ndarray, *, pairs: bool, codes: bool) -> tuple[np.ndarray, np.ndarray]:
    """h and y in float64."""
    w1 = C1 * S1.astype(np.float64) * BEHIND if codes else W1.astype(np.float64)
    w2 = C2 * S2.astype(np.float64) if codes else W2.astype(np.float64)
    h = (pair(x, SX) if pairs else x).astype(np.float64) @ w1
    r = np.maximum(h, 0)
    return h, (pair(r, SR) if pairs else r) @ w2


def sqnr(r: np.ndarray, c: np.ndarray) -> float:
    return 10 * log10(np.square(r).sum() / np.square(r - c).sum())


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> NodeFidelity:
    place = tmp_path_factory.mktemp("layers") / "model.onnx"
    made = side_by_side(model(FLOAT), model(CODES), ["first", "second", "none"])
    graph.save(made.model, place)
    with OnnxRuntime().session(place, SessionOptions(level="basic")) as session:
        assert all(info.shape in ((5,), (7,)) for info in session.outputs)  # sums, no tensor
        return made.compare(session, FEEDS)


X = np.concatenate([feed["x"] for feed in FEEDS])
H, Y = forward(X, pairs=False, codes=False)


def test_layers_are_found_by_the_values_that_both_graphs_have(compared: NodeFidelity) -> None:
    assert compared.layers == (
        ComparedNode("first", "MatMul", "h", ("x",)),
        ComparedNode("second", "MatMul", "y", ("r",)),
    )
    assert compared.samples == 15  # whole feeds, as many as it takes


def test_sqnr_cosine_and_the_largest_error_of_all_layers_quantized(compared: NodeFidelity) -> None:
    h, y = forward(X, pairs=True, codes=True)
    for name, r, c in (("first", H, h), ("second", Y, y)):
        found = compared.likeness["propagated", name]
        assert found is not None and found.sqnr_db == pytest.approx(sqnr(r, c), abs=1e-3)
        cosine = (r * c).sum() / sqrt(np.square(r).sum() * np.square(c).sum())
        assert found.cosine == pytest.approx(cosine, abs=1e-6)
        assert found.max_abs_error == pytest.approx(np.abs(r - c).max(), rel=1e-4)


def test_one_layer_alone_reads_what_the_reference_computes(compared: NodeFidelity) -> None:
    r = np.maximum(H, 0)
    alone = pair(r, SR) @ (C2 * S2.astype(np.float64))
    found = compared.likeness["isolated", "second"]
    assert found is not None and found.sqnr_db == pytest.approx(sqnr(Y, alone), abs=1e-3)
    weights = compared.likeness["weights", "second"]
    only = r @ (C2 * S2.astype(np.float64))
    assert weights is not None and weights.sqnr_db == pytest.approx(sqnr(Y, only), abs=1e-3)


def test_what_a_pair_clips(compared: NodeFidelity) -> None:
    r = np.maximum(H, 0)
    found = {one.value: one for one in compared.clipping}["r"]
    beyond = r - np.clip(r, -128 * SR, 127 * SR)
    noise = np.square(r - pair(r, SR)).sum()
    assert found.readers == ("second",)
    assert found.share == pytest.approx((beyond > 0).mean(), abs=1e-6)
    assert found.noise == pytest.approx(np.square(beyond).sum() / noise, rel=1e-4)
    assert found.sqnr_db == pytest.approx(sqnr(r, pair(r, SR)), abs=1e-3)
    assert (found.low, found.high) == pytest.approx((-128 * SR, 127 * SR))
    assert found.seen == pytest.approx((0.0, r.max()))


def test_channels_that_no_product_multiplies_are_not_clipped(tmp_path: Path) -> None:
    """As those of outlier channels, which another product multiplies."""
    r, w2 = np.maximum(H, 0), W2.copy()
    apart = np.argsort(r.max(axis=0))[-3:]
    w2[apart] = 0
    reference = filled(ir.from_onnx_text(FLOAT), {**NUMBERS, "w2": w2})
    made = side_by_side(reference, model(CODES), ["first", "second"])
    graph.save(made.model, tmp_path / "model.onnx")
    with OnnxRuntime().session(tmp_path / "model.onnx", SessionOptions(level="none")) as session:
        compared = made.compare(session, FEEDS)
    found = {one.value: one for one in compared.clipping}["r"]
    rest = np.delete(r, apart, axis=1)
    assert found.share == pytest.approx((rest > 127 * SR).mean(), abs=1e-6)
    assert found.share < (r > 127 * SR).mean()
    assert found.sqnr_db == pytest.approx(sqnr(rest, pair(rest, SR)), abs=1e-3)
    assert found.seen == pytest.approx((0.0, rest.max()))


@pytest.mark.parametrize("names", [["first"], ["second"], ["first", "second"]])
def test_a_restored_layer_multiplies_floats_again(
    compared: NodeFidelity, names: list[str], tmp_path: Path
) -> None:
    layers = [layer for layer in compared.layers if layer.node in names]
    graph.save(restored(model(FLOAT), model(CODES), layers), tmp_path / "model.onnx")
    with OnnxRuntime().session(tmp_path / "model.onnx", SessionOptions(level="basic")) as session:
        found = session.run({"x": X})["y"]
    h = H if "first" in names else forward(X, pairs=True, codes=True)[0]
    r = np.maximum(h, 0)
    whole = r @ W2 if "second" in names else pair(r, SR) @ (C2 * S2.astype(np.float64))
    np.testing.assert_allclose(found, whole, atol=1e-4)


def test_restored_layers_may_read_one_value_that_only_the_reference_has(tmp_path: Path) -> None:
    """A quantizer removed the Relu, because its codes begin at zero."""
    both = "[second] y = MatMul (r, w2) [third] z = MatMul (r, w2)"
    wider = "(float[N,4] y, float[N,4] z)"
    reference = FLOAT.replace("[second] y = MatMul (r, w2)", both).replace("(float[N,4] y)", wider)
    candidate = (
        reference.replace("[relu] r = Relu (h)", "").replace("(r, w2)", "(d, w2)")
        .replace("[second]", "[q] c = QuantizeLinear (h, sr, zu)  "
                 "[dq] d = DequantizeLinear (c, sr, zu)  [second]")
        .replace("float[16,4] w2)", "float[16,4] w2, float sr, uint8 zu)")
    )  # fmt: skip
    layers = [ComparedNode("second", "MatMul", "y", ()), ComparedNode("third", "MatMul", "z", ())]
    given = filled(model(candidate), {"zu": np.array(0, np.uint8)})
    graph.save(restored(model(reference), given, layers), tmp_path / "model.onnx")
    with OnnxRuntime().session(tmp_path / "model.onnx", SessionOptions(level="basic")) as session:
        found = session.run({"x": X})
    for name in ("y", "z"):
        np.testing.assert_allclose(found[name], np.maximum(H, 0) @ W2, atol=1e-4)


def test_equal_tensors_have_no_sqnr(tmp_path: Path) -> None:
    made = side_by_side(model(FLOAT), model(FLOAT), ["first"])
    graph.save(made.model, tmp_path / "model.onnx")
    with OnnxRuntime().session(tmp_path / "model.onnx", SessionOptions(level="basic")) as session:
        found = made.compare(session, FEEDS).likeness["propagated", "first"]
    assert found is not None and (found.sqnr_db, found.cosine, found.max_abs_error) == (None, 1, 0)


@pytest.mark.parametrize(
    ("h", "r"),
    [("flat", "compared/flat"), ("compared/r", "sum/flat"), ("sum/22", "alone/sum/22"),
     ("weights/r", "sum/pair 0 low")],
)  # fmt: skip
def test_the_models_own_names_are_in_nobodys_way(
    h: str, r: str, compared: NodeFidelity, tmp_path: Path
) -> None:
    models = [model(FLOAT), model(CODES)]
    for one in models:
        for value in {value for node in one.graph for value in node.outputs}:
            value.name = {"h": h, "r": r}.get(str(value.name), value.name)
    made = side_by_side(*models, ["first", "second"])
    graph.save(made.model, tmp_path / "model.onnx")
    with OnnxRuntime().session(tmp_path / "model.onnx", SessionOptions(level="basic")) as session:
        found = made.compare(session, FEEDS)
    assert [layer.tensor for layer in found.layers] == [h, "y"]
    assert found.likeness == {
        key: pytest.approx(wanted) for key, wanted in compared.likeness.items()
    }


def test_codes_that_the_graph_itself_gives_out_are_no_pair(tmp_path: Path) -> None:
    own = "  [own] codes = QuantizeLinear (h, sx, zx)\n}"
    texts = (
        text.replace("(float[N,4] y) {", "(float[N,4] y, int8[N,16] codes) {").replace(
            "\n}", f"\n{own}"
        )
        for text in (FLOAT.replace("w2)", "w2, float sx, int8 zx)", 1), CODES)
    )
    made = side_by_side(*map(model, texts), ["first", "second"])
    graph.save(made.model, tmp_path / "model.onnx")
    with OnnxRuntime().session(tmp_path / "model.onnx", SessionOptions(level="basic")) as session:
        found = made.compare(session, FEEDS)
    assert [one.value for one in found.clipping] == ["x", "r"]


def test_graphs_of_other_inputs_are_refused() -> None:
    with pytest.raises(InputRefused, match="the reference has another"):
        side_by_side(model(FLOAT), model(CODES.replace("float[N,8] x", "float16[N,8] x")), [])


TWICE = CODES.replace(
    "float sr, int8 zr)", "float sr, int8 zr, float st)"
).replace(
    "[second] y = MatMul (rd, v2)",
    """[qt] tq = QuantizeLinear (rd, st, zr)
  [dqt] td = DequantizeLinear (tq, st, zr)
  [second] y = MatMul (td, v2)""",
)  # fmt: skip
ST = np.float32(8 * SR)


def test_a_pair_on_a_pair_and_one_that_no_product_reads_are_told_apart(tmp_path: Path) -> None:
    made = side_by_side(model(FLOAT), twice(), ["first", "second"])
    assert [(p.quantize, p.value, p.read, p.again) for p in made.pairs] == [
        ("qx", "x", True, False), ("qr", "r", True, False), ("qt", "r", True, True),
    ]  # fmt: skip
    assert made.pairs[1].readers == made.pairs[2].readers == ("second",)
    graph.save(made.model, tmp_path / "model.onnx")
    with OnnxRuntime().session(tmp_path / "model.onnx", SessionOptions(level="none")) as session:
        found = made.compare(session, FEEDS).clipping
    assert [one.fault for one in found] == ["clipped", "clipped", "duplicated"]
    r = np.maximum(H, 0)
    assert found[2].sqnr_db == pytest.approx(sqnr(r, pair(pair(r, SR), ST)), abs=1e-3)
    only_first = side_by_side(model(FLOAT), model(CODES), ["first"])
    assert [one.read for one in only_first.pairs] == [True, False]


def test_without_a_pair_its_readers_get_what_it_rounds(tmp_path: Path) -> None:
    graph.save(without(twice(), ["qt"]), tmp_path / "once.onnx")
    graph.save(without(twice(), ["qr", "qt"]), tmp_path / "none.onnx")
    r = np.maximum(forward(X, pairs=True, codes=True)[0], 0)
    for name, read in (("once", pair(r, SR)), ("none", r)):
        with OnnxRuntime().session(
            tmp_path / f"{name}.onnx", SessionOptions(level="none")
        ) as session:
            found = session.run({"x": X})["y"]
        np.testing.assert_allclose(found, read @ (C2 * S2.astype(np.float64)), atol=1e-4)


def twice() -> ir.Model:
    """The candidate with a coarser pair behind the second layer's."""
    made = ir.from_onnx_text(TWICE)
    return filled(made, {**NUMBERS, "st": ST})

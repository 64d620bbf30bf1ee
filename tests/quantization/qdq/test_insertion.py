"""The quantized graph: valid plain ONNX, close to the float one, alike in both carriers."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from optkit.craft.precision_cast.cast import to_half
from optkit.craft.quantization.choose_qparams import choose_qparams
from optkit.craft.quantization.placement.assign import assign
from optkit.craft.quantization.qdq.insertion import apply, taps
from optkit.facts.assignment import Scheme
from optkit.facts.errors import InputRefused
from optkit.facts.precisions import PRECISIONS
from optkit.ground import graph
from optkit.ground.recipe import Quantization
from optkit.ground.statistics import Statistics
from tests.networks import NETWORKS, feed, network, sqnr
from tests.quantization.workshop import RULES

KINDS = ["cpu", "gpu"]
NETS = ["residual", "attention"]


def constants(model: ir.Model, suffix: str) -> dict[str, np.ndarray]:
    found = {}
    for name, value in model.graph.initializers.items():
        numbers = graph.array(value)
        if name.endswith(suffix) and numbers is not None:
            found[name] = numbers
    return found


def node(model: ir.Model, name: str) -> ir.Node:
    return next(n for n in model.graph if n.name == name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("net", NETS)
def test_the_quantized_graph_stays_close_to_the_float_one(
    workshop: Any, net: str, kind: str
) -> None:
    model = network(NETWORKS[net])
    given = feed(model, batch=32, seed=9)
    quantized, _, _ = workshop.quantize(model, kind)
    found = sqnr(workshop.run(model, given)["y"], workshop.run(quantized, given)["y"])
    assert found > 34


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("net", NETS)
def test_the_form_of_the_graph(workshop: Any, net: str, kind: str) -> None:
    quantized, assignment, log = workshop.quantize(network(NETWORKS[net]), kind)
    assert {n.domain for n in quantized.graph} == {""} and quantized.opset_imports[""] >= 21
    quantizing = [n for n in quantized.graph if n.op_type == "QuantizeLinear"]
    assert len(quantizing) == log.pairs == len({n.inputs[0] for n in quantizing})
    for each in quantizing:
        assert all(np.shape(graph.array(value)) == () for value in each.inputs[1:])
        (restored,) = each.outputs[0].consumers()
        assert restored.op_type == "DequantizeLinear" and restored.outputs[0].consumers()
    for name in assignment.quantized():
        operands = node(quantized, name).inputs[:2]
        assert [v.producer().op_type for v in operands] == ["DequantizeLinear"] * 2
    carrier = np.float16 if kind == "gpu" else np.float32
    for scale in constants(quantized, "_scale").values():
        assert (scale >= np.finfo(carrier).smallest_normal).all() and np.isfinite(scale).all()
    unused = [v.name for v in quantized.graph.initializers.values() if not v.uses()]
    assert not unused, "float weights are gone"


@pytest.mark.parametrize("net", NETS)
def test_the_fp16_graph_and_its_simulation_hold_the_same_numbers(workshop: Any, net: str) -> None:
    model = network(NETWORKS[net])
    half = model.clone()
    to_half(half)
    simulation, _, _ = workshop.quantize(model, "gpu")
    engine, _, _ = workshop.quantize(model, "gpu", carrier=half)

    def numbers(quantized: ir.Model, suffix: str) -> Counter[bytes]:
        return Counter(
            a.astype(np.float32).tobytes() for a in constants(quantized, suffix).values()
        )

    for suffix in ("_quantized", "_scale", "_zero_point"):
        assert numbers(simulation, suffix) == numbers(engine, suffix)
    given = feed(model, seed=9)
    assert sqnr(workshop.run(simulation, given)["y"], workshop.run(engine, given)["y"]) > 37


def test_a_tapped_model_output_is_found_in_the_fp16_graph(workshop: Any) -> None:
    model = network(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[N,8] x, float[8,8] w_1, float[8,8] w_2) => (float[N,8] y, float[N,8] z) {
        [first] y = MatMul (x, w_1)
        [second] z = MatMul (y, w_2)
        }"""
    )
    half = model.clone()
    to_half(half)
    _, _, log = workshop.quantize(model, "gpu", carrier=half)
    assert len(log.activations) == 2 and len(log.nodes) == 2


def test_taps_are_all_that_apply_needs_and_a_missing_one_is_named(workshop: Any) -> None:
    model = network(NETWORKS["residual"])
    own = {PRECISIONS["int8"]: RULES["cpu"]}
    assignment = assign(model, Scheme(PRECISIONS["int8"], "fp32", own))
    statistics = workshop.statistics(model, taps(model, assignment, own))
    lacking = Statistics(
        {n: v for n, v in statistics.values.items() if n != "r1"}, 32, statistics.data
    )
    options: dict[str, Any] = {"method": "minmax", "percentile": 100, "carrier": np.float32}
    with pytest.raises(InputRefused) as error:
        choose_qparams(model, assignment, lacking, own, Quantization(), **options)
    assert error.value.where == "tensor 'r1'"
    qparams = choose_qparams(model, assignment, statistics, own, Quantization(), **options)
    old = model.clone()
    old.opset_imports[""] = 20
    with pytest.raises(InputRefused, match="opset 21"):
        apply(old, qparams, assignment, own, statistics, scale_dtype=np.float32)


def test_one_weight_of_two_nodes_is_stored_once_and_stays_for_its_float_reader(
    workshop: Any,
) -> None:
    model = network(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[N,16] x, int64[N] i, float[16,16] w) => (float[N,16] y) {
        [a] h = MatMul (x, w)
        [act] r = Tanh (h)
        [b] k = MatMul (r, w)
        [rows] e = Gather (w, i)
        [sum] y = Add (k, e)
        }"""
    )
    given = {**feed(model, seed=9), "i": np.arange(16)}
    rules = workshop.quantize(model, "cpu")
    quantized = rules[0]
    assert list(constants(quantized, "w_quantized")) == ["w_quantized"]
    assert "w" in quantized.graph.initializers
    assert sqnr(workshop.run(model, given)["y"], workshop.run(quantized, given)["y"]) > 30


@pytest.mark.parametrize("kind", KINDS)
def test_the_transpose_of_a_torch_linear_is_folded_into_the_codes(workshop: Any, kind: str) -> None:
    model = network(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[N,4,16] x, float[24,16] w) => (float[N,4,24] y) {
        [turn] t = Transpose <perm=[1,0]> (w)
        [fc] y = MatMul (x, t)
        }"""
    )
    given = feed(model, seed=9)
    quantized, _, _ = workshop.quantize(model, kind)
    assert "Transpose" not in {n.op_type for n in quantized.graph}
    (codes,) = constants(quantized, "t_quantized").values()
    assert codes.shape == (16, 24) and (np.abs(codes).max(axis=0) == 127).all()
    assert sqnr(workshop.run(model, given)["y"], workshop.run(quantized, given)["y"]) > 35


def test_a_channel_whose_weights_vanish_keeps_its_bias(workshop: Any) -> None:
    dead = np.random.default_rng(0).standard_normal((24, 24, 3, 3)) * 0.07
    dead[5], dead[6] = dead[5] * 1e-9, 0
    bias = np.full(24, 0.777)
    model = network(NETWORKS["residual"], w_1=dead, b_1=bias)
    given = feed(model, seed=9)
    for kind in KINDS:
        quantized, _, _ = workshop.quantize(model, kind)
        tapped = graph.expose(quantized, ["r1"])
        found = workshop.run(tapped, given)["r1"]
        assert found[:, 5:7] == pytest.approx(0.777, rel=1e-3)
        assert sqnr(workshop.run(model, given)["y"], workshop.run(quantized, given)["y"]) > 34


def test_split_scales_multiply_back_and_products_of_one_activation_share_theirs(
    workshop: Any,
) -> None:
    model = network(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[N,4,16] x, float[16,8] w_q, float[16,8] w_k, float[8] b_q) => (float[N,4,4] y) {
        [q] q0 = MatMul (x, w_q)
        [qb] q = Add (q0, b_q)
        [k] k = MatMul (x, w_k)
        [kt] kt = Transpose <perm=[0,2,1]> (k)
        [s] y = MatMul (q, kt)
        }"""
    )
    quantized, _, log = workshop.quantize(model, "gpu")
    common = {float(constants(quantized, f"{w}_scale")[f"{w}_scale"]) for w in ("w_q", "w_k")}
    assert len(common) == 1
    for name, w in (("q", "w_q"), ("k", "w_k")):
        codes = constants(quantized, f"{w}_quantized")[f"{w}_quantized"].astype(np.float32)
        ratio = constants(quantized, "_channel_scale")[f"{name}_channel_scale"]
        weight = graph.array(model.graph.initializers[w])
        step = next(iter(common)) * ratio.reshape(-1)
        assert (np.abs(codes * step - weight) <= step * 0.51).all()
        assert log.nodes[name].weight_scale == pytest.approx((step.min(), step.max()))


def test_a_split_convolution_keeps_its_results_name(workshop: Any) -> None:
    model = network(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[N,8,4,4] x, float[8,8,1,1] w_1, float[8] b_1, float[8,8,1,1] w_2)
        => (float[N,8,4,4] y) {
        [first] c = Conv (x, w_1, b_1)
        [second] y = Conv (c, w_2)
        }"""
    )
    quantized, _, log = workshop.quantize(model, "gpu")
    assert [v.name for v in quantized.graph.outputs] == ["y"]
    assert list(log.activations) == ["x", "c"]
    assert len(node(quantized, "first").inputs) == 2  # the bias went behind
    given = feed(model, seed=9)
    before, after = (workshop.run(graph.expose(m, ["c"]), given) for m in (model, quantized))
    assert sqnr(before["c"], after["c"]) > 35 and sqnr(before["y"], after["y"]) > 35


def test_matrices_are_written_as_gemm_where_the_rules_say_so(workshop: Any) -> None:
    model = network(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[N,8] x, float[8,8] w, float[8] b) => (float[N,8] y) {
        [fc] h = MatMul (x, w)
        [bias] y = Add (h, b)
        }"""
    )
    assert node(workshop.quantize(model, "cpu")[0], "fc").op_type == "Gemm"
    assert node(workshop.quantize(model, "gpu")[0], "fc").op_type == "MatMul"


def test_a_percentile_clips_and_the_log_says_how_much(workshop: Any) -> None:
    model = network(NETWORKS["attention"])
    full = workshop.quantize(model, "gpu")[2]
    cut = workshop.quantize(model, "gpu", method="percentile")[2]
    for name, value in cut.activations.items():
        assert value.scale < full.activations[name].scale
        assert 0 < value.clipped < 0.012 and full.activations[name].clipped == 0


def test_zeros_constants_and_few_samples_are_quantized_with_a_warning(workshop: Any) -> None:
    model = network(NETWORKS["residual"], w_stem=np.zeros((24, 3, 3, 3)), b_stem=np.zeros(24))
    quantized, _, log = workshop.quantize(model, "cpu")
    assert log.activations["sr"].scale == 1 and log.activations["sr"].zero_point == 0
    assert any("'sr' is constant" in warning for warning in log.warnings)
    assert np.isfinite(workshop.run(quantized, feed(model))["y"]).all()


def test_a_vanishing_activation_is_clamped_to_what_half_holds_and_counted(workshop: Any) -> None:
    model = network(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[N,8] x, float[8,8] w_1, float[8,8] w_2) => (float[N,8] y) {
        [a] h = MatMul (x, w_1)
        [b] y = MatMul (h, w_2)
        }""",
        w_1=np.full((8, 8), 1e-6),
    )
    log = workshop.quantize(model, "gpu")[2]
    assert (log.activations["h"].scale, log.clamped) == (2.0**-14, 1)
    assert log.nodes["a"].weight_scale[0] == pytest.approx(1e-6 / 127, rel=0.06)  # half's own steps
    assert workshop.quantize(model, "cpu")[2].clamped == 0


def test_the_log_is_json_and_the_graph_the_same_bytes_each_time(
    workshop: Any, tmp_path: Path
) -> None:
    found = []
    for name in ("a", "b"):
        quantized, _, log = workshop.quantize(network(NETWORKS["residual"]), "gpu")
        graph.save(quantized, tmp_path / name)
        found.append(((tmp_path / name).read_bytes(), json.dumps(log.to_json())))
    assert found[0] == found[1]
    assert json.loads(found[0][1])["nodes"]["conv1"]["activation"] == "sr"


def test_a_half_input_is_calibrated_where_both_graphs_have_it(workshop: Any) -> None:
    """The FP16 cast drops the Cast at the border, and with it the name of what it put out."""
    model = network(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float16[N,4] x, float[4,4] w_1, float[4,4] w_2) => (float[N,4] y) {
        [wide] f = Cast <to = 1> (x)
        [first] h = MatMul (f, w_1)
        [relu] r = Relu (h)
        [second] y = MatMul (r, w_2)
        }"""
    )
    half = model.clone()
    to_half(half)
    assert "wide" not in {n.name for n in half.graph}
    _, _, full = workshop.quantize(model, "gpu")
    _, _, cast = workshop.quantize(model, "gpu", carrier=half)
    scales = [[v.scale for v in log.activations.values()] for log in (full, cast)]
    assert scales[0] == scales[1] and len(scales[0]) == 2


def test_a_gemm_without_a_bias_gets_one(workshop: Any) -> None:
    """Its mean error is made up for by an integer bias that it did not have."""
    model = network("""<ir_version: 10, opset_import: ["" : 21]>
        g (float[N,32] x, float[16,32] w_1, float[16,8] w_2) => (float[N,8] y) {
          [first] h = Gemm <transB=1> (x, w_1)
          [relu] r = Relu (h)
          [last] y = Gemm (r, w_2)
        }""")
    quantized, _, log = workshop.quantize(
        model, replace(RULES["cpu"], free_bias=True), settings=Quantization()
    )
    biases = constants(quantized, "_bias_quantized")
    assert set(log.nodes) == {"first", "last"}
    assert {len(b) for b in biases.values()} == {16, 8} and all(b.any() for b in biases.values())
    given = feed(model, seed=9)
    assert sqnr(workshop.run(model, given)["y"], workshop.run(quantized, given)["y"]) > 34


@pytest.mark.parametrize("order", ["m, b", "b, m"])
def test_a_correction_joins_the_bias_that_is_added_already(workshop: Any, order: str) -> None:
    """Of two Adds the kernel of the product would take only one."""
    model = network(f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[N,4,32] x, float[32,16] w, float[16] b) => (float[N,4,16] y, float[N,4,16] z) {{
          [mul] m = MatMul (x, w)
          [add] y = Add ({order})
          [other] n = Relu (x)
          [mul2] l = MatMul (n, w)
          [sum] z = Add (l, y)
        }}""")
    own = replace(RULES["cpu"], free_bias=True, gemm_for_matrices=False)
    quantized, _, _ = workshop.quantize(model, own, settings=Quantization())
    counts = Counter(n.op_type for n in quantized.graph)
    assert counts["Add"] == 3  # the bias, the sum, and one for the product that had no bias
    (joined,) = constants(quantized, "mul_bias").values()
    bias = graph.array(model.graph.initializers["b"])
    assert 0 < np.abs(joined - bias).max() < 0.1
    assert "b" not in quantized.graph.initializers


def test_a_convolution_and_a_product_read_one_value(workshop: Any) -> None:
    """Their channels lie along different axes, so none are told apart; ranges are known."""
    model = network("""<ir_version: 10, opset_import: ["" : 21]>
        g (float[N,8,16] x, float[8,8,1] w_c, float[16,16] w_m) => (float[N,8,16] y) {
          [conv] c = Conv (x, w_c)
          [mul] m = MatMul (x, w_m)
          [sum] y = Add (c, m)
        }""")
    quantized, _, log = workshop.quantize(model, "gpu", settings=Quantization())
    assert set(log.nodes) == {"conv", "mul"} and set(log.activations) == {"x"}
    given = feed(model, seed=9)
    assert sqnr(workshop.run(model, given)["y"], workshop.run(quantized, given)["y"]) > 34


@pytest.mark.parametrize(
    ("spike", "able", "setting", "terms"),
    [(200.0, True, "auto", 2), (200.0, False, "auto", 1), (200.0, True, (), 1),
     (3.0, True, "auto", 1)],
    ids=["spikes", "unable", "forbidden", "no-spikes"],
)  # fmt: skip
def test_an_activation_with_few_large_values_gets_a_second_term(
    spike: float, able: bool, setting: Any, terms: int, workshop: Any
) -> None:
    """Three rows of 512 have one value that is far beyond the others, each in another channel."""
    model = network("""<ir_version: 10, opset_import: ["" : 21]>
        g (float[N,32] x, float[32,8] w) => (float[N,8] y) {
          [relu] r = Relu (x)
          [mul] y = MatMul (r, w)
        }""")
    x = np.random.default_rng(0).standard_normal((512, 32)).astype(np.float32)
    x[(5, 99, 300), (3, 17, 30)] = spike
    own = replace(RULES["cpu"], two_term=able, gemm_for_matrices=False)
    settings = Quantization(two_term=setting)
    quantized, _, log = workshop.quantize(model, own, settings=settings, feeds=[{"x": x}])
    assert {value.terms for value in log.activations.values()} == {terms}
    plain = {"x": x[:5]}  # rows without a spike
    db = sqnr(workshop.run(model, plain)["y"], workshop.run(quantized, plain)["y"])
    assert (db > 35) == (terms == 2 or spike < 10)


@pytest.mark.parametrize("two_term", [(), ("mul",)], ids=["one", "two"])
def test_a_correction_gives_back_what_all_terms_leave(workshop: Any, two_term: Any) -> None:
    """On the rows that were kept the mean error of the product is gone, however many terms."""
    model = network("""<ir_version: 10, opset_import: ["" : 21]>
        g (float[N,32] x, float[32,8] w) => (float[N,8] y) {
          [relu] r = Relu (x)
          [mul] y = MatMul (r, w)
        }""")
    own = replace(RULES["cpu"], free_bias=True, gemm_for_matrices=False)
    quantized, _, _ = workshop.quantize(model, own, settings=Quantization(two_term=two_term))
    seen = {"x": np.concatenate([feed(model, seed=seed)["x"] for seed in (1, 2)])}
    error = workshop.run(quantized, seen)["y"] - workshop.run(model, seen)["y"]
    assert np.abs(error.mean(axis=0)).max() < 1e-6 < np.abs(error).max() / 10

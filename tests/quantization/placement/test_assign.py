"""Which nodes are quantized, and the reason for each node that is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from optkit.craft.quantization.placement.assign import assign
from optkit.facts.assignment import Assignment, Scheme
from optkit.facts.errors import InputRefused
from optkit.facts.placement import PlacementRules
from optkit.ground.statistics import Statistics, ValueStatistics
from tests.networks import NETWORKS, network
from tests.quantization.workshop import FP8, FP16, INT8, RULES, names

HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'


def decide(model: ir.Model, rules: PlacementRules) -> Assignment:
    return assign(model, Scheme(INT8, "fp16", {INT8: rules}))


def test_a_gpu_takes_every_layer() -> None:
    found = decide(network(NETWORKS["residual"]), RULES["gpu"])
    names = ["stem", "conv1", "conv2", "conv3", "skip", "head"]
    assert found == Assignment(dict.fromkeys(names, INT8), {})
    attention = decide(network(NETWORKS["attention"]), RULES["gpu"])
    assert list(attention.nodes) == ["qkv", "out", "up", "down"]  # not the two activations' product


def test_a_cpu_leaves_the_stem_in_float_with_the_reason() -> None:
    found = decide(network(NETWORKS["residual"]), RULES["cpu"])
    assert found.nodes["stem"].name == "fp16" and "input channels" in found.reasons["stem"]
    assert len(found.quantized()) == 5


def test_a_stem_in_front_of_max_pooling_stays_in_float_too() -> None:
    """Floats are pooled as floats (fusion/ort/float_pool.py)."""
    text = HEADER + (
        """g (float[N,3,8,8] x, float[8,3,3,3] w, float[8,8,3,3] w_2) => (float[N,8,1,1] y) {
        [stem] s = Conv (x, w)
        [relu] r = Relu (s)
        [pool] p = MaxPool <kernel_shape=[2,2]> (r)
        [conv] c = Conv (p, w_2)
        [mean] y = GlobalAveragePool (c)
        }"""
    )
    assert decide(network(text), RULES["cpu"]).nodes["stem"].name == "fp16"


def test_products_of_adapters_stay_in_float_with_the_reason() -> None:
    text = """g (float[N,8] x, float[8,8] w, float[8,8] w_2) => (float[N,8] y, float[N,8] z) {
        ["q/MatMul"] y = MatMul (x, w)
        ["q.adapter.down/MatMul"] z = MatMul (x, w_2)
        }"""
    model, rules = network(HEADER + text), {INT8: RULES["gpu"]}
    found = assign(model, Scheme(INT8, "fp16", rules), adapters=("q.adapter.down",))
    assert names(found) == {"q/MatMul": "int8", "q.adapter.down/MatMul": "fp16"}
    assert "adapter" in found.reasons["q.adapter.down/MatMul"]
    assert not decide(model, RULES["gpu"]).reasons


@pytest.mark.parametrize("reach", [1e-3, 0.0039, 0.004, 1.0, 0.0])
@pytest.mark.parametrize("carrier", ["fp16", "bf16", "fp32"])
def test_values_too_small_for_a_scale_stay_in_float(reach: float, carrier: str) -> None:
    """64 codes of the smallest normal FP16 scale, 2⁻¹⁴, are 2⁻⁸ = 0.0039…"""
    text = """g (float[N,8] x, float[8,8] w) => (float[N,8] y) { [only] y = MatMul (x, w) }"""
    ends = np.array([16384], np.uint16), np.array([10])
    seen = Statistics({"x": ValueStatistics(-reach / 2, reach, *ends)}, 1, "")
    scheme = Scheme(INT8, carrier, {INT8: RULES["gpu"]})
    found = assign(network(HEADER + text), scheme, seen)
    small = carrier == "fp16" and 0 < reach < 2**-8
    assert found.nodes["only"].name == (carrier if small else "int8")
    assert ("smallest fp16 scale" in found.reasons.get("only", "")) == small


def test_what_reads_from_a_foreign_operator_stays_float() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "com.example" : 1]>
        g (float[N,8] x, float[8,8] w) => (float[N,8] y) {
        [first] a = MatMul (x, w)
        [odd] b = com.example.Odd (a)
        [second] y = MatMul (b, w)
        }"""
    found = decide(network(text), RULES["gpu"])
    assert names(found) == {"first": "int8", "second": "fp16"}
    assert "foreign operator" in found.reasons["second"]


def test_a_1d_convolution_to_one_channel_with_a_bias_where_the_compiler_has_a_fault() -> None:
    text = HEADER + (
        """g (float[N,8,9] x, float[1,8,3] w, float[2,8,3] w_2, float[1] b, float[2] b_2)
        => (float[N,1,7] y, float[N,1,7] y_2, float[N,2,7] y_3) {
        [biased] y = Conv (x, w, b)
        [plain] y_2 = Conv (x, w)
        [wider] y_3 = Conv (x, w_2, b_2)
        }"""
    )
    found = decide(network(text), replace(RULES["gpu"], biased_1d_to_one=False))
    assert names(found) == {"biased": "fp16", "plain": "int8", "wider": "int8"}
    assert "one output channel" in found.reasons["biased"]
    assert decide(network(text), RULES["gpu"]).nodes["biased"].name == "int8"


BRANCHES = """<ir_version: 10, opset_import: ["" : 21]>
g (float[N,8] x, int64 rate, float[8,8] w, float[8,8] w_2) => (float[N,8] y)
<int64 high = {16000}> {
    at = CONDITION
    y = If (at) <then_branch = a () => (float[N,8] u) { u = MatMul (x, w) },
                 else_branch = b () => (float[N,8] v) { v = MatMul (x, w_2) }>
}"""


def test_a_model_whose_products_are_all_in_branches_is_refused_with_the_way_out() -> None:
    model = network(BRANCHES.replace("CONDITION", "Equal (rate, high)"))
    with pytest.raises(InputRefused, match="all its 2 products are in bodies of If") as caught:
        decide(model, RULES["gpu"])
    assert caught.value.where == "input 'rate'"
    code = str(caught.value.hint).partition("\n")[2]
    assert "np.array(VALUE, 'int64'), 'rate'" in code
    compile(code, "hint", "exec")
    with pytest.raises(InputRefused, match="products are in bodies") as caught:
        decide(network(BRANCHES.replace("CONDITION", "Cast <to = 9> (rate)")), RULES["gpu"])
    assert "constant of the model" in str(caught.value.hint)


def test_float_precisions_quantize_nothing() -> None:
    found = assign(network(NETWORKS["residual"]), Scheme(FP16, "fp16", {INT8: RULES["gpu"]}))
    assert set(found.nodes.values()) == {FP16} and not found.quantized()


def test_the_last_layer_may_have_a_precision_of_its_own() -> None:
    model, both = network(NETWORKS["residual"]), {INT8: replace(RULES["gpu"], last=FP8)}
    assert set(assign(model, Scheme(INT8, "fp16", both)).nodes.values()) == {INT8}
    both[FP8] = RULES["gpu"]
    found = assign(model, Scheme(INT8, "fp16", both))
    assert [name for name, own in found.nodes.items() if own == FP8] == ["head"]
    named = assign(model, Scheme(INT8, "fp16", both), overrides={"h*": INT8})
    assert set(named.nodes.values()) == {INT8}


def test_an_excluded_operator_tells_the_rules_reason() -> None:
    excluded = replace(RULES["gpu"], excluded={"Conv": "no INT8 convolution on 7.5"})
    found = decide(network(NETWORKS["residual"]), excluded)
    assert found.reasons["conv1"] == "no INT8 convolution on 7.5"
    assert list(found.quantized()) == ["head"]


@pytest.mark.parametrize(
    ("line", "inputs", "reason"),
    [
        ("MatMul (w, x)", "float[8,8] x, float[8,8] w", "left operand"),
        ("MatMul (x, w)", "float[4,8,8] x, float[4,8,8] w", "not a matrix"),
        ("Gemm <transA=1> (x, w)", "float[8,8] x, float[8,8] w", "transA"),
        ("Gemm <alpha=0.5> (x, w)", "float[8,8] x, float[8,8] w", "alpha"),
        ("Gemm <beta=0.5> (x, w, b)", "float[8,8] x, float[8,8] w, float[8] b", "beta"),
        ("Gemm (x, w, b)", "float[8,8] x, float[8,8] w, float[8,8] b", "one constant per"),
        ("Gemm (x, w, x)", "float[8,8] x, float[8,8] w", "one constant per"),
        ("ConvTranspose (x, w)", "float[1,8,4,4] x, float[8,8,2,2] w", "no int8 kernel"),
        ("Conv (x, w)", "float[1,8,4,4] x, float[8,8,2,2] w", "model output"),
    ],
)
def test_reasons(line: str, inputs: str, reason: str) -> None:
    rank = (
        "float[A,B,C,D]" if "Conv" in line else "float[A,B,C]" if "[4," in inputs else "float[A,B]"
    )
    model = network(f"{HEADER}g ({inputs}) => ({rank} y) {{\n[n] y = {line}\n}}")
    found = decide(model, RULES["cpu"])
    assert names(found) == {"n": "fp16"} and reason in found.reasons["n"]


def test_a_map_that_is_the_model_output_stays_float_also_behind_a_reshape() -> None:
    text = HEADER + (
        """g (float[N,8,8,8] x, float[8,8,3,3] w, float[4,8,1,1] w_2) => (float[N,A,36] y) {
        [conv] c = Conv (x, w)
        [relu] r = Relu (c)
        [last] l = Conv (r, w_2)
        [shape] to = Constant <value_ints=[0, 4, 36]> ()
        [reshape] y = Reshape (l, to)
        }"""
    )
    assert names(decide(network(text), RULES["cpu"])) == {"conv": "int8", "last": "fp16"}
    assert names(decide(network(text), RULES["gpu"])) == {"conv": "int8", "last": "int8"}


def test_a_weight_that_is_quantized_already_is_left_alone() -> None:
    text = HEADER + (
        """g (float[N,8] x, float[8,8] w) => (float[N,8] y) {
        [scale] s = Constant <value_float=0.1> ()
        [q] q = QuantizeLinear (w, s)
        [dq] d = DequantizeLinear (q, s)
        [n] y = MatMul (x, d)
        }"""
    )
    assert "already" in decide(network(text), RULES["gpu"]).reasons["n"]


def test_depthwise_convolutions_stay_in_float_where_the_rules_say_so() -> None:
    text = HEADER + (
        """g (float[N,8,9,9] x, float[8,1,3,3] w, float[8,2,3,3] w_2, float[8,8,1,1] w_3)
        => (float[N,8,5,5] y) {
        [depthwise] d = Conv <group=8> (x, w)
        [grouped] e = Conv <group=4> (d, w_2)
        [pointwise] y = Conv (e, w_3)
        }"""
    )
    found = decide(network(text), replace(RULES["gpu"], depthwise_conv="nowhere"))
    assert names(found) == {"depthwise": "fp16", "grouped": "int8", "pointwise": "int8"}
    assert found.reasons["depthwise"].startswith("depthwise: float is as fast")
    assert decide(network(text), RULES["gpu"]).nodes["depthwise"].name == "int8"


def test_a_pattern_that_matches_no_product_is_refused() -> None:
    model, scheme = (network(NETWORKS["residual"]), Scheme(INT8, "fp16", {INT8: RULES["gpu"]}))
    assert assign(model, scheme, overrides={"*v1": FP16}).nodes["conv1"].name == "fp16"
    with pytest.raises(InputRefused, match=r"a name that matches '\*haed\*'") as caught:
        assign(model, scheme, overrides={"conv1": FP16, "*haed*": FP16})
    assert caught.value.where == "quantization.nodes"
    assert "the graph has 6, such as head" in (caught.value.hint or "")

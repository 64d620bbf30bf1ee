"""Where Q/DQ pairs go: value by value, reader by reader."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from optkit.craft.quantization.placement.assign import assign
from optkit.craft.quantization.placement.qdq_placement import qdq_placements
from optkit.facts.assignment import Assignment, Scheme
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import PRECISIONS
from tests.networks import NETWORKS, network
from tests.quantization.workshop import INT8, RULES


def placed(model: ir.Model, rules: PlacementRules) -> dict[str, set[str]]:
    """Value → the names of the nodes that read it dequantized."""
    assignment = assign(model, Scheme(INT8, "fp32", {INT8: rules}))
    found = qdq_placements(model, assignment, {INT8: rules})
    assert len({site.value for site in found}) == len(found)  # one pair per value
    return {str(site.value.name): {str(node.name) for node, _ in site.readers} for site in found}


def test_a_gpu_quantizes_inputs_and_the_shortcut_of_a_sum() -> None:
    assert placed(network(NETWORKS["residual"]), RULES["gpu"]) == {
        "x": {"stem"},
        "sr": {"conv1", "add1"},
        "r1": {"conv2"},
        "r2": {"conv3", "skip"},  # both sides of add2 are convolutions: nothing to quantize there
        "f": {"head"},
    }


def test_a_cpu_keeps_chains_of_convolutions_integer() -> None:
    assert placed(network(NETWORKS["residual"]), RULES["cpu"]) == {
        "sr": {"conv1", "add1"},
        "r1": {"conv2"},
        "c2": {"add1"},
        "r2": {"conv3", "skip"},
        "c3": {"add2"},
        "k": {"add2"},
        "r3": {"pool"},
        "f": {"head"},
    }


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_the_residual_stream_of_a_transformer_stays_float(kind: str) -> None:
    assert placed(network(NETWORKS["attention"]), RULES[kind]) == {
        "n1": {"qkv"},
        "mm": {"out"},
        "n2": {"up"},
        "ge": {"down"},
    }


def test_what_a_branch_reads_stays_float() -> None:
    """A voice detector squeezes its last convolution inside an If."""
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    detector (float[1,4,8] x, bool known, float[4,4,1] w) => (float[N,M,K] y, float[1,4,8] z)
    {
      [conv] c = Conv (x, w)
      [branch] y = If (known) <
        then_branch = same () => (float[N,M,K] a) { a = Identity (c) },
        else_branch = twice () => (float[N,M,K] b) { b = Add (c, c) }
      >
      MORE
    }
    """
    only = network(text.replace("MORE", "[sum] z = Add (x, x)"))
    assert placed(only, RULES["cpu"]) == {"x": {"conv"}}
    both = network(text.replace("MORE", "[sum] z = Add (c, x)"))
    assert placed(both, RULES["cpu"])["c"] == {"sum"}


TAILS = {  # what follows a convolution → the values quantized behind it on the CPU
    "[a] a = Relu (c)\n[e] y = Mul (a, x)": {"a"},
    "[k0] lo = Constant <value_float=0.0> ()\n[k6] hi = Constant <value_float=6.0> ()\n"
    "[a] a = Clip (c, lo, hi)\n[e] y = Mul (a, x)": {"a"},
    "[k0] lo = Constant <value_float=-1.0> ()\n[k6] hi = Constant <value_float=1.0> ()\n"
    "[a] a = Clip (c, lo, hi)\n[e] y = Mul (a, x)": {"c"},
    "[a] a = LeakyRelu (c)\n[e] y = Mul (a, x)": {"c"},
    "[a] a = Sigmoid (c)\n[e] y = Mul (a, c)": {"c"},
    "[a] a = Relu (c)\n[e] y = Add (a, c)": {"c"},  # two readers
}


@pytest.mark.parametrize("text", TAILS)
def test_what_follows_a_convolution(text: str) -> None:
    model = network(
        '<ir_version: 10, opset_import: ["" : 21]>\n'
        "g (float[N,8,4,4] x, float[8,8,1,1] w) => (float[N,8,4,4] y) {\n"
        f"[conv] c = Conv (x, w)\n{text}\n}}"
    )
    assert placed(model, RULES["cpu"]).keys() - {"x"} == TAILS[text]
    assert placed(model, RULES["gpu"]).keys() == {"x"}


def test_a_product_in_front_of_a_relu_writes_integers_where_convolutions_do() -> None:
    model = network(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[N,8] x, float[8,8] w, float[8] b) => (float[N,8] y) {
        [fc] h = Gemm (x, w, b)
        [relu] r = Relu (h)
        [e] y = Exp (r)
        }"""
    )
    assert placed(model, RULES["cpu"]) == {"x": {"fc"}, "r": {"e"}}
    assert placed(model, RULES["gpu"]) == {"x": {"fc"}}


def test_nothing_planned_nothing_placed() -> None:
    assert (
        qdq_placements(network(NETWORKS["residual"]), Assignment({"conv1": PRECISIONS["fp32"]}), {})
        == []
    )

"""Products that need more than one scale for their activation, by the outputs of the model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optkit
from optkit import Request
from optkit.craft.backends import onnxruntime
from optkit.craft.backends.kernel_speeds import kernel_speeds
from optkit.craft.quantization.choose_qparams import choose_activations
from optkit.craft.quantization.noisy_nodes import SWITCHES, chosen, insert_switches
from optkit.craft.quantization.numerics.output_noise import OF_CONVOLUTIONS, OF_MODEL
from optkit.craft.quantization.placement.product_forms import Products
from optkit.facts.assignment import Assignment
from optkit.facts.codec import from_json
from optkit.facts.placement import PlacementRules, ProductSpeeds
from optkit.facts.precisions import PRECISIONS, Precision
from optkit.facts.tensors import Feed
from optkit.ground import graph
from optkit.ground.devices import cpu, target
from optkit.ground.devices.machine import sums_in_16_bits
from optkit.ground.recipe import Quantization
from optkit.ground.runtimes import SessionOptions, simulator
from optkit.ground.statistics import load
from tests.networks import network, sqnr
from tests.quantization.workshop import Chain, rules_of

# the outputs are the small difference of two large products: the rounding of what these multiply
# costs the outputs much, and that of `late` costs little
DIFFERENCE = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,32] x, float[32,64] w_a, float[32,64] w_b, float[64,32] w_late) => (float[N,32] y) {
      part = Constant <value = float {0.1}> ()
      [wave] s = Sin (x)
      [small] p = Mul (s, part)
      [moved] x_b = Add (x, p)
      [left] a = MatMul (x, w_a)
      [right] b = MatMul (x_b, w_b)
      [apart] d = Sub (a, b)
      [act] r = Relu (d)
      [late] y = MatMul (r, w_late)
    }"""
CONVOLUTION = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,64,6,6] x, float[64,64,3,3] w_conv, float[64,4] w_head) => (float[N,4] y) {
      [conv] c = Conv <pads=[1,1,1,1]> (x, w_conv)
      [pool] p = GlobalAveragePool (c)
      [flat] f = Flatten (p)
      [head] y = MatMul (f, w_head)
    }"""


@pytest.fixture
def vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes of weights have 8 bits, also where the tests run with AVX2 alone."""
    monkeypatch.setattr(onnxruntime, "sums_in_16_bits", lambda *_: False)


def difference() -> ir.Model:
    model = network(DIFFERENCE)
    weights = model.graph.initializers
    weights["w_b"].const_value = ir.tensor(np.asarray(graph.array(weights["w_a"])), name="w_b")
    return model


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    random = np.random.default_rng(0)
    feeds = [{"x": random.standard_normal((64, 32)).astype(np.float32)} for _ in range(2)]
    return Chain(tmp_path_factory.mktemp("noisy") / "chain", difference(), feeds)


def outputs(file: Path, feed: Feed) -> np.ndarray:
    with simulator().session(file, SessionOptions(1, level="none")) as session:
        return np.asarray(session.run(feed)["y"])


def decibels(chain: Chain, folder: Path) -> float:
    feed = {"x": np.random.default_rng(9).standard_normal((64, 32)).astype(np.float32)}
    return sqnr(*(outputs(one / "model.onnx", feed) for one in (chain.fused, folder)))


@pytest.mark.usefixtures("vnni")
def test_the_activations_that_cost_the_outputs_most_are_found(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU whose speeds nobody knows."""
    monkeypatch.setattr(onnxruntime, "kernel_speeds", lambda _: None)
    found = chain.noisy_nodes("cpu", "int8")
    assert sorted(found["nodes"]) == ["left", "right"]
    assert found["noise"] > OF_MODEL and found["others"] == 0.0
    [note] = found["warnings"]
    assert set(found["nodes"].values()) == {"int8-weight-only"}
    assert "1 more are int8-weight-only" in note and "28 dB at the outputs" in note
    one, _ = chain.quantize("cpu", "int8")
    finer, meta = chain.quantize(
        "cpu", "int8", nodes=dict.fromkeys(found["nodes"], "int8-weight-only")
    )
    used = {name: node["precision"] for name, node in meta["log"]["nodes"].items()}
    assert used == {"left": "int8-weight-only", "right": "int8-weight-only", "late": "int8"}
    assert decibels(chain, finer) > decibels(chain, one) + 1


@pytest.mark.usefixtures("vnni")
def test_an_accurate_model_gets_none(tmp_path: Path) -> None:
    """All its values have one size, which 8 bits round finely."""
    text = DIFFERENCE.replace("[apart] d = Sub (a, b)", "[apart] d = Add (a, b)")
    x = np.linspace(-1, 1, 64 * 32, dtype=np.float32)
    feeds = [{"x": np.random.default_rng(0).permutation(x).reshape(64, 32)}]
    found = Chain(tmp_path / "chain", network(text), feeds).noisy_nodes("cpu", "int8")
    assert not found.get("nodes") and 0 < found["noise"] <= OF_MODEL


@pytest.mark.usefixtures("vnni")
def test_where_a_convolution_costs_more_finer_products_would_not_help(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((16, 64, 6, 6)).astype(np.float32)
    x[:, :, 0, 0] *= 300  # the codes of all other values are few
    found = Chain(tmp_path / "chain", network(CONVOLUTION), [{"x": x}]).noisy_nodes(
        "cpu",
        "int8",
        nodes={"conv": "int8"},  # which is too small to gain in integers
    )
    assert not found.get("nodes")
    assert found["others"] > found["noise"]


@pytest.mark.usefixtures("vnni")
def test_a_convolution_whose_result_is_rounded_for_floats_stays_in_float(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU whose speeds nobody knows, so that no island is too small. Few results are far
    larger than the others, and a Tanh makes them small again."""
    monkeypatch.setattr(onnxruntime, "kernel_speeds", lambda _: None)
    text = CONVOLUTION.replace("(c)", "(t)").replace("[pool]", "[bend] t = Tanh (c) [pool]")
    x = np.random.default_rng(0).standard_normal((16, 64, 6, 6)).astype(np.float32)
    plain = Chain(tmp_path / "plain", network(text), [{"x": x}])
    assert not plain.noisy_nodes("cpu", "int8").get("nodes")
    x[:, :, 0, 0] *= 300
    chain = Chain(tmp_path / "chain", network(text), [{"x": x}])
    found = chain.noisy_nodes("cpu", "int8")
    assert found["nodes"] == {"conv": "float"} and found["others"] > OF_CONVOLUTIONS
    assert "rounds its result" in found["reasons"]["conv"]
    rounded, _ = chain.quantize("cpu", "int8")
    finer, meta = chain.quantize("cpu", "int8", nodes={"conv": "fp32"})
    assert {name: one["precision"] for name, one in meta["log"]["nodes"].items()}["head"] == "int8"
    reference, *others = (
        outputs(one / "model.onnx", {"x": x}) for one in (chain.fused, rounded, finer)
    )
    assert sqnr(reference, others[1]) > 20 > sqnr(reference, others[0])


@pytest.mark.usefixtures("vnni")
def test_outputs_of_another_size_cannot_be_judged(tmp_path: Path) -> None:
    """The indices of what is above zero are more or fewer when activations are rounded."""
    text = DIFFERENCE.replace("(float[N,32] y)", "(int64[2,M] found)").replace(
        "[late] y = MatMul (r, w_late)", "[late] y = MatMul (r, w_late) [found] found = NonZero (r)"
    )
    model = network(text)
    weights = model.graph.initializers
    weights["w_b"].const_value = ir.tensor(np.asarray(graph.array(weights["w_a"])), name="w_b")
    x = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    found = Chain(tmp_path / "chain", model, [{"x": x}]).noisy_nodes("cpu", "int8")
    assert not found.get("nodes") and found.get("noise") is None


@pytest.mark.usefixtures("vnni")
@pytest.mark.parametrize("on", [(), (0,), (1,), (2,), (0, 1, 2)])
def test_a_switch_rounds_its_activation_and_nothing_else(
    chain: Chain, tmp_path: Path, on: tuple[int, ...]
) -> None:
    model = graph.load(chain.fused / "model.onnx")
    assignment = Assignment(dict.fromkeys(("left", "right", "late"), PRECISIONS["int8"]))
    rules = from_json(dict[Precision, PlacementRules], rules_of("cpu", ["int8"]))
    numbers = choose_activations(
        model, assignment, load(chain.statistics / "statistics.safetensors"), rules,
        Quantization(two_term=()), method="minmax", percentile=99.99, carrier=np.float32,
    )  # fmt: skip
    rounded = insert_switches(model, numbers, assignment, rules, {"N": 8})
    graph.save(model, tmp_path / "model.onnx")
    assert [one.nodes for one in rounded] == [("left",), ("right",), ("late",)]
    sizes = [(8, 32, 64), (8, 32, 64), (8, 64, 32)]
    assert [one.products for one in rounded] == [Products(*each) for each in sizes]
    x = np.random.default_rng(2).standard_normal((8, 32)).astype(np.float32)
    switches = np.isin(np.arange(3), on)
    found = outputs(tmp_path / "model.onnx", {"x": x, SWITCHES: switches})
    assert np.allclose(found, reference(chain, numbers, x, on), rtol=1e-4, atol=1e-4)


def reference(chain: Chain, numbers: list[Any], x: np.ndarray, on: tuple[int, ...]) -> np.ndarray:
    """The model in numpy, with these activations rounded to 8 bits."""
    weights = graph.load(chain.fused / "model.onnx").graph.initializers

    def weight(name: str) -> np.ndarray:
        return np.asarray(graph.array(weights[name]))

    def rounded(value: np.ndarray, index: int) -> np.ndarray:
        scale = numbers[index][1].scale
        s, z = float(scale.scale), int(scale.zero_point)
        codes = np.clip(np.rint(value / s) + z, 0, 255)
        return (codes - z) * s if index in on else value

    a, b = (
        rounded(x, 0) @ weight("w_a"),
        rounded(x + np.float32(0.1) * np.sin(x), 1) @ weight("w_b"),
    )
    return rounded(np.maximum(a - b, 0), 2) @ weight("w_late")


@pytest.mark.parametrize(
    ("target", "settings", "finer"),
    [
        ("cpu-avx512-vnni", {}, {"left", "right"}),
        ("cpu-avx512-vnni", {"two_term": []}, set()),
        ("cpu-avx512-vnni", {"effort": "fast"}, set()),
        ("cpu-avx512-vnni", {"nodes": {"right": "fp32"}}, {"left"}),
        ("cpu-avx512-vnni", {"nodes": {"r*": "int8"}}, set()),  # its noise stays
        ("cpu-avx2", {}, set()),
        ("l4", {}, set()),
    ],
)
def test_a_build_gives_them_weights_of_8_bits_alone(
    tmp_path: Path, target: str, settings: dict[str, Any], finer: set[str]
) -> None:
    """But not where the recipe has another wish, and only where two products of codes cost less
    than one of floats."""
    graph.save(difference(), tmp_path / "model.onnx")
    x = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    request = Request(
        str(tmp_path / "model.onnx"), calibration=str(tmp_path / "x.npz"),
        overrides=[f"quantization.{key}={json.dumps(value)}" for key, value in settings.items()],
    )  # fmt: skip
    out = optkit.quantize(
        request, out=tmp_path / "out", target=target, precision="int8",
        workspace=optkit.Workspace(tmp_path / "cache"),
    )  # fmt: skip
    nodes = graph.load(out / "model.onnx").graph
    assert {str(node.name) for node in nodes if node.op_type == "MatMulNBits"} == finer
    assert any(node.op_type == "QuantizeLinear" for node in nodes)


@pytest.mark.parametrize(("form", "gmacs"), [("two terms", 1e6), ("float", 1.0)])
def test_a_build_gives_them_the_form_that_is_fastest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, gmacs: float
) -> None:
    """Of a CPU whose integer products are as fast as this. The other activations have one scale,
    and the report says why."""
    here = cpu()
    if form == "two terms" and sums_in_16_bits(here.machine, here.features):
        pytest.skip(
            "ONNX Runtime loads no two products of one weight here: docs/reference/limits.md"
        )
    own = kernel_speeds(target("cpu-amx"))
    product = ProductSpeeds(10.0, gmacs, 1.0, 0.0, 0.0, 0.0)
    monkeypatch.setattr(onnxruntime, "kernel_speeds", lambda _: replace(own, product=product))
    graph.save(difference(), tmp_path / "model.onnx")
    x = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    request = Request(str(tmp_path / "model.onnx"), calibration=str(tmp_path / "x.npz"))
    built = optkit.build(
        request, out=tmp_path / "out", target="cpu-avx512-vnni", precision="int8",
        workspace=optkit.Workspace(tmp_path / "cache"),
    )  # fmt: skip
    report = json.loads((built.path / "report.json").read_text())
    decided = {row["node"]: row for row in report["quantization"]}
    precision = "fp32" if form == "float" else "int8"
    assert {name: row["precision"] for name, row in decided.items()} == {
        "left": precision, "right": precision, "late": "int8"
    }  # fmt: skip
    for name in ("left", "right"):
        assert decided[name]["reason"].startswith(f"{form}, because one scale")
        assert "the kernels of cpu-amx" in decided[name]["reason"]
    assert decided["late"]["reason"] is None


NOISES = st.lists(st.tuples(st.floats(0, 1e-2), st.integers(0, 1 << 20)), max_size=12)


@given(NOISES, st.floats(0.5, 2), st.floats(OF_MODEL, 10 * OF_MODEL))
def test_the_choice_is_enough_and_none_of_it_is_too_much(
    each: list[tuple[float, int]], factor: float, allowed: float
) -> None:
    noises, costs = [noise for noise, _ in each], [cost for _, cost in each]
    together = factor * sum(noises)
    found = chosen(noises, costs, together, allowed)
    assert found == sorted(set(found))
    left = together - sum(factor * noises[at] for at in found)
    assert left <= allowed * (1 + 1e-9) or len(found) == len(noises)
    assert all(left + factor * noises[at] > allowed * (1 - 1e-9) for at in found)
    if together <= allowed:
        assert not found

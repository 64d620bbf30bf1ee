"""Weights that make up for the errors of the products before them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import optkit
from optkit import Request, graph
from optkit.runtimes import SessionOptions, simulator
from optkit.tensors import Feed
from tests.networks import network, sqnr
from tests.quantization.workshop import Chain

# `second` is added to `x`, which has no error, and `third` to a value that has one
TEXT = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,32] x, float[32,64] w_first, float[32,64] w_second, float[32] b_second,
       float[32,64] w_wide, float[64,32] w_third, float[32,16] w_last) => (float[N,16] y) {
      [first] a = MatMul (x, w_first)
      [act] r = Relu (a)
      [second] b = Gemm <transB=1> (r, w_second, b_second)
      [add] s = Add (b, x)
      [wide] c = MatMul (s, w_wide)
      [bend] t = Tanh (c)
      [third] d = MatMul (t, w_third)
      [again] u = Add (s, d)
      [last] y = MatMul (u, w_last)
    }"""
# the product is one row of a sample, the sum has four
SPREAD = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,4,32] x, float[32,64] w_first, float[64,32] w_third, float[32,16] w_last)
      => (float[N,4,16] y) {
      axis = Constant <value_ints = [1]> ()
      [first] a = MatMul (x, w_first)
      [act] t = Relu (a)
      [mean] m = ReduceMean (t, axis)
      [third] d = MatMul (m, w_third)
      [again] u = Add (x, d)
      [last] y = MatMul (u, w_last)
    }"""
READS = {"first": "x", "second": "r", "wide": "s", "third": "t", "last": "u"}
BESIDE = {"second": ("s", "x"), "third": ("u", "s")}
"""The sum of a product, and what is added to it."""
ALL = dict.fromkeys(READS, "int4")


def feeds(seed: int, rows: int = 512) -> list[Feed]:
    random = np.random.default_rng(seed)
    mixed = np.random.default_rng(99).standard_normal((32, 32))
    x = (random.standard_normal((rows, 32)) @ mixed / 6).astype(np.float32)
    return [{"x": part} for part in np.split(x, 8)]


def values(folder: Path, names: list[str]) -> dict[str, np.ndarray]:
    """Over all samples, float64. Kernels with codes do not round their activations."""
    model = graph.expose(graph.load(folder / "model.onnx"), [n for n in names if n != "x"])
    for node in model.graph:
        node.attributes.pop("accuracy_level", None)
    place = folder / "exposed.onnx"
    graph.save(model, place)
    with simulator().session(place, SessionOptions(1, level="none")) as session:
        runs = [feed | session.run(feed) for feed in feeds(0)]
    return {name: np.concatenate([run[name] for run in runs]).astype(np.float64) for name in names}


def by_columns(folder: Path, name: str) -> np.ndarray:
    found: ir.Model = graph.load(folder / "model.onnx")
    numbers = graph.array(found.graph.initializers[f"w_{name}"])
    assert numbers is not None
    return (numbers.T if name == "second" else numbers).astype(np.float64)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return Chain(tmp_path_factory.mktemp("in_order") / "chain", network(TEXT), feeds(0))


def of(chain: Chain, step: str) -> Path:
    """The folder of the last such step."""
    return max(chain.folder.glob(f"{step}-*"), key=lambda place: int(place.name.split("-")[1]))


def test_each_weight_solves_the_least_squares_of_its_inputs_in_the_quantized_graph(
    tmp_path: Path,
) -> None:
    chain = Chain(tmp_path / "own", network(TEXT), feeds(0))
    quantized, _ = chain.quantize("cpu", "int4", weights="gptaq", nodes=ALL)
    exact = values(of(chain, "prepare"), [*READS.values()])
    given = values(quantized, [*READS.values()])
    for name, read in READS.items():
        w, v = by_columns(of(chain, "prepare"), name), by_columns(of(chain, "compensate"), name)
        x = given[read]
        missing = (exact[read] - x) @ w
        if name in BESIDE:  # the rest of the sum has errors too
            whole, other = BESIDE[name]
            bias = exact[whole] - exact[other] - exact[read] @ w
            missing = exact[whole] - given[other] - bias - x @ w
        damping = min(10 * x.shape[1] / len(x), 1.0)
        ridge = np.sqrt(len(x) * damping * np.mean(x**2)) * np.eye(x.shape[1])
        rows = np.concatenate([missing, np.zeros((len(ridge), w.shape[1]))])
        change = np.linalg.lstsq(np.concatenate([x, ridge]), rows)[0]
        np.testing.assert_allclose(v - w, change, rtol=1e-3, atol=2e-5)
        assert name == "first" or np.abs(change).max() > 1e-3


@pytest.mark.parametrize("where", ["cpu", "l4"])
def test_other_samples_have_less_error_at_the_outputs(chain: Chain, where: str) -> None:
    def decibels(weights: str) -> float:
        quantized, _ = chain.quantize(where, "int4", weights=weights, nodes=ALL)
        return sqnr(*(outputs(place) for place in (chain.fused, quantized)))

    assert decibels("gptaq") > decibels("gptq") + 0.5


def test_a_build_does_so_for_weights_in_blocks_alone(tmp_path: Path) -> None:
    graph.save(network(TEXT), tmp_path / "model.onnx")
    np.savez(tmp_path / "x.npz", x=np.concatenate([feed["x"] for feed in feeds(0)]))

    def built(precision: str, weights: str) -> np.ndarray:
        request = Request(
            str(tmp_path / "model.onnx"), calibration=str(tmp_path / "x.npz"),
            overrides=["calibration.samples=512", f"quantization.weights={weights}"],
        )  # fmt: skip
        out = optkit.quantize(
            request, out=tmp_path / f"{precision}-{weights}", target="cpu", precision=precision,
            workspace=optkit.Workspace(tmp_path / "cache"),
        )  # fmt: skip
        return outputs(out)

    exact = outputs(tmp_path)
    assert sqnr(exact, built("int4", "gptaq")) > sqnr(exact, built("int4", "gptq")) + 0.5
    np.testing.assert_array_equal(built("int8", "gptaq"), built("int8", "gptq"))


def outputs(folder: Path) -> np.ndarray:
    file = next(iter([*folder.glob("simulation.onnx"), folder / "model.onnx"]))
    with simulator().session(file, SessionOptions(1, level="none")) as session:
        return np.concatenate([session.run(feed)["y"] for feed in feeds(7)])


def test_a_weight_with_two_readers_and_too_few_rows_change_nothing(tmp_path: Path) -> None:
    text = TEXT.replace("[wide] c = MatMul (s, w_wide)", "[wide] c = MatMul (s, w_first)")
    shared = Chain(tmp_path / "shared", network(text), feeds(0))
    shared.quantize("cpu", "int4", weights="gptaq", nodes=ALL)
    few = Chain(tmp_path / "few", network(TEXT), feeds(0, rows=120))
    few.quantize("cpu", "int4", weights="gptaq", nodes=ALL)
    for chain, same, other in ((shared, "first", "third"), (few, "wide", None)):
        before, after = of(chain, "prepare"), of(chain, "compensate")
        assert np.array_equal(by_columns(before, same), by_columns(after, same))
        if other is not None:
            assert not np.array_equal(by_columns(before, other), by_columns(after, other))


def test_a_sum_of_another_shape_is_no_aim(tmp_path: Path) -> None:
    """The product then makes up for the errors of its own inputs."""
    wide = [{"x": feed["x"].reshape(-1, 4, 32)} for feed in feeds(0, rows=2048)]
    chain = Chain(tmp_path / "spread", network(SPREAD), wide)
    chain.quantize(
        "cpu", "int4", weights="gptaq", nodes=dict.fromkeys(["first", "third", "last"], "int4")
    )
    before, after = (by_columns(of(chain, step), "third") for step in ("prepare", "compensate"))
    assert 1e-3 < np.abs(after - before).max() < 0.5

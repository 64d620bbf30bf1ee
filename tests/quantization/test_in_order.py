"""Weights that make up for the errors of the products before them."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import optkit
from optkit import Request
from optkit.craft.quantization.in_order import ReaderGroup, compensate
from optkit.craft.quantization.numerics.qparams import QParams
from optkit.craft.quantization.placement.read_weight import matrix
from optkit.facts.assignment import Assignment
from optkit.facts.tensors import Feed
from optkit.ground import graph
from optkit.ground.runtimes import SessionOptions, simulator
from optkit.ground.statistics import Statistics
from optkit.road.steps.bodies.quantize_in_order import solve
from tests.networks import ATTENTION, network, sqnr
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
WITHIN = {"qkv": "n1", "out": "mm", "up": "n2", "down": "ge"}  # of the network with attention
AROUND = {"out": ("r1", "x"), "down": ("y", "r1")}


def feeds(seed: int, rows: int = 512) -> list[Feed]:
    random = np.random.default_rng(seed)
    mixed = np.random.default_rng(99).standard_normal((32, 32))
    x = (random.standard_normal((rows, 32)) @ mixed / 6).astype(np.float32)
    return [{"x": part} for part in np.split(x, 8)]


def values(
    model: ir.Model, names: list[str], given: list[Feed], place: Path
) -> dict[str, np.ndarray]:
    """Of one run of the whole graph over all samples, rows in float64."""
    own = [n for n in names if n not in given[0]]
    graph.save(graph.expose(model, own), place)
    with simulator().session(place, SessionOptions(1, level="none")) as session:
        runs = [feed | session.run(feed) for feed in given]
    rows = {name: np.concatenate([run[name] for run in runs]) for name in names}
    return {name: x.reshape(-1, x.shape[-1]).astype(np.float64) for name, x in rows.items()}


def solved(chain: Chain, nodes: Collection[str]) -> tuple[ir.Model, ir.Model, ir.Model]:
    """The float graph, the one with the weights v, and the one with their codes."""
    step = chain.in_order("int4", nodes=dict.fromkeys(nodes, "int4"))
    exact, moved = (graph.load(step.fused.path / "model.onnx") for _ in range(2))
    _, _, qparams = solve(step, moved, lambda what, share: None)
    coded = exact.clone()
    for node in coded.graph:
        if node.name in nodes:
            numbers = qparams.weights[str(node.name)].floats()
            node.replace_input_with(
                1, graph.new_constant(coded.graph, f"{node.name}_codes", numbers)
            )
    return exact, moved, coded


def by_columns(model: ir.Model, name: str) -> np.ndarray:
    node = next(node for node in model.graph if node.name == name)
    return matrix(node).astype(np.float64)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return Chain(tmp_path_factory.mktemp("in_order") / "chain", network(TEXT), feeds(0))


@pytest.mark.parametrize("text", [TEXT, ATTENTION], ids=["products", "attention"])
def test_each_weight_solves_the_least_squares_of_its_inputs_in_the_quantized_graph(
    tmp_path: Path, text: str
) -> None:
    """The reference runs both whole graphs."""
    given = feeds(0) if text == TEXT else [{"x": f["x"].reshape(-1, 8, 32)} for f in feeds(0, 4096)]
    reads, beside = (READS, BESIDE) if text == TEXT else (WITHIN, AROUND)
    chain = Chain(tmp_path / "own", network(text), given)
    before, after, coded = solved(chain, reads)
    names = list(dict.fromkeys([*reads.values(), *itertools.chain.from_iterable(beside.values())]))
    exact, found = (values(m, names, given, tmp_path / "run.onnx") for m in (before, coded))
    for name, read in reads.items():
        w, v = by_columns(before, name), by_columns(after, name)
        x = found[read]
        missing = (exact[read] - x) @ w
        if name in beside:  # the rest of the sum has errors too
            whole, other = beside[name]
            bias = exact[whole] - exact[other] - exact[read] @ w
            missing = exact[whole] - found[other] - bias - x @ w
        damping = min(10 * x.shape[1] / len(x), 1.0)
        ridge = np.sqrt(len(x) * damping * np.mean(x**2)) * np.eye(x.shape[1])
        rows = np.concatenate([missing, np.zeros((len(ridge), w.shape[1]))])
        change = np.linalg.lstsq(np.concatenate([x, ridge]), rows)[0]
        np.testing.assert_allclose(v - w, change, rtol=1e-3, atol=2e-5)
        assert name == next(iter(reads)) or np.abs(change).max() > 1e-3


@pytest.mark.parametrize("where", ["cpu", "l4"])
def test_other_samples_have_less_error_at_the_outputs(chain: Chain, where: str) -> None:
    def decibels(weights: str) -> float:
        quantized, _ = chain.quantize(where, "int4", weights=weights, nodes=ALL)
        return sqnr(*(outputs(place) for place in (chain.fused, quantized)))

    assert decibels("gptaq") > decibels("gptq") + 0.5


def test_a_build_does_so_for_weights_in_blocks_alone(tmp_path: Path) -> None:
    graph.save(network(TEXT), tmp_path / "model.onnx")
    np.savez(tmp_path / "x.npz", x=np.concatenate([feed["x"] for feed in feeds(0)]))

    def built(precision: str, setting: str) -> np.ndarray:
        request = Request(
            str(tmp_path / "model.onnx"), calibration=str(tmp_path / "x.npz"),
            overrides=["calibration.samples=512", f"quantization.{setting}"],
        )  # fmt: skip
        out = optkit.quantize(
            request, out=tmp_path / f"{precision}-{setting}", target="cpu", precision=precision,
            workspace=optkit.Workspace(tmp_path / "cache"),
        )  # fmt: skip
        return outputs(out)

    exact = outputs(tmp_path)
    compensated, plain = (built("int4", f"weights={name}") for name in ("gptaq", "gptq"))
    assert sqnr(exact, compensated) > sqnr(exact, plain) + 0.5
    np.testing.assert_array_equal(built("int4", "effort=best"), compensated)
    np.testing.assert_array_equal(built("int8", "weights=gptaq"), built("int8", "weights=gptq"))


def outputs(folder: Path) -> np.ndarray:
    file = next(iter([*folder.glob("simulation.onnx"), folder / "model.onnx"]))
    with simulator().session(file, SessionOptions(1, level="none")) as session:
        return np.concatenate([session.run(feed)["y"] for feed in feeds(7)])


def test_a_weight_with_two_readers_and_too_few_rows_change_nothing(tmp_path: Path) -> None:
    text = TEXT.replace("[wide] c = MatMul (s, w_wide)", "[wide] c = MatMul (s, w_first)")
    shared = Chain(tmp_path / "shared", network(text), feeds(0))
    few = Chain(tmp_path / "few", network(TEXT), feeds(0, rows=120))
    for chain, same, other in ((shared, "first", "third"), (few, "wide", None)):
        before, after, _ = solved(chain, READS)
        assert np.array_equal(by_columns(before, same), by_columns(after, same))
        if other is not None:
            assert not np.array_equal(by_columns(before, other), by_columns(after, other))


def test_a_sum_of_another_shape_is_no_aim(tmp_path: Path) -> None:
    """The product then makes up for the errors of its own inputs."""
    wide = [{"x": feed["x"].reshape(-1, 4, 32)} for feed in feeds(0, rows=2048)]
    chain = Chain(tmp_path / "spread", network(SPREAD), wide)
    before, after, _ = solved(chain, ["first", "third", "last"])
    change = by_columns(after, "third") - by_columns(before, "third")
    assert 1e-3 < np.abs(change).max() < 0.5


def test_each_node_runs_in_one_segment(tmp_path: Path) -> None:
    """Of a chain of 12 layers, in both graphs. What is behind the last products does not run."""
    nodes = [
        f"[p{i}] a{i} = MatMul ({f'r{i - 1}' if i else 'x'}, w{i})\n[r{i}] r{i} = Relu (a{i})"
        for i in range(12)
    ]
    inputs = ", ".join(["float[N,32] x", *(f"float[32,32] w{i}" for i in range(12))])
    head = '<ir_version: 10, opset_import: ["" : 21]>'
    text = f"{head} g ({inputs}) => (float[N,32] r11) {{ {' '.join(nodes)} }}"
    model, ran = network(text), []
    found = [ReaderGroup(f"r{i - 1}" if i else "x", (f"p{i}",)) for i in range(12)]

    def advance(segment: ir.Model, left: Sequence[str], channels: int) -> None:
        assert channels == 32
        ran.extend(node.name for node in segment.graph if node.op_type in ("MatMul", "Relu"))

    compensate(
        model, Statistics({}, 0, ""), Assignment({}), found, choose=unused, advance=advance,
        progress=lambda what, share: None,
    )  # fmt: skip
    both = [
        f"{prefix}{kind}{i}" for i in range(11) for kind in "pr" for prefix in ("", "in_order.")
    ]
    assert sorted(ran) == sorted(both)


def unused(*_: object) -> QParams:
    raise AssertionError

"""Outlier channels in float beside the others: the exact rewrite, and what it gains in int8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.craft.quantization.placement import weighted_nodes
from optkit.craft.quantization.placement.assign import assign
from optkit.craft.quantization.rescaling.outlier_channels import outliers, split_outliers
from optkit.craft.quantization.rescaling.rescale import RescaleSettings
from optkit.craft.quantization.rescaling.smoothquant import ActivationSample
from optkit.facts.assignment import Scheme
from optkit.facts.codec import from_json
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import PRECISIONS
from optkit.facts.tensors import Feed
from optkit.ground import graph
from optkit.ground.runtimes import SessionOptions, simulator
from optkit.ground.statistics import Statistics, Tap
from tests.networks import network, sqnr
from tests.quantization.workshop import Chain, Workshop, rules_of

BIG = (3, 50, 51, 190)
BLOCK = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,192] x, float[192,24] w_left, float[192,24] w_right, float[24] w_bias,
       float[24,192] w_gemm, float[24] w_c) => (float[N,24] y, float[N,24] left_y) {
      two = Constant <value = float {2.0}> ()
      [in] a = Mul (x, two)
      [left] l = MatMul (a, w_left)
      [left_bias] left_y = Add (l, w_bias)
      [right] r = MatMul (a, w_right)
      [both] b = Add (left_y, r)
      [turned] t = Gemm <transB = 1> (a, w_gemm, w_c)
      [act] y = Add (b, t)
    }"""
SHARED = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,192] x, float[192,192] w) => (float[N,192] r) {
      two = Constant <value = float {2.0}> ()
      [in] a = Mul (x, two)
      [first] m = MatMul (a, w)
      [act] n = Relu (m)
      [second] r = MatMul (n, w)
    }"""
RULE = {PRECISIONS["int8"]: from_json(PlacementRules, rules_of("cpu", ["int8"])["int8"])}


def rows(seed: int, spike: float = 60.0, every: int = 32, wave: float = 1.0) -> Feed:
    """Four channels are large, but in one of 32 rows only, so that no factor for the whole channel
    helps. `wave`: by how much all channels are larger in some other rows."""
    x = np.random.default_rng(seed).standard_normal((256, 192)).astype(np.float32)
    x[::every, BIG] *= spike
    x[7::64] *= wave
    return {"x": x}


def split(
    workshop: Workshop, model: ir.Model, leave: frozenset[str] = frozenset(), **given: Any
) -> tuple[list[str], Statistics, Statistics]:
    """Values that were split, in place, and the statistics before and after."""
    assignment = assign(model, Scheme(PRECISIONS["int8"], "fp32", RULE))
    taps = [Tap(name, -1, rows=True, moments=True) for name in ("a", "r")]
    before = workshop.statistics(model, taps, [rows(0, **given), rows(1, **given)])
    entries, after = split_outliers(model, before, assignment, RULE, RescaleSettings(leave=leave))
    assert all(one.outcome == "split" and (one.gain_db or 0) >= 1 for one in entries)
    return [one.value for one in entries], before, after


def test_results_stay_the_same_under_their_names(workshop: Workshop) -> None:
    model = network(BLOCK)
    wanted = workshop.run(network(BLOCK), rows(5))
    split(workshop, model)
    found = workshop.run(model, rows(5))
    assert found.keys() == wanted.keys() == {"y", "left_y"}
    for name, exact in wanted.items():
        assert sqnr(exact, found[name]) > 110


def test_the_largest_channels_are_multiplied_apart(workshop: Workshop) -> None:
    model = network(BLOCK)
    names, _, _ = split(workshop, model)
    assert names == ["a"]
    for node in model.graph:
        if str(node.name) in ("left", "right", "turned"):
            whole = weighted_nodes.weight(node)
            rest = whole if weighted_nodes.summed_axis(node) == 0 else whole.T
            assert not rest[list(BIG)].any() and rest.any(axis=1).sum() == 192 - len(BIG)
    apart = [node for node in model.graph if weighted_nodes.multiplies_outliers(node)]
    assert len(apart) == 3  # each reads the same four channels
    assert len({node.inputs[0] for node in apart}) == 1
    (index,) = {gather.inputs[1] for node in apart if (gather := node.inputs[0].producer())}
    assert tuple(np.asarray(graph.array(index))) == BIG


def test_they_stay_in_float_and_have_a_reason(workshop: Workshop) -> None:
    model = network(BLOCK)
    split(workshop, model)
    assignment = assign(model, Scheme(PRECISIONS["int8"], "fp32", RULE))
    apart = {str(node.name) for node in model.graph if weighted_nodes.multiplies_outliers(node)}
    assert {assignment.nodes[name] for name in apart} == {PRECISIONS["fp32"]}
    assert all("outlier channels" in assignment.reasons[name] for name in apart)
    assert assignment.quantized().keys() == {"left", "right", "turned"}


def test_statistics_are_those_of_the_other_channels(workshop: Workshop) -> None:
    _, before, after = split(workshop, network(BLOCK))
    old, new = before.value("a"), after.value("a")
    assert old.channels is not None and new.channels is not None and new.rows is not None
    assert old.rows is not None and new.moments is not None
    others = np.setdiff1d(np.arange(192), BIG)
    np.testing.assert_array_equal(new.rows.data[:, others], old.rows.data[:, others])
    np.testing.assert_array_equal(new.channels.high[others], old.channels.high[others])
    assert not new.rows.data[:, list(BIG)].any() and not new.channels.low[list(BIG)].any()
    assert new.low == old.channels.low[others].min() and new.high < old.high / 10
    assert not new.moments.matrix()[list(BIG)].any()
    assert new.count == old.count
    assert after.value("r") == before.value("r")


@pytest.mark.parametrize("left", ["left", "turned"])
def test_an_activation_that_other_nodes_read_in_codes_is_left_alone(
    workshop: Workshop, left: str
) -> None:
    """The codes saturate in the outlier channels, which these nodes would still multiply."""
    names, _, _ = split(workshop, network(BLOCK), frozenset([left]))
    assert names == []


def test_an_activation_that_its_producer_writes_in_codes_is_left_alone(workshop: Workshop) -> None:
    """All its readers would read the codes, that of the outlier channels too."""
    before = "[before] p = MatMul (x, w_before)\n[in] a = Relu (p)"
    text = BLOCK.replace("[in] a = Mul (x, two)", before)
    model = network(text.replace("[N,192] x,", "[N,192] x, float[192,192] w_before,"))
    value = model.graph.initializers["w_before"]
    value.const_value = ir.tensor(np.eye(192, dtype=np.float32), name="w_before")
    names, statistics, _ = split(workshop, model)
    channels = statistics.value("a").channels
    assert channels is not None and channels.absmax[list(BIG)].min() > 50
    assert names == []


def test_a_weight_that_two_nodes_read_is_left_alone(workshop: Workshop) -> None:
    names, _, _ = split(workshop, network(SHARED))
    assert names == []


def test_without_outliers_nothing_is_split(workshop: Workshop) -> None:
    assert split(workshop, network(BLOCK), spike=1.0)[0] == []


def test_where_smoothing_gains_as_much_nothing_is_split(workshop: Workshop) -> None:
    """The channels are large in all rows, and the weights that read them as much smaller."""
    model = network(BLOCK)
    for name in ("w_left", "w_right", "w_gemm"):
        value = model.graph.initializers[name]
        numbers = np.array(graph.array(value))
        (numbers.T if name == "w_gemm" else numbers)[list(BIG)] /= 60
        value.const_value = ir.tensor(numbers, name=name)
    names, before, _ = split(workshop, model, every=1)
    channels = before.value("a").channels
    assert names == [] and channels is not None
    assert channels.absmax[list(BIG)].min() > 10 * np.median(channels.absmax)


@given(
    st.integers(0, 400).map(lambda extra: 192 + extra),
    st.integers(0, 80),
    st.floats(1, 100),
    st.integers(0, 99),
)
def test_outliers_are_the_few_largest_and_halve_the_range(
    channels: int, big: int, factor: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    data = random.uniform(-1, 1, (16, channels)).astype(np.float32)
    data[:, random.permutation(channels)[:big]] *= np.float32(factor)
    sample = ActivationSample(data, data.min(axis=0), data.max(axis=0))
    found = outliers(sample)
    if found is None:
        return
    assert 4 <= len(found) <= min(64, channels // 48)
    others = np.setdiff1d(np.arange(channels), found)
    assert sample.absmax[found].min() >= sample.absmax[others].max()

    def width(chosen: Any) -> float:
        return float(data[:, chosen].max(initial=0) - data[:, chosen].min(initial=0))

    assert width(others) <= 1.06 * width(np.arange(channels)) / 2


def deviation(chain: Chain, folder: Path) -> float:
    results = []
    for file in (chain.fused / "model.onnx", folder / "model.onnx"):
        with simulator().session(file, SessionOptions(1, level="none")) as session:
            results.append(session.run(rows(9))["y"])
    return sqnr(*results)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    folder = tmp_path_factory.mktemp("outlier-channels") / "chain"
    return Chain(folder, network(BLOCK), [rows(0), rows(1)])


def test_int8_gains_by_it(chain: Chain) -> None:
    quantized, meta = chain.quantize("cpu", "int8", two_term=[])
    assert meta["assignment"]["nodes"]["left"] == "int8"
    file = graph.load(quantized / "model.onnx")
    assert any(weighted_nodes.multiplies_outliers(node) for node in file.graph)
    whole, _ = chain.quantize("cpu", "int8", two_term=[], outlier_channels="off", smooth="off")
    assert deviation(chain, quantized) > deviation(chain, whole) + 6


def test_the_noise_of_the_others_alone_asks_for_no_second_term(tmp_path: Path) -> None:
    """In few rows all channels are large, which one scale rounds too coarsely for the others."""
    terms = []
    for name, spike in (("outliers", 2000.0), ("none", 1.0)):
        feeds = [rows(seed, spike, wave=60.0) for seed in range(2)]
        _, meta = Chain(tmp_path / name, network(BLOCK), feeds).quantize("cpu", "int8")
        terms.append({one["terms"] for one in meta["log"]["activations"].values()})
    assert terms == [{1}, {2}]


def test_gpus_have_no_such_products(chain: Chain) -> None:
    quantized, _ = chain.quantize("l4", "int8")
    file = graph.load(quantized / "model.onnx")
    assert not any(weighted_nodes.multiplies_outliers(node) for node in file.graph)


def test_a_note_tells_of_it(chain: Chain) -> None:
    meta = chain.prepared("cpu", "int8")
    (note,) = [one for one in meta["warnings"] if "outlier channels" in one]
    assert "'a'" in note and "quantization.outlier_channels=off" in note
    meta = chain.prepared("cpu", "int8", outlier_channels="off")
    assert not any("outlier channels" in one for one in meta["warnings"])

"""Rescaling changes no output, and its statistics are those of the changed graph."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from optkit.craft.backends.onnxruntime import OnnxRuntime
from optkit.craft.calibration import observe
from optkit.craft.quantization.rescaling import groups
from optkit.craft.quantization.rescaling.channels import classes
from optkit.craft.quantization.rescaling.fold import FoldPath
from optkit.craft.quantization.rescaling.rescale import RescaleLog, RescaleSettings, rescale
from optkit.facts.assignment import Assignment
from optkit.facts.codec import to_json
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import PRECISIONS, NumberFormat
from optkit.ground import graph
from optkit.ground.devices import target
from optkit.ground.recipe import Quantization
from optkit.ground.runtimes import SessionOptions
from optkit.ground.statistics import Statistics, Tap, ValueStatistics
from optkit.road.steps import perform
from tests import networks
from tests.networks import NETWORKS, network, sqnr
from tests.quantization.workshop import INT4, INT8, RULES, Chain, rules_of

EVERYWHERE = RescaleSettings(alpha=0.7, fold_gain_db=-inf)  # whether or not anything is gained


def build(name: str) -> ir.Model:
    """A net by name, its shapes known, in which channels differ as much as they can without a
    change of the function; in the post-norm block a few channels of the first norm are outliers."""
    rng = np.random.default_rng(5)
    outliers = np.ones(32)
    outliers[[3, 17, 20]] = 25, 40, 60
    planted = {"g_1": outliers, "w_up": rng.standard_normal((32, 96)) / outliers[:, None] / 6}
    model = graph.infer_shapes(network(NETWORKS[name], **planted if name == "post-norm" else {}))
    for group in groups.find_groups(model, assigned(model).nodes):
        path = groups.fold_path(group)
        if isinstance(path, FoldPath):
            s = np.exp(rng.normal(0, 1.2, group.channels)).astype(np.float32)
            groups.fold(group, path, s[classes(group.channels, path.ties)])
    return model


NETS = ("post-norm", "llama", "attention", "chain", "residual")


def assigned(model: ir.Model) -> Assignment:
    nodes = {str(n.name): INT8 for n in model.graph if graph.constant_weight(n) is not None}
    return Assignment(nodes)


def calibrated(workshop: Any, model: ir.Model) -> Statistics:
    found = groups.find_groups(model, assigned(model).nodes)
    wanted = [Tap(str(g.value.name), g.axis, rows=True, moments=True) for g in found]
    path = workshop.folder / "taps.onnx"
    graph.save(graph.expose(model, [tap.name for tap in wanted]), path)
    feeds = [networks.feed(model, 16, seed=1), networks.feed(model, 16, seed=2)]
    with OnnxRuntime().session(path, SessionOptions(threads=1)) as session:
        return observe(
            session, feeds, wanted, memory_bytes=1 << 30, progress=lambda what, fraction: None
        )


def same(found: ValueStatistics, wanted: ValueStatistics) -> None:
    def near(a: Any, b: Any, tolerance: float = 1e-4) -> None:
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.abs(a - b).max() <= tolerance * max(np.abs(b).max(), 1e-3)

    near([found.low, found.high], [wanted.low, wanted.high])
    assert found.channels is not None and wanted.channels is not None
    for what in ("low", "high", "mean"):
        near(getattr(found.channels, what), getattr(wanted.channels, what))
    assert found.rows is not None and wanted.rows is not None
    np.testing.assert_array_equal(found.rows.hashes, wanted.rows.hashes)
    near(found.rows.data, wanted.rows.data)
    assert found.moments is not None and wanted.moments is not None
    near(found.moments.matrix(), wanted.moments.matrix())


def outcomes(log: RescaleLog) -> dict[str, str]:
    return {entry.value: entry.outcome for entry in log.entries}


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("settings", [RescaleSettings(), EVERYWHERE], ids=["gains", "everywhere"])
@pytest.mark.parametrize("name", NETS)
def test_outputs_and_statistics_stay_true(
    name: str, settings: RescaleSettings, kind: str, workshop: Any
) -> None:
    model = build(name)
    feed = networks.feed(model, 4, seed=9)
    wanted = workshop.run(model, feed)
    nodes, assignment = {n.name for n in model.graph}, assigned(model)
    statistics = calibrated(workshop, model)
    log, after = rescale(model, statistics, assignment, {INT8: RULES[kind]}, settings)
    found = workshop.run(model, feed)
    for output, numbers in wanted.items():
        assert np.abs(found[output] - numbers).max() <= 1e-4 * np.abs(numbers).max()
    assert nodes <= {n.name for n in model.graph}
    assert log.counts.keys() - {"declined"}
    again = calibrated(workshop, model)
    assert again.values.keys() <= after.values.keys()
    for value in again.values:
        same(after.values[value], again.values[value])


def test_factors_go_where_they_are_free_and_else_into_a_mul(workshop: Any) -> None:
    expected = {
        "post-norm": {"x": "multiplied", "n1": "multiplied", "ge": "multiplied"},
        "llama": {"n1": "folded", "mm": "folded", "n2": "folded", "gu": "folded"},
        "attention": {"n1": "folded", "mm": "folded", "n2": "folded", "ge": "multiplied"},
        "chain": {"x": "declined", "r1": "folded", "p": "folded", "r3": "declined", "f": "folded"},
        "residual": {
            "x": "declined", "sr": "declined", "r1": "folded", "r2": "declined", "f": "folded",
        },
    }  # fmt: skip
    for name, wanted in expected.items():
        model = build(name)
        log, _ = rescale(
            model, calibrated(workshop, model), assigned(model), {INT8: RULES["cpu"]}, EVERYWHERE
        )
        assert outcomes(log) == wanted, name


def noise(
    model: ir.Model, workshop: Any, rules: PlacementRules, settings: RescaleSettings
) -> float:
    """SQNR of the output, dB, with each weight and each activation rounded by hand."""
    feed = networks.feed(model, 16, seed=9)
    wanted = workshop.run(model, feed)["y"]
    copy = model.clone()
    statistics = calibrated(workshop, copy)
    _, after = rescale(copy, statistics, assigned(copy), {INT8: rules}, settings)
    fake(copy, after, rules)
    return sqnr(wanted, workshop.run(copy, feed)["y"])


def fake(model: ir.Model, statistics: Statistics, rules: PlacementRules) -> None:
    """Round to nearest, from the definitions: scales by min-max, weights per channel or tensor."""
    assert rules.activation is not None
    for node in list(model.graph):
        weight = graph.constant_weight(node)
        if weight is None:
            continue
        w = np.array(graph.array(weight[1]), np.float64)
        transposed = node.op_type == "Gemm" and node.attributes.get_int("transB", 0)
        axis = 0 if node.op_type == "Conv" or transposed else 1
        reduced = tuple(i for i in range(w.ndim) if i != axis)
        whole = rules.weight.granularity == "tensor"
        step = np.abs(w).max(axis=None if whole else reduced, keepdims=True) / 127
        weight[1].const_value = ir.tensor((np.rint(w / step) * step).astype(np.float32))
        value = node.inputs[0]
        seen = statistics.value(value.name)
        low, high = min(seen.low, 0.0), max(seen.high, 0.0)
        if rules.activation.symmetric:
            scale, zero, dtype = max(-low, high) / 127, 0, np.int8
        else:
            scale = (high - low) / 255
            zero, dtype = round(-low / scale), np.uint8
        s = graph.add_constant(model.graph, f"{node.name}_s", np.array(scale, np.float32))
        z = graph.add_constant(model.graph, f"{node.name}_z", np.array(zero, dtype))
        q = ir.node("QuantizeLinear", [value, s, z], name=f"{node.name}_q")
        dq = ir.node("DequantizeLinear", [q.outputs[0], s, z], name=f"{node.name}_dq")
        for made in (q, dq):
            made.outputs[0].name = f"{made.name}_out"
        model.graph.insert_before(node, [q, dq])
        node.replace_input_with(0, dq.outputs[0])


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize(
    ("name", "least"), [("post-norm", 3.0), ("llama", 2.0), ("attention", 2.0)]
)
def test_smoothing_pays_where_channels_differ(
    name: str, least: float, kind: str, workshop: Any
) -> None:
    model = build(name)
    off = noise(model, workshop, RULES[kind], RescaleSettings(alpha="off", equalize="off"))
    on = noise(model, workshop, RULES[kind], RescaleSettings())
    assert on >= off + least


@pytest.mark.parametrize("wanted", ["auto", "weights"])
def test_equalizing_makes_one_scale_per_weight_affordable(wanted: Any, workshop: Any) -> None:
    one = replace(RULES["gpu"], weight=NumberFormat("int8", "tensor", symmetric=True))
    for name, least in (("chain", 3.0), ("residual", 0.5)):
        model = build(name)
        off = noise(model, workshop, one, RescaleSettings(equalize="off"))
        on = noise(model, workshop, one, RescaleSettings(equalize=wanted))
        assert on >= off + least, name


def test_settings_keep_things_as_they_are(workshop: Any) -> None:
    model = build("post-norm")
    statistics, assignment = calibrated(workshop, model), assigned(model)
    before = {n: v.const_value.numpy().copy() for n, v in model.graph.initializers.items()}
    count = len(model.graph)

    def logged(**settings: Any) -> RescaleLog:
        log, after = rescale(
            model, statistics, assignment, {INT8: RULES["cpu"]}, RescaleSettings(**settings)
        )
        if "multiplied" not in log.counts:
            assert after.values == statistics.values and len(model.graph) == count
            for name, numbers in before.items():
                np.testing.assert_array_equal(graph.array(model.graph.initializers[name]), numbers)
        return log

    assert logged(alpha="off").entries == ()
    assert logged(mul_gain_db=inf).counts == {"declined": 3}
    assert logged(mul_gain_db=1e3).counts == {"declined": 3}
    left = logged(leave=frozenset({"out", "up", "down"}))
    assert {entry.reason for entry in left.entries} == {"it was asked to leave it as it is"}
    last = logged(leave=frozenset({"up"}), alpha=0.5)
    assert outcomes(last) == {"x": "multiplied", "n1": "declined", "ge": "multiplied"}
    assert [e.alpha for e in last.entries] == [0.5, None, 0.5]
    assert last.to_json()["counts"] == {"declined": 1, "multiplied": 2}


def test_weight_only_nodes_and_values_without_rows_are_left(workshop: Any) -> None:
    model = build("llama")
    statistics = calibrated(workshop, model)
    only = replace(RULES["cpu"], activation=None)
    both = {INT8: RULES["cpu"], PRECISIONS["int8-weight-only"]: only}
    nodes = dict.fromkeys(assigned(model).nodes, PRECISIONS["int8-weight-only"])
    log, after = rescale(model, statistics, Assignment(nodes), both, EVERYWHERE)
    assert log.entries == () and after is statistics
    # keys in floating point make up for the factor of what they share with queries and values
    log, _ = rescale(model, statistics, Assignment({**nodes, "q": INT8}), both, EVERYWHERE)
    assert [(e.nodes, e.outcome) for e in log.entries] == [(("q",), "folded")]
    bare = {name: replace(v, rows=None, moments=None) for name, v in statistics.values.items()}
    log, _ = rescale(model, replace(statistics, values=bare), assigned(model), both, EVERYWHERE)
    assert {e.reason for e in log.entries} == {"no rows of it were kept"}
    log, _ = rescale(model, replace(statistics, values={}), assigned(model), both, EVERYWHERE)
    assert {e.reason for e in log.entries} == {"it has no statistics"}


def planted(model: ir.Model, size: float) -> ir.Model:
    """The same function, with two outlier channels in every value that can have them, and small
    weights that read them."""
    model = model.clone()
    for group in groups.find_groups(model, assigned(model).nodes):
        path = groups.fold_path(group)
        if isinstance(path, FoldPath):
            outliers = np.ones(group.channels, np.float32)
            outliers[[1, 5]] = 1 / size
            groups.fold(group, path, outliers[classes(group.channels, path.ties)])
    return model


@pytest.mark.parametrize(("precision", "accuracy"), [("int4", 4), ("int4", 0), ("w4a8", 4)])
def test_outlier_channels_cost_weights_in_blocks_nothing(
    precision: str, accuracy: int, workshop: Any
) -> None:
    plain = graph.infer_shapes(network(NETWORKS["llama"]))
    outliers = graph.infer_shapes(planted(plain, 200.0))
    feed = networks.feed(plain, 8, seed=9)
    wanted = workshop.run(plain, feed)["y"]
    assert sqnr(wanted, workshop.run(outliers, feed)["y"]) > 90
    rules = replace(
        OnnxRuntime().rules(target("cpu"), PRECISIONS[precision]), nbits_accuracy=accuracy
    )

    def quality(model: ir.Model, *, smooth: bool) -> float:
        model = model.clone()
        if smooth:
            nodes = Assignment(dict.fromkeys(assigned(model).nodes, PRECISIONS[precision]))
            log, _ = rescale(
                model, calibrated(workshop, model), nodes, {PRECISIONS[precision]: rules}
            )
            assert sqnr(wanted, workshop.run(model, feed)["y"]) > 90
            assert "multiplied" not in log.counts
        made, _, _ = workshop.quantize(
            model, rules, precision=precision, settings=Quantization(weights="rtn")
        )
        return float(sqnr(wanted, workshop.run(made, feed)["y"]))

    before = quality(plain, smooth=False)
    assert quality(outliers, smooth=False) < before - 6
    assert quality(outliers, smooth=True) > before - 1


def test_even_channels_of_weights_in_blocks_are_left(workshop: Any) -> None:
    """GPTQ afterwards makes up for small differences, so a factor must gain much."""
    model = graph.infer_shapes(network(NETWORKS["llama"]))
    statistics = calibrated(workshop, model)
    nodes = Assignment(dict.fromkeys(assigned(model).nodes, INT4))
    rules = {INT4: OnnxRuntime().rules(target("cpu"), INT4)}
    log, after = rescale(model, statistics, nodes, rules)
    assert log.counts == {"declined": 4} and after is statistics
    forced, _ = rescale(model, statistics, nodes, rules, RescaleSettings(alpha=0.5))
    assert set(outcomes(forced).values()) == {"folded"}


def test_weights_of_8_bits_in_blocks_are_smoothed_for_less(workshop: Any) -> None:
    """Their noise is that of the rounded activations, for which GPTQ cannot make up."""
    plain = graph.infer_shapes(network(NETWORKS["llama"]))
    feed = networks.feed(plain, 8, seed=9)
    wanted = workshop.run(plain, feed)["y"]
    uneven = graph.infer_shapes(planted(plain, 2.0))
    statistics = calibrated(workshop, uneven)
    counts, qualities = {}, {}
    for precision in ("int4", "int8-weight-only"):
        model = uneven.clone()
        nodes = Assignment(dict.fromkeys(assigned(model).nodes, PRECISIONS[precision]))
        rules = OnnxRuntime().rules(target("cpu"), PRECISIONS[precision])
        log, _ = rescale(model, statistics, nodes, {PRECISIONS[precision]: rules})
        counts[precision] = log.counts
        made = [workshop.quantize(each, rules, precision=precision)[0] for each in (uneven, model)]
        qualities[precision] = [float(sqnr(wanted, workshop.run(m, feed)["y"])) for m in made]
    assert counts["int4"] == {"declined": 4}
    assert counts["int8-weight-only"]["folded"] >= 2
    before, after = qualities["int8-weight-only"]
    assert after > before + 0.5


@pytest.mark.parametrize(
    "fmt",
    [
        NumberFormat("int8", "channel", symmetric=True),
        NumberFormat("int4", "block", symmetric=True, block_size=32),
    ],
    ids=["channel", "block"],
)
def test_awq_is_for_channels_and_for_blocks(fmt: NumberFormat, workshop: Any) -> None:
    model = build("attention")
    feed = networks.feed(model, 4, seed=9)
    wanted = workshop.run(model, feed)["y"]
    own = replace(RULES["gpu"], activation=None, weight=fmt, split_scale=frozenset())
    settings = RescaleSettings(alpha="off", equalize="off", salient=True, block_size=16)
    log, _ = rescale(model, calibrated(workshop, model), assigned(model), {INT8: own}, settings)
    assert outcomes(log)["n1"] == "folded" and {e.method for e in log.entries} == {"awq"}
    found = workshop.run(model, feed)["y"]
    assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max()


def test_a_graph_that_makes_much_of_rounding_is_quantized_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("post-norm")
    made = Chain(tmp_path / "chain", model, [networks.feed(model, 4, seed) for seed in range(4)])
    kept = {"graph": made.fused, "statistics": made.statistics}
    inputs = [{"name": "x", "dtype": "float32", "shape": ["N", 8, 32], "range": None}]
    settings = Quantization().model_dump(mode="json")
    own = {"int8": to_json(OnnxRuntime().rules(target("cpu"), INT8))}
    params = {"precision": "int8", "carrier": "fp32", "rules": own, "settings": settings,
              "method": "mse", "percentile": 99.99, "order": [],
              "inputs": inputs, "axes": {}}  # fmt: skip

    def run(name: str) -> tuple[Path, dict[str, Any]]:
        out = tmp_path / name
        out.mkdir()
        return out, perform("prepare", kept, params, out, lambda what, fraction: None)

    smoothed, meta = run("smoothed")
    assert 0 < meta["max_error"] < 1e-4 and meta["log"]["counts"]["multiplied"]
    monkeypatch.setattr("optkit.road.steps.bodies.prepare.TOLERANCE", meta["max_error"] / 2)
    plain, meta = run("plain")
    assert "'y' moved by" in meta["warnings"][0] and meta["log"]["entries"] == []
    for file in ("model.onnx", "statistics.safetensors"):
        before = (kept["graph" if file == "model.onnx" else "statistics"] / file).read_bytes()
        assert (plain / file).read_bytes() == before != (smoothed / file).read_bytes()


def test_a_graph_that_stays_as_it_is_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = graph.infer_shapes(network(NETWORKS["llama"]))
    made = Chain(tmp_path / "chain", model, [networks.feed(model, 4, seed) for seed in range(4)])
    compared: list[Path] = []

    def difference(before: Path, after: Path, feeds: object) -> tuple[str, float]:
        compared.append(after)
        return "y", 0.0

    monkeypatch.setattr("optkit.road.steps.bodies.prepare.difference", difference)
    for alpha, outcome in (("auto", "declined"), (0.5, "folded")):
        params = {
            "precision": "int4", "carrier": "fp32", "rules": rules_of("cpu", ["int4"]),
            "settings": Quantization(smooth=alpha).model_dump(mode="json"), "method": "minmax",
            "percentile": 99.99, "order": [], "inputs": [], "axes": {},
        }  # fmt: skip
        out = tmp_path / outcome
        out.mkdir()
        kept = {"graph": made.fused, "statistics": made.statistics}
        meta = perform("prepare", kept, params, out, lambda what, fraction: None)
        assert meta["log"]["counts"].keys() == {outcome} and meta["max_error"] == 0.0
    assert compared == [tmp_path / "folded" / "model.onnx"]

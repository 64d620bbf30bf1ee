"""The rules on hand-made subjects: what each finds, what it costs, and when it is silent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ruamel.yaml import YAML

from optkit.craft.benchmarking.layer_comparison import fault_of
from optkit.facts.documents.report import PaddedTokens, PairFidelity, Report
from optkit.facts.documents.result import CalibrationCheck
from optkit.facts.engines import FusedLayer, LayerTensor
from optkit.facts.evidence import Evidence
from optkit.facts.timed_layers import LayerTimes, NodeWork, TimedLayer
from optkit.ground.recipe import Recipe
from optkit.show.explanation import (
    Subject,
    Times,
    accuracy_loss,
    data_movement,
    explain,
    fixed,
    noisy_layers,
    sample_rules,
    speed,
)
from optkit.show.explanation.subject import connected
from optkit.show.report.contract import conform
from tests.report.conftest import build

RECIPE: dict[str, Any] = {
    "quantization": {"nodes": {}, "embeddings": True, "placement": {"tensor_ops": None}},
    "calibration": {"source": "memory", "method": "percentile", "samples": 64},
}
LIKE = {"sqnr_db": 40.0, "cosine": 1.0, "max_abs_error": 0.1}


def tensor(name: str, dtype: str = "int8", size: int = 1000) -> LayerTensor:
    return LayerTensor(name, (size,), dtype)


def layer(
    name: str, reads: str, ms: float, *, dtype: str | None = "int8", nodes: tuple[str, ...] = (),
    kind: str = "gemm", weights: int = 1000, compute: float | None = None,
) -> TimedLayer:  # fmt: skip
    """A kernel `name` that reads one value and writes another, called after it."""
    own = nodes or (name,)
    fused = FusedLayer(
        name, kind, (tensor(reads),), (tensor("w", dtype or "int8", weights),),
        (tensor(f"{name}.out"),), own, own if dtype else (), dtype,
    )  # fmt: skip
    return TimedLayer(fused, ms, compute, ms)


def row(node: str, *, landed: bool = True, planned: str = "int8") -> dict[str, Any]:
    return {"node": node, "op": "Gemm", "planned": planned, "landed": landed, "note": None,
            "dtype": "int8" if landed else "float16", "layer": node}  # fmt: skip


def likeness(node: str, **changes: Any) -> dict[str, Any]:
    return {
        "node": node, "op": "Gemm", "precision": "int8", "tensor": f"{node}.out",
        "reads": [f"{node}.in"], "isolated": LIKE, "propagated": LIKE,
        "codes": {"reach": 1.0, "saturated": 0.0},
        "weights": LIKE, "scales": "channel", "by_channel_db": 41.0, "restored": None, **changes,
    }  # fmt: skip


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A part of a document with some of its keys changed."""
    inner = {key: merged(base[key], value) for key, value in changes.items()
             if isinstance(value, dict) and isinstance(base.get(key), dict)}  # fmt: skip
    return {**base, **changes, **inner}


def _faults(changes: dict[str, Any]) -> list[dict[str, Any]]:
    """The suspected faults of the values; `together`: what the outputs have without all of one."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for value in changes.get("values", []):
        groups.setdefault(value["fault"], []).append(value)
    return [{"fault": fault, "pairs": [value["pair"] for value in values],
             "without": changes.get("together", values[0]["without"])}
            for fault, values in groups.items()]  # fmt: skip


def subject(**changes: Any) -> Subject:
    """Three products that gained threefold, and what a test changes of them."""
    names = ["a/Gemm", "b/Gemm", "c/Gemm"]
    result = {"drop": None, "accuracy": None, "gate": None, "speedup": None,
              **changes.get("result", {})}  # fmt: skip
    whole = build()
    report = {
        "result": result,
        "landing": changes.get("landing", [row(name) for name in names]),
        "quantization": [
            {"node": name, "precision": "int8", "reason": None, "activation": f"{name}.in",
             "method": "percentile", "low": -1.0, "high": 1.0} for name in names
        ],
        "layer_fidelity": {"evidence": "simulated", "reference": "fp32", "samples": 32,
                           "sqnr_db": 30.0, "rows": changes.get("rows", []),
                           "values": changes.get("values", []), "faults": _faults(changes)},
        "gates": [merged(whole["gates"][0], gate) for gate in changes.get("gates", [])],
        "provenance": {**whole["provenance"], "recipe": changes.get("recipe", RECIPE)},
    }  # fmt: skip
    chain = dict(zip(names, ((), ("a/Gemm",), ("b/Gemm",)), strict=True))
    nodes = {name: NodeWork("Gemm", 100, 10, reads) for name, reads in chain.items()}
    ours = [layer(n, f"{n}.in", 1.0) for n in names]
    theirs = [layer(n, f"{n}.in", 3.0, dtype="float16") for n in names]
    times = Times(
        Evidence.PREDICTED,
        LayerTimes(
            tuple(changes.get("candidate", ours)),
            tuple(changes.get("baseline", theirs)),
            {**nodes, **changes.get("nodes", {})},
        ),
    )
    recipe = Recipe.model_validate({"name": "net", **changes.get("recipe", RECIPE)})
    return Subject(conform(merged(whole, report), Report), recipe, times)


def test_a_sound_artifact_has_no_findings() -> None:
    found = explain(subject())
    assert found.findings == ()
    assert found.spent is not None and found.spent["candidate"]["product"] == pytest.approx(3.0)


def test_a_product_in_floats_costs_what_the_landed_ones_promise() -> None:
    sides = [layer(f"{n}/Gemm", "x", 1.0) for n in "ac"]
    slow = layer("b/Gemm", "x", 3.0, dtype="float16")
    landing = [row("a/Gemm"), row("b/Gemm", landed=False), row("c/Gemm")]
    (found,) = speed.left_in_float(subject(candidate=[sides[0], slow, sides[1]], landing=landing))
    assert found.cost.ms == pytest.approx(3.0 - 3.0 / 3)
    assert found.cost.evidence is Evidence.PREDICTED
    assert found.nodes == ("b/Gemm",) and found.modules == ("b",)
    assert list(found.change.recipe) == ['quantization: {nodes: {"b/Gemm": fp16}}']


def test_nothing_is_said_of_a_product_whose_landing_is_unknown() -> None:
    sides = [layer(f"{n}/Gemm", "x", 1.0) for n in "abc"]
    landing = [row("a/Gemm"), {**row("b/Gemm"), "landed": None, "dtype": None}, row("c/Gemm")]
    assert not list(speed.left_in_float(subject(candidate=sides, landing=landing)))


def test_a_pair_between_two_readers_of_codes_is_idle_and_one_at_the_end_is_not() -> None:
    halves = {
        "dq": NodeWork("DequantizeLinear", 0, 8, ("q0",)),
        "q": NodeWork("QuantizeLinear", 0, 8, ("dq",)),
    }
    dq = layer("dq", "a/Gemm.out", 0.5, dtype=None, kind="DequantizeLinear")
    q = layer("q", "dq.out", 0.25, dtype=None, kind="QuantizeLinear")
    products = [layer(f"{n}/Gemm", "x", 1.0) for n in "abc"]
    (found,) = data_movement.unfused_pairs(subject(candidate=[*products, dq, q], nodes=halves))
    assert found.cost.ms == pytest.approx(0.75) and set(found.nodes) == {"dq", "q"}
    assert found.cost.share == pytest.approx(0.75 / 3.75)
    assert not list(data_movement.unfused_pairs(subject(candidate=[*products, dq], nodes=halves)))


def test_a_pair_on_a_shortcut_is_the_rule_of_placement_s() -> None:
    nodes = {
        "relu": NodeWork("Relu", 0, 0, ()), "q": NodeWork("QuantizeLinear", 0, 8, ("relu",)),
        "dq": NodeWork("DequantizeLinear", 0, 8, ("q",)), "add": NodeWork("Add", 0, 0, ("dq",)),
    }  # fmt: skip
    dq = layer("dq", "q.out", 0.5, dtype=None, kind="DequantizeLinear")
    add = layer("add", "dq.out", 0.1, dtype=None, kind="Add")
    (found,) = data_movement.unfused_pairs(subject(candidate=[dq, add], nodes=nodes))
    assert list(found.change.recipe) == ["quantization: {placement: {residual_adds: false}}"]


@pytest.mark.parametrize(
    ("ci95", "evidence", "slower"),
    [
        (None, Evidence.MEASURED, True),
        ([0.7, 0.95], Evidence.MEASURED, True),
        ([0.7, 1.1], Evidence.MEASURED, False),
        ([0.5, 1.8], Evidence.PREDICTED, True),  # a band, in which nearly any two meet
    ],
)
def test_a_whole_that_is_slower_names_the_layers_that_lose(
    ci95: list[float] | None, evidence: Evidence, slower: bool
) -> None:
    nodes = {"q": NodeWork("QuantizeLinear", 0, 8, ("b/Gemm",))}
    behind = layer("q", "b/Gemm.out", 7.0, dtype=None, kind="kgen")
    products = [layer(f"{n}/Gemm", "x", 1.0) for n in "abc"]
    speedup = {"value": 0.9, "ci95": ci95, "evidence": evidence}
    result = {"speedup": speedup, "latency": {"batch": 8, "p50_ms": 5.0},
              "baseline": {"precision": "fp16", "latency": {"p50_ms": 4.5}}}  # fmt: skip
    made = subject(candidate=[*products, behind], nodes=nodes, result=result)
    found = list(speed.does_not_pay(made))
    assert bool(found) is slower  # what chance may be is not told
    for one in found:
        assert one.nodes == ("b/Gemm",)
        # of the latency as it was measured, not of the layers, which together take 10 ms
        assert (one.cost.ms, one.cost.share, one.cost.of) == pytest.approx((0.5, 0.1, "latency"))
        assert one.cost.evidence is evidence
        assert "optkit tune --target l4" in one.change.text


def test_kernels_that_only_move_are_one_finding_for_the_same_operators() -> None:
    moves = {n: NodeWork("Transpose", 0, 0, ()) for n in ("t1", "t2", "t3")}
    moves["c"] = NodeWork("Concat", 0, 0, ())
    chain = [layer("t1", "y", 0.2, dtype=None, kind="Transpose"),
             layer("t2", "t1.out", 0.2, dtype=None, kind="Transpose"),
             layer("t3", "z", 0.1, dtype=None, kind="Transpose"),
             layer("c", "w", 0.3, dtype=None, kind="Concat")]  # fmt: skip
    found = list(data_movement.layout(subject(candidate=chain, nodes=moves)))
    assert [one.nodes for one in found] == [("t1", "t2", "t3"), ("c",)]
    assert found[0].cost.ms == pytest.approx(0.5) and found[0].change.recipe == ()


def test_what_waits_for_memory_is_a_limit_and_stands_last() -> None:
    waiting = [layer(f"{n}/Gemm", "x", 1.0, compute=0.1, weights=9000) for n in "abc"]
    before = [layer(f"{n}/Gemm", "x", 3.0, dtype="float16", compute=0.2) for n in "abc"]
    (found,) = speed.memory_bound(subject(candidate=waiting, baseline=before))
    assert found.limit and found.cost.ms == pytest.approx(3 * 9000 / 11000 / 2)
    busy = [replace(one, compute_ms=0.9) for one in waiting]
    twice = [replace(one, compute_ms=1.8) for one in before]
    assert not list(speed.memory_bound(subject(candidate=busy, baseline=twice)))
    moving = layer("t", "y", 0.1, dtype=None, kind="Transpose")
    everything = explain(subject(candidate=[*waiting, moving], baseline=before))
    assert [one.rule for one in everything.findings] == ["layout", "memory_bound"]


def clipping(node: str = "b/Gemm", **changes: Any) -> dict[str, Any]:
    return {"value": f"{node}.in", "readers": [node], "sqnr_db": 12.0, "share": 0.1,
            "noise": 0.9, "low": -1.0, "high": 1.0, "seen": [-9.0, 9.0], "pair": f"{node}.q",
            "read": True, "again": False, "fault": "clipped", "without": {"sqnr_db": 40.0},
            **changes}  # fmt: skip


def test_a_clipped_range_costs_what_the_outputs_gain_without_it() -> None:
    drop = {"value": 0.05, "ci95": None, "evidence": "simulated"}
    (found,) = accuracy_loss.clipped(subject(values=[clipping()], result={"drop": drop}))
    assert found.cost.db == pytest.approx(10.0) and found.cost.share == pytest.approx(0.9)
    assert found.cost.points == pytest.approx(0.05 * 0.9)
    assert list(found.change.recipe) == ["calibration: {method: minmax}"]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, "clipped"),
        ({"noise": 0.4}, None),
        ({"sqnr_db": 38.0}, None),
        ({"sqnr_db": None}, None),
        ({"noise": 0.0, "high": 36.0}, "coarse"),
        ({"noise": 0.0, "low": -36.0}, "coarse"),
        ({"noise": 0.0, "high": 35.0}, None),
        ({"noise": 0.0, "high": 36.0, "sqnr_db": 38.0}, None),
        ({"noise": 0.0, "read": False}, "unread"),
        ({"read": False}, "clipped"),
        ({"again": True}, "duplicated"),
    ],
)
def test_what_is_wrong_with_a_pair(changes: dict[str, Any], fault: str | None) -> None:
    assert fault_of(PairFidelity(**clipping(**changes))) == fault


def test_where_all_ranges_clip_they_are_one_finding_that_names_the_cause() -> None:
    """Each alone wins next to nothing beside the others."""
    values = [clipping(f"{name}/Gemm", without={"sqnr_db": 30.3}) for name in "abc"]
    (found,) = accuracy_loss.clipped(subject(values=values, together={"sqnr_db": None}))
    assert (found.cost.share, found.cost.db) == (1.0, None)
    assert found.nodes == ("a/Gemm", "b/Gemm", "c/Gemm") and "2 more tensors" in found.what
    assert list(found.change.recipe) == ["calibration: {method: minmax}"]
    assert not list(accuracy_loss.clipped(subject(values=values, together={"sqnr_db": 30.3})))


def test_a_range_that_no_setting_made_is_not_mended_by_one() -> None:
    (found,) = accuracy_loss.clipped(subject(values=[clipping(low=-0.1, high=0.1)]))
    assert found.change.recipe == ()
    assert "the recipe gives b/Gemm.in the range -1 to 1" in found.change.text
    (found,) = accuracy_loss.clipped(subject(values=[clipping("other")]))
    assert found.change.recipe == () and "range of its values" in found.change.text


def test_one_of_two_pairs_of_a_value_has_the_range_of_the_recipe() -> None:
    wide = clipping(fault="coarse", pair="fp8/Q", low=-1.0, high=1.0)
    (found,) = accuracy_loss.clipped(subject(values=[clipping(low=-0.1, high=0.1), wide]))
    assert "build it again" not in found.change.text and found.change.recipe


def test_a_range_that_another_tool_has_chosen_is_chosen_again_there() -> None:
    one = subject(values=[clipping(low=-0.1, high=0.1)])
    rows = [row.model_copy(update={"method": "as given"}) for row in one.report.quantization]
    report = one.report.model_copy(update={"quantization": tuple(rows)})
    (found,) = accuracy_loss.clipped(replace(one, report=report))
    assert "in the tool that quantized the graph" in found.change.text
    assert found.change.recipe == ()


def test_a_range_of_unused_codes_is_no_setting_s_fault() -> None:
    value = clipping(fault="coarse", noise=0.0, low=-64.0, high=64.0, seen=[-1.0, 4.0])
    (found,) = accuracy_loss.coarse(subject(values=[value]))
    assert "16.0 times too large" in found.what and "4.0 bits" in found.why
    assert found.change.recipe == ()


def test_a_second_pair_is_reported_by_its_name() -> None:
    value = clipping(fault="duplicated", again=True, pair="again/Q0")
    (found,) = accuracy_loss.duplicated(subject(values=[value]))
    assert "twice" in found.what and "again/Q0" in found.change.text
    assert found.cost.db == pytest.approx(10.0)


@pytest.mark.parametrize(("without", "count"), [(34.0, 1), (32.0, 0)])
def test_codes_for_nobody_are_reported_where_half_of_the_noise_is_theirs(
    without: float, count: int
) -> None:
    value = clipping("soft/Softmax", fault="unread", read=False, without={"sqnr_db": without})
    found = list(accuracy_loss.unread(subject(values=[value])))
    assert len(found) == count
    assert all(one.change.recipe == () and "soft/Softmax" in one.what for one in found)


def test_codes_that_an_integer_kernel_must_write_are_a_limit_and_name_the_setting() -> None:
    pair = NodeWork("QuantizeLinear", 0, 0, ("a/Gemm",))
    value = clipping(fault="unread", read=False, without={"sqnr_db": 34.0}, pair="Q")
    (found,) = accuracy_loss.unread(subject(values=[value], nodes={"Q": pair}))
    assert found.limit and "a/Gemm can write only codes" in found.why
    assert '`quantization: {nodes: {"a/Gemm": fp16}}`' in found.change.text
    landing = [row(f"{name}/Gemm", landed=name != "a") for name in "abc"]
    (given,) = accuracy_loss.unread(subject(values=[value], nodes={"Q": pair}, landing=landing))
    assert not given.limit and "from the graph (Q)" in given.change.text


@pytest.mark.parametrize(
    ("codes", "told"),
    [({"reach": 0.06, "saturated": 0.01}, "only 6%"), ({"reach": 1.0, "saturated": 0.3}, "30%"),
     ({"reach": 1.0, "saturated": 0.004}, None)],
)  # fmt: skip
def test_a_weight_s_scales_are_judged_by_its_codes(
    codes: dict[str, float], told: str | None
) -> None:
    rows = [likeness("b/Gemm", restored={"sqnr_db": 36.0}, weights={**LIKE, "sqnr_db": 20.0},
                     codes=codes)]  # fmt: skip
    found = list(accuracy_loss.weight_scale(subject(rows=rows)))
    assert len(found) == (told is not None)
    assert all(told is not None and told in one.what for one in found)
    assert all(
        list(one.change.recipe) == ['quantization: {nodes: {"b/Gemm": fp16}}'] for one in found
    )


@pytest.mark.parametrize(
    ("target", "size", "count"), [("l4", 1021, 1), ("l4", 1024, 0), ("cpu", 1021, 0)]
)
def test_rows_of_codes_that_are_not_aligned_may_lose_what_codes_save(
    target: str, size: int, count: int
) -> None:
    nodes = {f"{n}/Gemm": NodeWork("Gemm", 100, 10, (), size) for n in "ab"}
    found = list(speed.alignment(subject(nodes=nodes, result={"target": target})))
    assert len(found) == count
    for one in found:
        assert one.nodes == ("a/Gemm", "b/Gemm") and one.cost.ms == pytest.approx(2 * 2.0)
        assert one.cost.evidence is Evidence.PREDICTED
        assert one.change.recipe == () and "1021 → 1024" in one.change.text


@pytest.mark.parametrize(("baseline", "told"), [("fp16", "65504"), ("fp32", "remove the cast")])
def test_a_cast_s_remedy_is_one_of_this_build(baseline: str, told: str) -> None:
    nodes = {n: NodeWork("Cast", 0, 0, ()) for n in ("to", "fro")}
    chain = [layer("to", "y", 0.2, dtype=None, kind="Cast"),
             layer("fro", "to.out", 0.2, dtype=None, kind="Cast")]  # fmt: skip
    made = subject(candidate=chain, nodes=nodes, result={"baseline": {"precision": baseline}})
    (found,) = data_movement.casts(made)
    assert told in found.change.text and found.nodes == ("to", "fro")
    assert ("FP16" in found.change.text + found.why) is (baseline == "fp16")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"scales": "summed"}, True),
        ({"scales": "tensor", "weights": {**LIKE, "sqnr_db": 30.0}}, True),
        ({"scales": "tensor"}, False),
        ({"weights": None}, False),
    ],
)
def test_scales_that_do_not_follow_the_channels(changes: dict[str, Any], found: bool) -> None:
    rows = [likeness("b/Gemm", restored={"sqnr_db": 36.0}, **changes)]
    assert bool(list(accuracy_loss.weight_axis(subject(rows=rows)))) is found


@pytest.mark.parametrize(
    ("landed", "sqnr_db", "ms", "share", "of"),
    [(True, 36.0, None, 0.749, "noise"), (False, 36.0, 2.0, 0.749, "noise"),
     (False, 30.1, 2.0, 0.4, "layers")],
)  # fmt: skip
def test_a_wrong_axis_costs_time_where_its_layer_did_not_land_for_it(
    landed: bool, sqnr_db: float, ms: float | None, share: float, of: str
) -> None:
    rows = [likeness("b/Gemm", restored={"sqnr_db": sqnr_db}, scales="summed")]
    sides = [layer("a/Gemm", "x", 1.0), layer("b/Gemm", "x", 3.0), layer("c/Gemm", "x", 1.0)]
    landing = [row("a/Gemm"), row("b/Gemm", landed=landed), row("c/Gemm")]
    (found,) = accuracy_loss.weight_axis(subject(rows=rows, candidate=sides, landing=landing))
    cost = found.cost
    assert cost.ms == (None if ms is None else pytest.approx(ms))
    assert (cost.share, cost.of) == (pytest.approx(share, abs=1e-3), of)


def test_one_scale_per_tensor_that_the_recipe_asks_for_is_taken_back() -> None:
    quantization = {**RECIPE["quantization"], "placement": {"tensor_ops": ["Conv", "Gemm"]}}
    rows = [likeness("b/Gemm", scales="tensor", weights={**LIKE, "sqnr_db": 20.0})]
    (found,) = accuracy_loss.weight_axis(
        subject(rows=rows, recipe={**RECIPE, "quantization": quantization})
    )
    assert list(found.change.recipe) == ['quantization: {placement: {tensor_ops: ["Conv"]}}']


@pytest.mark.parametrize(("outcome", "count"), [("fail", 1), ("pass", 0)])
def test_noisy_layers_are_reported_where_a_gate_is_broken(outcome: str, count: int) -> None:
    rows = [likeness("b/Gemm", restored={"sqnr_db": 33.0}),
            likeness("c/Gemm", restored={"sqnr_db": 30.2})]  # fmt: skip
    gate = {"gate": "max_drop", "outcome": outcome, "value": 0.001, "limit": 0.01}
    made = subject(rows=rows, gates=[gate], result={"accuracy": {"value": 0.9}})
    found = list(noisy_layers.sensitive(made))
    assert [one.nodes for one in found] == [("b/Gemm",)] * count
    alone = "only this layer quantized, its output has cosine 1.000000, largest error 0.1"
    assert all("b/Gemm" in one.what and one.what.endswith(alone) for one in found)


@pytest.mark.parametrize(("alone", "told"), [(9.9, True), (10.1, False), (None, False)])
def test_a_layer_that_loses_its_values_is_told_whatever_it_costs(
    alone: float | None, told: bool
) -> None:
    """Also beside an evaluation that passes, and where its values are restored without a gain."""
    lost = {**LIKE, "sqnr_db": alone}
    rows = [likeness("a/Gemm", isolated={**LIKE, "sqnr_db": 10.2}),
            likeness("b/Gemm", isolated=lost, restored={"sqnr_db": 30.0}),
            likeness("c/Gemm", isolated=lost, weights=lost)]  # fmt: skip
    made = subject(rows=rows, result={"accuracy": {"value": 0.9}})
    found = explain(made).findings
    assert [one.nodes for one in found] == [("b/Gemm", "c/Gemm")] * told
    for one in found:
        assert one.what.startswith("the values of b/Gemm are lost")
        assert "its output has 9.9 dB; the same applies to 1 more layer" in one.what
        assert "what it reads (b/Gemm.in) lose them" in one.why
        assert list(one.change.recipe) == [
            f'quantization: {{nodes: {{"{name}/Gemm": fp16}}}}' for name in "bc"
        ]
    (weight,) = noisy_layers.lost(subject(rows=rows[2:])) if told else [None]
    assert weight is None or "its weight lose them (with only these, 9.9 dB)" in weight.why


def test_a_lost_layer_is_named_once() -> None:
    lost = {**LIKE, "sqnr_db": 3.0}
    rows = [likeness("b/Gemm", isolated=lost, restored={"sqnr_db": 33.0})]
    gate = {"gate": "max_drop", "outcome": "fail", "value": 0.1, "limit": 0.01}
    (found,) = explain(subject(rows=rows, gates=[gate])).findings
    assert found.cost.db == pytest.approx(3.0) and "are lost" in found.what


def test_findings_of_all_kinds_are_ranked_by_their_share() -> None:
    values = [clipping(without={"sqnr_db": 33.0})]
    moving = layer("t", "y", 3.0, dtype=None, kind="Transpose")
    products = [layer(f"{n}/Gemm", "x", 1.0) for n in "abc"]
    made = subject(values=values, candidate=[*products, moving])
    found = explain(made).findings
    assert [(one.rule, round(one.cost.share, 2)) for one in found] == [
        ("layout", 0.5), ("clipped", 0.5),
    ]  # fmt: skip
    assert found[0].cost.share > found[1].cost.share


def test_without_an_engine_accuracy_is_still_explained() -> None:
    made = replace(subject(values=[clipping()]), times=None)
    found = explain(made)
    assert [one.rule for one in found.findings] == ["clipped"]
    assert found.time() is None


def test_connected_layers_meet_through_others() -> None:
    a, b, c = (layer(n, r, 1.0) for n, r in (("a", "x"), ("b", "c.out"), ("c", "a.out")))
    assert [{one.layer.name for one in group} for group in connected([a, b, c])] == [
        {"a", "b", "c"}
    ]


def moving(op: str, ms: float, *, name: str | None = None, reads: str = "x") -> TimedLayer:
    """A kernel of ONNX Runtime without a product."""
    name = name or op.lower()
    return layer(name, reads, ms, dtype=None, kind=op, nodes=())


def products(ms: float = 1.0) -> list[TimedLayer]:
    return [layer(f"{n}/Gemm", f"{n}.in", ms) for n in "abc"]


def test_the_time_that_no_precision_shortens_limits_the_speedup() -> None:
    nodes = {"topk": NodeWork("TopK", 0, 0, ()), "t": NodeWork("Transpose", 0, 0, ())}
    made = subject(candidate=[*products(), moving("TopK", 6.0), moving("Transpose", 3.0, name="t")],
                   nodes=nodes)  # fmt: skip
    found = explain(made).fixed
    assert found is not None and found.evidence is Evidence.PREDICTED
    assert (found.ms, found.share) == pytest.approx((9.0, 0.75))
    assert found.at_most == pytest.approx(12 / 9)
    assert [(one.op, one.nodes) for one in found.operators] == [
        ("TopK", ("topk",)), ("Transpose", ("t",)),
    ]  # fmt: skip
    assert explain(replace(made, times=None)).fixed is None


def test_what_only_the_baseline_fuses_is_no_time_that_every_precision_needs() -> None:
    """As TensorRT-RTX compiles a detector: FP16 has each SiLU in its convolution."""
    ops = ("Sigmoid", "Mul")
    nodes = {op: NodeWork(op, 0, 0, ()) for op in (*ops, "Add")}
    own, both = (layer(name, "a/Gemm.out", 2.0, dtype=None, nodes=inside)
                 for name, inside in (("silu", ops), ("tail", ("Add",))))  # fmt: skip
    fp16 = [replace(one, layer=replace(one.layer, nodes=(*one.layer.nodes, *ops)))
            for one in products(3.0)]  # fmt: skip
    made = subject(candidate=[*products(), own, both], baseline=[*fp16, both], nodes=nodes)
    spent = explain(made).fixed
    assert spent is not None and (spent.ms, spent.unfused_ms) == pytest.approx((2.0, 2.0))
    assert [one.op for one in spent.operators] == ["Add"] and spent.at_most == pytest.approx(3.5)
    found = {one.nodes: one for one in fixed.slow_operators(made)}
    assert set(found) == {ops, ("Add",)}
    assert (
        "elementwise operators take" in found[ops].what and "kernels of their own" in found[ops].why
    )
    assert "Add takes" in found["Add",].what and "memory limits it" in found["Add",].why


@pytest.mark.parametrize(
    ("op", "ms", "found", "limit"),
    [("TopK", 0.2, True, False), ("TopK", 0.1, False, False), ("Softmax", 0.6, False, False),
     ("Softmax", 1.0, True, True), ("Softmax", 4.0, True, False), ("Loop", 4.0, True, False)],
)  # fmt: skip
def test_an_operator_that_takes_much_time_is_named(
    op: str, ms: float, found: bool, limit: bool
) -> None:
    one = moving(op, ms)
    made = subject(candidate=[*products(), one], nodes={one.layer.name: NodeWork(op, 0, 0, ())})
    findings = list(fixed.slow_operators(made))
    assert bool(findings) is found
    for finding in findings:
        assert op in finding.what and finding.limit is limit and finding.cost.ms == ms


def chain(*ops: str) -> tuple[list[TimedLayer], dict[str, NodeWork]]:
    layers = [moving(op, 0.5, name=f"n{i}", reads=f"n{i - 1}.out") for i, op in enumerate(ops)]
    return layers, {f"n{i}": NodeWork(op, 0, 0, ()) for i, op in enumerate(ops)}


@pytest.mark.parametrize(
    ("ops", "count"),
    [(("Exp", "Add", "Log", "Tanh", "Mul"), 1), (("Add", "Add", "Add", "Add"), 0),
     (("Exp", "Add", "Div"), 0), (("Sub", "Mul", "ReduceMean", "Sqrt", "Div"), 1),
     (("Exp", "Add", "Softmax", "Tanh", "Mul"), 0)],
)  # fmt: skip
def test_a_chain_of_kernels_costs_all_but_its_largest(ops: tuple[str, ...], count: int) -> None:
    layers, nodes = chain(*ops)
    found = list(fixed.written_out(subject(candidate=[*products(), *layers], nodes=nodes)))
    assert len(found) == count
    for one in found:
        assert one.cost.ms == pytest.approx(0.5 * (len(ops) - 1)) and set(one.nodes) == set(nodes)


@pytest.mark.parametrize(("launch", "count"), [(0.9, 1), (0.4, 0), (None, 0)])
def test_launches_are_told_where_they_decide(launch: float | None, count: int) -> None:
    latency = {"latency": {"batch": 1, "p50_ms": 3.0}}
    layers = [replace(one, launch_ms=launch) for one in products()]
    (*found,) = fixed.launches(subject(candidate=layers, result=latency))
    assert len(found) == count
    for one in found:
        assert one.cost.share == pytest.approx(0.9 * 7 / 8) and "batch 1" in one.what
        assert '(`axes: {batch: {"min": 1, "opt": 8, "max": 32}}`)' in one.change.text
        assert one.change.recipe == () and "all layers" in one.what and "7/8" in one.what


@pytest.mark.parametrize(
    ("declared", "told"),
    [({}, ' (`axes: {batch: {"min": 1, "opt": 64, "max": 64}}`)'),
     ({"inputs": {"x": {"dtype": "float32", "shape": ["n", 3]}},
       "axes": {"n": {"min": 2, "opt": 8, "max": 100}}},
      ' (`axes: {n: {"min": 2, "opt": 64, "max": 100}}`)'),
     ({"inputs": {"x": {"dtype": "float32", "shape": [1, 3]}}}, "")],
)  # fmt: skip
def test_the_advice_of_a_larger_batch_is_a_valid_line(declared: dict[str, Any], told: str) -> None:
    made = subject(recipe={**RECIPE, **declared})
    assert made.tuned_for(64) == told
    if told:
        given = YAML(typ="safe").load(told.strip(" (`)"))
        changed = {**made.recipe.model_dump(mode="json", exclude_defaults=True), **given}
        assert any(span.opt == 64 for span in Recipe.model_validate(changed).axis_ranges().values())


def padded(real: float, axis: str | None, **recipe: Any) -> Subject:
    made = subject(recipe={**RECIPE, **recipe})
    tokens = PaddedTokens(
        input="mask", axis=axis, samples=64, given=512.0, real=real, most=24, longest=30
    )
    return replace(made, report=made.report.model_copy(update={"padding": tokens}))


def test_padding_costs_its_share_of_the_tokens() -> None:
    axes = {"axes": {"tokens": {"min": 1, "opt": 512, "max": 512}}}
    (found,) = sample_rules.padding(padded(20.0, "tokens", **axes))
    assert found.cost.share == pytest.approx(492 / 512) and "492 of 512" in found.what
    assert list(found.change.recipe) == ['axes: {tokens: {"min": 1, "opt": 24, "max": 512}}']
    (found,) = sample_rules.padding(padded(20.0, None))
    assert found.change.recipe == () and "free axis" in found.change.text
    assert not list(sample_rules.padding(padded(400.0, None)))


def other_data(made: Subject, kind: str) -> Subject:
    check = {"verdict": "suspect", "samples": 256, "compared": True, "findings": [
        {"kind": kind, "input": "x", "what": "it is 1/4 as large", "measured": 0.25,
         "expected": 1.0, "hint": "prepare both in the same way"}]}  # fmt: skip
    result = made.result.model_copy(update={"calibration": CalibrationCheck.from_json(check)})
    return replace(made, report=made.report.model_copy(update={"result": result}))


def test_ranges_of_other_data_are_mended_by_its_preprocessing() -> None:
    made = other_data(subject(values=[clipping()]), "scale")
    found = explain(made).findings
    assert [one.rule for one in found] == ["other_calibration_data"]
    assert "it is 1/4 as large" in found[0].what and "same preprocessing" in found[0].change.text
    assert found[0].change.recipe == () and found[0].cost.db == pytest.approx(10.0)
    few = other_data(subject(values=[clipping()]), "duplicates")
    assert [one.rule for one in explain(few).findings] == ["clipped"]
    assert not explain(other_data(subject(), "scale")).findings


@pytest.mark.parametrize(("share", "more"), [(0.001, True), (0.1, False)])
def test_more_samples_are_advised_only_where_chance_explains_it(share: float, more: bool) -> None:
    one = subject(values=[clipping(share=share)])
    rows = [row.model_copy(update={"method": "minmax"}) for row in one.report.quantization]
    one = replace(one, report=one.report.model_copy(update={"quantization": tuple(rows)}))
    (found,) = accuracy_loss.clipped(other_data(one, "duplicates"))
    assert bool(found.change.recipe) is more
    assert ("more samples of the same kind would not" in found.change.text) is not more


def test_noise_that_does_not_matter_stands_behind_time() -> None:
    values = [clipping(without={"sqnr_db": None})]
    nodes = {"topk": NodeWork("TopK", 0, 0, ())}
    made = subject(values=values, candidate=[*products(), moving("TopK", 3.0)], nodes=nodes)
    assert [one.rule for one in explain(made).findings] == ["slow_operator", "clipped"]
    gate = {"gate": "max_drop", "outcome": "fail", "value": 0.02, "limit": 0.01}
    made = subject(values=values, candidate=[*products(), moving("TopK", 3.0)], nodes=nodes,
                   gates=[gate])  # fmt: skip
    assert [one.rule for one in explain(made).findings] == ["clipped", "slow_operator"]

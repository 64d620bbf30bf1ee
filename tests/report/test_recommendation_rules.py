"""The sentence that says what to do, for builds of every outcome."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.craft.benchmarking import gates
from optkit.facts.device_facts import Price
from optkit.facts.documents.measured import GateVerdict
from optkit.facts.documents.result import (
    CalibrationCheck,
    DataFinding,
    EngineFacts,
    EngineSize,
    Result,
)
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Difference, Fidelity, Interval, OutputFidelity
from optkit.ground.recipe.sections import Limits
from optkit.show.report import fleet_page as fleets
from optkit.show.report import recommendation_rules, recommended_choice, view, worth
from optkit.show.report.build_result import joined
from optkit.show.report.titles import device_of
from tests.report.conftest import read_result
from tests.report.test_fleet_page import fleet_of

PASS = GateVerdict(verdict="pass", reasons=())


def gain(value: float, low: float, high: float, known: str = "predicted") -> Difference:
    return Difference(value=value, ci95=Interval(low, high), evidence=Evidence(known))


@pytest.fixture
def built(make: Any) -> Any:
    """A build for an L4 in INT8 that passes, with changes."""

    def change(**changes: object) -> Result:
        base = read_result(make()["result"])
        return base.model_copy(update={"gate": PASS, "recommendation": None, **changes})

    return change


def decided(result: Result) -> tuple[str, str, str]:
    """What is shipped, the colour's word, and the sentence."""
    advice = recommendation_rules.of_result(result)
    assert advice is not None
    return advice.decision, view.headline(result).word, advice.sentence


def test_faster_and_accurate(built: Any) -> None:
    ship, word, sentence = decided(built(speedup=gain(1.8, 1.35, 2.39)))
    assert (ship, word) == ("likely", "likely")
    assert sentence == (
        "Likely, not measured: INT8 is 1.80× as fast as FP16 on NVIDIA L4 (1.35 to 2.39, "
        "predicted), drop 0.22 points of top1 (-0.20 to 0.81 points, simulated). Run `optkit "
        "finish artifacts/digits-vit-l4-int8` on a machine with this device (it measures the "
        "latency) before you ship it."
    )


def test_only_a_measured_gain_is_to_be_shipped(built: Any) -> None:
    ship, word, sentence = decided(built(speedup=gain(1.8, 1.7, 1.9, "measured")))
    assert (ship, word) == ("candidate", "pass") and sentence.endswith(": ship it.")


def test_an_interval_with_one_inside_shows_no_gain_and_says_how_to_find_out(built: Any) -> None:
    size = EngineSize(bytes=300, baseline_bytes=300, evidence=Evidence.COMPILED)
    perhaps = built(speedup=gain(0.94, 0.71, 1.25), size=size)
    assert decided(perhaps) == (
        "baseline", "inconclusive",
        ("No gain is shown for INT8 on NVIDIA L4: 0.94× as fast as FP16 (0.71 to 1.25, predicted), "
        "drop 0.22 points of top1 (-0.20 to 0.81 points, simulated): ship FP16, or, to know "
        "the gain, run `optkit finish artifacts/digits-vit-l4-int8` on a machine with this device "
        "(it measures the latency)."),
    )  # fmt: skip
    advice = recommendation_rules.of_result(perhaps)
    assert advice is not None and advice.evidence == (Evidence.PREDICTED,)


def test_a_missing_engine_is_named_with_the_command_that_makes_it(built: Any) -> None:
    engine = EngineFacts(backend="tensorrt", evidence=Evidence.PENDING)
    pending = {"engine": engine, "status": "pending", "target": "h100-sxm", "precision": "fp8",
               "size": None}  # fmt: skip
    finish = "run `optkit finish artifacts/digits-vit-l4-int8` on a machine with this device"
    makes = f"{finish} (it compiles the missing TensorRT engine and measures the latency)."
    ship, word, sentence = decided(built(speedup=gain(1.03, 0.78, 1.38), **pending))
    assert (ship, word) == ("baseline", "inconclusive")
    assert "FP8 on NVIDIA H100 SXM5 80GB: 1.03×" in sentence
    assert "(0.78 to 1.38, predicted for TensorRT)" in sentence
    assert sentence.endswith(f": ship FP16, or, to know the gain, {makes}")
    ship, word, sentence = decided(built(speedup=gain(1.8, 1.35, 2.39), **pending))
    assert (ship, word) == ("likely", "likely")
    assert sentence.endswith(f". R{makes[1:-1]} before you ship it.")


def test_slower_in_the_whole_interval(built: Any) -> None:
    size = EngineSize(bytes=100, baseline_bytes=300, evidence=Evidence.COMPILED)
    slow = built(speedup=gain(0.64, 0.6, 0.68, "measured"), size=size)
    assert decided(slow) == (
        "baseline", "inconclusive",
        ("INT8 is slower than FP16 on NVIDIA L4 (0.64× as fast, 0.60 to 0.68, measured): ship "
        "FP16. The INT8 engine is 67% smaller (100 B in place of 300 B, compiled)."),
    )  # fmt: skip


def test_weights_alone_that_are_slower_in_a_batch_name_the_form_that_is_faster(built: Any) -> None:
    slow = built(speedup=gain(0.93, 0.9, 0.96, "measured"), precision="int4", target="cpu")
    assert slow.latency.batch > 1
    hint = (
        " INT4 saves time where reading the weights takes most of it, as at batch 1; at larger "
        "batches INT8 (`-p int8`) is usually faster: build it to compare."
    )
    ship, _, sentence = decided(slow)
    assert ship == "baseline" and sentence.endswith(hint)
    alone = slow.model_copy(update={"latency": replace(slow.latency, batch=1)})
    assert hint not in decided(alone)[2]
    assert hint not in decided(slow.model_copy(update={"precision": "int8"}))[2]
    assert hint not in decided(slow.model_copy(update={"target": "l4"}))[2]


def test_a_small_gain_is_too_little(built: Any) -> None:
    for small in (gain(1.03, 1.01, 1.04), gain(1.04, 1.01, 1.07), gain(1.0, 0.99, 1.01)):
        ship, word, sentence = decided(built(speedup=small))
        assert (ship, word) == ("baseline", "inconclusive")
        assert "too little for a change of the number format: ship FP16." in sentence


def test_a_model_that_may_be_slower_is_not_called_a_gain(built: Any) -> None:
    ship, _, sentence = decided(built(speedup=gain(0.98, 0.95, 1.02)))
    assert ship == "baseline"
    assert sentence.startswith(
        "No gain is shown for INT8 on NVIDIA L4: 0.98× as fast as FP16 (0.95 to 1.02, predicted): "
        "ship FP16"
    )


def test_what_is_surely_slower_needs_no_accuracy(built: Any) -> None:
    size = EngineSize(bytes=300, baseline_bytes=300, evidence=Evidence.COMPILED)
    lack = "there is no evaluation task, so accuracy is unknown"
    gate = GateVerdict(verdict="inconclusive", reasons=(f"max_drop: {lack}",))
    slow = built(gate=gate, speedup=gain(0.64, 0.6, 0.68, "measured"), drop=None, size=size)
    expected = (
        "baseline", "inconclusive",
        ("INT8 is slower than FP16 on NVIDIA L4 (0.64× as fast, 0.60 to 0.68, measured): ship "
        "FP16. There is no evaluation task, so accuracy is unknown."),
    )  # fmt: skip
    assert decided(slow) == expected
    without = GateVerdict(verdict="inconclusive", reasons=(lack,))  # no gate on the drop either
    assert decided(slow.model_copy(update={"gate": without})) == expected
    perhaps = slow.model_copy(update={"speedup": gain(0.9, 0.7, 1.2)})
    ship, _, sentence = decided(perhaps)
    assert ship == "unknown" and sentence.endswith(
        "Give an evaluation task (--eval) and build again."
    )
    reasons = (f"max_drop: {lack}", "max_latency_ms: 3 to 5 ms")
    other = GateVerdict(verdict="inconclusive", reasons=reasons)
    assert decided(slow.model_copy(update={"gate": other}))[0] == "unknown"


def test_a_low_sqnr_that_no_task_judged_is_a_warning(built: Any) -> None:
    """A text recognizer at 10 dB read half of its lines as before."""
    fidelity = Fidelity(Evidence.SIMULATED, "fp32", 10.3, 0.95, 0.9, 64)
    judged = gates.judge(Limits(), fidelity=fidelity)
    gate = GateVerdict(verdict=judged.verdict, reasons=judged.reasons)
    ship, word, sentence = decided(built(gate=gate, speedup=gain(1.8, 1.35, 2.39), drop=None))
    assert (ship, word) == ("unknown", "inconclusive")
    assert "accuracy is unknown. INT8 is 1.80×" in sentence and "besides" not in sentence
    assert (
        "Do not ship it before a task has judged it: fidelity to fp32 is 10.3 dB (SQNR): the error "
        "is 31% of the outputs" in sentence
    )
    assert sentence.endswith("Give an evaluation task (--eval) and build again.")


DEAD = Fidelity(
    Evidence.SIMULATED, "fp32", 44.7, 0.999, 9.0, 64,
    outputs=(OutputFidelity("pred", "channels 0 to 3", 45.0, 1.0),
             OutputFidelity("pred", "channels 4 to 83", 2.4, 0.6)),
)  # fmt: skip


def test_a_model_with_a_dead_head_is_not_shipped_although_its_task_passes(built: Any) -> None:
    """The task scores the boxes."""
    drop = gain(0.001, -0.002, 0.004, "simulated")
    seen = Difference(drop.value, Interval(-0.002, 0.004), drop.evidence)
    judged = gates.judge(Limits(max_drop=0.01), drop=seen, fidelity=DEAD)
    gate = GateVerdict(verdict=judged.verdict, reasons=judged.reasons)
    dead = built(gate=gate, speedup=gain(1.8, 1.35, 2.39), drop=drop,
                 fidelity=DEAD)  # fmt: skip
    ship, word, sentence = decided(dead)
    assert (ship, word) == ("unknown", "inconclusive")
    assert "output 'pred', channels 4 to 83 has an SQNR of 2.4 dB" in sentence
    assert "ship it" not in sentence
    slower = dead.model_copy(update={"speedup": gain(0.8, 0.7, 0.9)})
    assert decided(slower)[0] == "baseline"


def test_the_sentence_has_the_worst_sqnr(built: Any) -> None:
    one = built(drop=None, fidelity=DEAD)
    assert worth.accuracy(one) == (
        "SQNR 2.4 dB to FP32 at output 'pred', channels 4 to 83 (simulated)"
    )


def test_probably_faster_is_to_be_measured(built: Any) -> None:
    ship, word, sentence = decided(built(speedup=gain(1.2, 0.9, 1.6)))
    assert (ship, word) == ("unknown", "inconclusive")
    assert (
        sentence.startswith("No gain is shown for INT8") and ": before you ship it, run" in sentence
    )


@pytest.mark.parametrize(
    ("reasons", "ship", "told"),
    [
        (("max_drop: 3 points breaks the limit of 1",), "baseline", "Ship FP16."),
        (
            ("max_latency_ms: 5 ms breaks the limit of 3 ms",),
            "none",
            "latency 5 ms breaks the limit",
        ),
        (
            ("max_latency_ms: 5 ms is predicted", "max_drop: 3 points breaks the limit of 1"),
            "baseline",
            "NVIDIA L4: drop of top1 3 points breaks",
        ),
        ((), "none", "a gate fails"),
    ],
)
def test_a_broken_limit(built: Any, reasons: tuple[str, ...], ship: str, told: str) -> None:
    result = built(gate=GateVerdict(verdict="fail", reasons=reasons))
    found, word, sentence = decided(result)
    assert (found, word) == (ship, "fail") and told in sentence
    assert sentence.startswith("Do not ship INT8 on NVIDIA L4: ")


def test_an_undecided_gate(built: Any) -> None:
    undecided = GateVerdict(verdict="inconclusive", reasons=("max_drop: too few samples",))
    ship, word, sentence = decided(built(gate=undecided))
    assert (ship, word) == ("unknown", "inconclusive")
    assert sentence == (
        "Not decided for INT8 on NVIDIA L4: drop of top1: too few samples. No gain is shown for "
        "INT8 on NVIDIA L4: 1.73× as fast as FP16 (interval unknown, predicted)."
    )
    for reason, order in (
        ("max_drop: 0.00 points; about 381 samples in all would decide it", "Evaluate it on more"),
        ("max_latency_ms: 5 ms is predicted, not measured", "Run `optkit finish artifacts/digits"),
    ):
        gate = GateVerdict(verdict="inconclusive", reasons=(reason,))
        assert f". {order}" in decided(built(gate=gate, speedup=gain(2, 1.5, 2.5)))[2]


def test_the_evidence_is_that_of_the_figure_which_decides(built: Any) -> None:
    fast = gain(1.8, 1.35, 2.39)
    for reason, known in (
        ("max_drop: 20 points breaks the limit of 1 points", "simulated"),
        ("max_latency_ms: 5 ms breaks the limit of 3 ms", "predicted"),
        ("max_bytes: 9 bytes breaks the limit of 3 bytes", "compiled"),
        ("max_memory_bytes: 9 bytes breaks the limit of 3 bytes", "measured"),
    ):
        gate = GateVerdict(verdict="fail", reasons=(reason,))
        advice = recommendation_rules.of_result(built(gate=gate, speedup=fast))
        assert advice is not None and advice.evidence == (Evidence(known),)
    advice = recommendation_rules.of_result(built(speedup=fast))
    assert advice is not None and advice.evidence == (Evidence.PREDICTED, Evidence.SIMULATED)


def test_a_broken_limit_of_time_says_whether_the_baseline_is_a_way_out(built: Any) -> None:
    gate = GateVerdict(verdict="fail", reasons=("max_latency_ms: 5 ms breaks the limit of 3 ms",))
    fast, slow = (built(gate=gate, speedup=one) for one in (gain(2, 1.5, 3), gain(0.5, 0.4, 0.6)))
    assert view.headline(fast).title == "Ship neither"
    assert view.headline(slow).title == "Do not ship INT8"
    assert (
        "FP16 takes 0.019 ms at batch 8 (0.019 to 0.08 ms, predicted) and breaks the limit too: "
        in (decided(fast)[2])
    )
    assert ": ship FP16 if it keeps the limits, or take a faster device" in decided(slow)[2]


def test_random_parameters_tell_nothing_of_the_trained_model(built: Any) -> None:
    ship, word, sentence = decided(built(untrained="all parameters are random"))
    assert (ship, word) == ("unknown", "inconclusive")
    assert sentence.startswith("Not decided for INT8 on NVIDIA L4: all parameters are random. Give")
    head = view.headline(built(untrained="all parameters are random"))
    assert head.conditions == ("the gate says nothing about a trained model",)


def test_no_latency_yet(built: Any) -> None:
    ship, word, sentence = decided(built(latency=None, speedup=None))
    assert (ship, word) == ("unknown", "pending")
    assert sentence.startswith("Not decided for INT8 on NVIDIA L4: its speed is not known, drop")
    assert "Before you ship it, run `optkit finish " in sentence


def test_suspect_calibration_data_goes_before_speed(built: Any) -> None:
    doubt = DataFinding(
        "range", None, "values are 255 times those of evaluation", 255.0, None, "divide by 255"
    )
    check = CalibrationCheck(verdict="suspect", samples=8, compared=True, findings=(doubt,))
    ship, word, sentence = decided(built(speedup=gain(1.8, 1.5, 2.0), calibration=check))
    assert (ship, word) == ("unknown", "inconclusive")
    assert sentence == (
        "Not decided for INT8 on NVIDIA L4: values are 255 times those of evaluation. Divide by "
        "255, and build again."
    )
    gate = GateVerdict(verdict="fail", reasons=("max_drop: 90 points breaks the limit of 1",))
    broken = built(gate=gate, calibration=check)
    assert view.headline(broken).title == "Do not ship INT8"
    assert decided(broken) == (
        "baseline", "fail",
        ("Do not ship INT8 on NVIDIA L4: drop of top1 90 points breaks the limit of 1. Likely "
        "cause: values are 255 times those of evaluation. Divide by 255, and build again. FP16, "
        "which does not use the calibration data, has top1 0.982 (simulated) on the evaluation "
        "data: if that is its usual score, ship FP16 until then. Other data do not make it "
        "faster, and no gain is shown for INT8 on NVIDIA L4: 1.73× as fast as FP16 (interval "
        "unknown, predicted)."),
    )  # fmt: skip
    assert view.headline(broken).conditions == ("the calibration data is suspect",)


def test_suspect_calibration_data_does_not_hide_a_low_sqnr(built: Any) -> None:
    """PP-OCR's detection at 12.9 dB: with better data it may be as far off."""
    doubt = DataFinding(
        "training statistics",
        None,
        "values are 1/5 as spread as in training",
        1.0,
        None,
        "prepare samples as the model was trained",
    )
    check = CalibrationCheck(verdict="suspect", samples=16, compared=False, findings=(doubt,))
    warning = (
        " Do not ship it before a task has judged it: fidelity to fp32 is 12.9 dB (SQNR): the "
        "error is 23% of the outputs"
    )

    def sentence(sqnr: float, **changes: object) -> str:
        judged = gates.judge(Limits(), fidelity=Fidelity(Evidence.SIMULATED, "fp32", sqnr, 1, 1, 9))
        gate = GateVerdict(verdict=judged.verdict, reasons=judged.reasons)
        return decided(built(gate=gate, calibration=check, drop=None, **changes))[2]

    suspect = "values are 1/5 as spread as in training. Prepare samples as the model was trained, "
    assert f"{suspect}and build again.{warning}" in sentence(12.9)
    assert sentence(30.0).endswith(f"{suspect}and build again.")
    assert warning not in sentence(12.9, untrained="all parameters are random")


def test_bad_conditions_stand_in_the_head_and_take_the_green(built: Any) -> None:
    result = built(speedup=gain(1.8, 1.5, 2.0, "measured"))
    latency = replace(result.latency, marks=("others took 80 % of the CPU",))
    marked = result.model_copy(update={"latency": latency})
    head = view.headline(marked)
    ship, _, sentence = decided(marked)
    assert ship == "unknown" and head.word == "inconclusive"
    assert sentence.startswith(
        "Not decided for INT8 on NVIDIA L4: 1.80× as fast as FP16 (measured under bad conditions, "
        "so the interval is not known), drop 0.22 points"
    )
    assert sentence.endswith(
        ": before you ship it, run the same command again while nothing else uses the machine."
    )
    assert head.conditions == ("measured under bad conditions: others took 80 % of the CPU",)


def test_a_baseline_has_nothing_to_gain(built: Any) -> None:
    result = built()
    baseline = result.baseline.model_copy(update={"precision": "int8"})
    ship, _, sentence = decided(result.model_copy(update={"baseline": baseline}))
    assert (
        ship == "likely" and " and is itself the baseline, so no gain is claimed. Run" in sentence
    )
    found = result.model_copy(update={"baseline": baseline})
    known = replace(found.latency, evidence=Evidence.MEASURED)
    ship, _, sentence = decided(found.model_copy(update={"latency": known}))
    assert ship == "candidate" and sentence.endswith(" and is itself the baseline: ship it.")
    alone = result.model_copy(update={"baseline": None, "speedup": None})
    ship, word, sentence = decided(alone)
    assert (ship, word) == ("unknown", "inconclusive")
    assert sentence.startswith("No gain is shown for INT8 on NVIDIA L4: 0.011 ms at batch 8")


def test_a_fleet_names_the_fastest_and_the_cheapest(built: Any) -> None:
    fast = built(speedup=gain(1.8, 1.35, 2.39), target="rtx4090")
    slow = built(speedup=gain(0.9, 0.7, 1.2), target="l4")
    latency = replace(slow.baseline.latency, throughput=1.0)
    base = slow.baseline.model_copy(update={"latency": latency})
    slow = slow.model_copy(update={"baseline": base})
    price = Price(usd_per_hour=1e-9, provider="x", as_of="2026-11-01", source="x", verified=True)
    both = recommended_choice.of_fleet([fast, slow], {"l4": price})
    assert both is not None and both.decision == "likely"
    assert both.sentence.endswith("run `optkit finish` on the device before you ship it.")
    assert both.sentence.startswith("Fastest that passes: INT8 on NVIDIA GeForce RTX 4090, ")
    assert "Cheapest: FP16 on NVIDIA L4, 0.019 ms at batch 8 (0.019 to 0.08 ms, predicted), $" in (
        both.sentence
    )
    alone = recommended_choice.of_fleet([slow], {"l4": price})
    assert alone is not None and alone.sentence.startswith("Fastest and cheapest that passes: FP16")
    failed = built(gate=GateVerdict(verdict="fail", reasons=("max_drop: 3 points",)))
    no_base = failed.model_copy(update={"baseline": None})
    nothing = recommended_choice.of_fleet([no_base], {})
    assert nothing is not None and nothing.decision == "none"
    assert nothing.sentence == "Do not ship any of these builds: each one breaks a limit."


def test_a_fleet_names_what_is_not_decided_and_is_green_for_a_candidate_alone(built: Any) -> None:
    fast = built(speedup=gain(1.8, 1.35, 2.39), target="rtx4090")
    slow, unsure = built(speedup=gain(0.9, 0.8, 0.95)), built(speedup=gain(1.2, 0.9, 1.6))
    waits = "INT8 on NVIDIA L4"
    plain = slow.model_copy(update={"precision": "fp16", "speedup": gain(1, 1, 1)})
    timed = built(speedup=gain(1.8, 1.35, 2.39, "measured"))
    for results, ship, word, text in (
        ([plain], "likely", "likely", "Fastest that passes: FP16 on NVIDIA L4, 0.0"),
        ([plain, slow], "baseline", "inconclusive", ". No quantized build is shown to be better."),
        ([fast, unsure], "likely", "likely", f". Not decided yet: {waits}."),
        ([slow], "baseline", "inconclusive", ". No quantized build is shown to be better."),
        ([timed], "candidate", "pass", "Fastest that passes: INT8 on NVIDIA L4, 0.0"),
        ([unsure], "unknown", "inconclusive", f"own sentence says. Not decided yet: {waits}."),
    ):
        advice = recommended_choice.of_fleet(results, {})
        assert advice is not None and advice.decision == ship and text in advice.sentence
        fleet = fleet_of([one.to_json() for one in results])
        head = fleets.headline(fleet.model_copy(update={"recommendation": advice}))
        assert head.word == word and head.sentence == advice.sentence


def test_a_fleet_of_models_of_several_graphs_names_what_is_worth_shipping(built: Any) -> None:
    """Their latencies are those of the parts, so the builds are not compared."""
    unmeasured = (
        "What is predicted is not measured: run `optkit finish` on the device before you ship it."
    )
    for speedup, ship, text in (
        (gain(1.8, 1.35, 2.39, "measured"), "candidate", "Worth shipping: INT8 on NVIDIA L4."),
        (
            gain(1.8, 1.35, 2.39),
            "likely",
            f"Likely worth shipping: INT8 on NVIDIA L4. {unmeasured}",
        ),
        (gain(0.9, 0.8, 0.95), "baseline", "No quantized build is shown to be better."),
    ):
        part = built(speedup=speedup)
        advice = recommended_choice.of_fleet(
            [joined({"a": part}, model="m", artifact="out/pair")], {}
        )
        assert advice is not None and (advice.decision, advice.sentence) == (ship, text)


def test_parts_are_shipped_together(built: Any) -> None:
    good, open_one = built(speedup=gain(1.8, 1.5, 2.0)), built(speedup=gain(1.2, 0.9, 1.6))
    lost = built(speedup=gain(0.5, 0.4, 0.6))
    gate = GateVerdict(verdict="fail", reasons=("max_drop: 3 points breaks the limit of 1",))
    bad = built(gate=gate)

    def of(*parts: Result) -> tuple[str, str]:
        advice = recommendation_rules.of_parts(dict(zip("ab", parts, strict=True)), "out/pair")
        assert advice is not None
        return advice.decision, advice.sentence

    ship, sentence = of(good, open_one)
    assert ship == "unknown" and " a: Likely, not measured: INT8 is 1.80×" in sentence
    assert "finish out/pair`" in sentence
    assert sentence.startswith("Not decided for INT8: its parts are shipped together. ")
    timed = built(speedup=gain(1.8, 1.5, 2.0, "measured"))
    assert of(good, lost)[0] == "unknown" and of(timed, timed)[0] == "candidate"
    assert of(good, good)[0] == of(good, timed)[0] == "likely"
    ship, sentence = of(good, bad)
    assert ship == "baseline" and sentence.startswith("Do not ship INT8: its parts are shipped")
    whole = joined({"a": lost, "b": lost}, model="m", artifact="out/pair")
    assert view.headline(whole).title == "Ship FP16"


def test_a_search_says_what_to_ship(built: Any) -> None:
    def of(result: Result, reason: str | None, *, kept: bool = True) -> tuple[str, str, str]:
        advice = recommendation_rules.of_search(
            result, quantized=3, layers=5, reason=reason, kept=kept, known=Evidence.PREDICTED
        )
        assert advice is not None
        return advice.decision, view.advised(advice, result).word, advice.sentence

    won, plain = built(speedup=gain(1.8, 1.5, 2.0)), built(precision="fp16")
    ship, word, sentence = of(won, None)
    assert (ship, word) == ("likely", "likely")
    assert sentence.startswith("3 of 5 layers quantized. Likely, not measured: INT8 is 1.80×")
    ship, word, sentence = of(plain, "no candidate is faster")
    assert (ship, word) == ("baseline", "inconclusive")
    assert sentence == (
        "Ship FP16 on NVIDIA L4: no candidate is faster (predicted); FP16 takes 0.011 ms at batch "
        "8 (0.011 to 0.05 ms, predicted)."
    )
    ship, word, sentence = of(won, "no candidate keeps the limits", kept=False)
    assert (ship, word) == ("none", "fail")
    assert sentence.startswith(
        "Do not ship INT8 on NVIDIA L4: no candidate keeps the limits, with "
    )
    gate = GateVerdict(verdict="fail", reasons=("max_drop: 3 points breaks the limit of 1",))
    assert "drop of top1 3 points" in of(built(gate=gate), None, kept=False)[2]


def test_the_cpu_is_the_one_that_measured_and_not_the_one_that_renders(built: Any) -> None:
    there = {"machine": "A CPU that is not here"}
    result = built(target="cpu", speedup=gain(1.8, 1.35, 2.39, "measured"))
    measured = result.model_copy(update={"latency": replace(result.latency, **there)})
    assert "on A CPU that is not here (" in decided(measured)[2]
    fleet = recommended_choice.of_fleet([measured], {})
    assert fleet is not None and "INT8 on A CPU that is not here, " in fleet.sentence
    unknown = {"latency": None, "baseline": None, "speedup": None}
    assert "on the CPU that built it" in decided(result.model_copy(update=unknown))[2]
    named = result.model_copy(update={"target": "l4", "latency": measured.latency})
    assert device_of(named) == "NVIDIA L4"


KNOWN = st.sampled_from(["measured", "predicted"])


@st.composite
def speedups(draw: st.DrawFn) -> Difference:
    low, value, high = sorted(draw(st.tuples(*[st.floats(0.2, 5)] * 3)))
    return gain(value, low, high, draw(KNOWN))


REASONS = st.sampled_from(
    [
        "max_drop: 3.00 points (simulated) breaks the limit of 1.00 points",
        "max_drop: 0.00 points (simulated) may or may not keep the limit of 1.00 points",
        "max_latency_ms: 5 ms (predicted) breaks the limit of 3 ms",
        "max_latency_ms: 5 ms is predicted, not measured; measure on the target",
        "there is no evaluation task, so accuracy is unknown",
    ]
)
GATES = st.builds(
    GateVerdict,
    verdict=st.sampled_from(["pass", "fail", "inconclusive"]),
    reasons=st.lists(REASONS, min_size=1, max_size=3).map(tuple),
)
CLAIM = re.compile(r"gains nothing|is (probably )?(faster|slower)|ship it\.$")


@given(
    speedup=speedups(), gate=GATES | st.just(PASS), marked=st.booleans(), pending=st.booleans(),
    timed=st.booleans(),
)  # fmt: skip
def test_sentence_colour_and_fields_agree_for_every_outcome(
    make: Any, speedup: Difference, gate: GateVerdict, marked: bool, pending: bool, timed: bool
) -> None:
    """Green only after a passing gate and a measured gain; no claim where 1.0 lies in the
    interval."""
    base = read_result(make()["result"])
    assert base.latency is not None and base.baseline is not None
    latency = replace(
        base.latency, evidence=speedup.evidence,
        marks=("others used the CPU",) if marked else (),
    )  # fmt: skip
    engine = EngineFacts(backend="tensorrt", evidence=Evidence.PENDING) if pending else base.engine
    result = base.model_copy(
        update={
            "gate": gate, "recommendation": None, "speedup": speedup if timed else None,
            "latency": latency if timed else None, "engine": engine,
        }
    )  # fmt: skip
    advice, head = recommendation_rules.of_result(result), view.headline(result)
    assert advice is not None and head.sentence == advice.sentence
    low, high = speedup.ci95 or (0, 9)
    if low <= 1 <= high:
        assert not CLAIM.search(advice.sentence)
    if head.word == "pass":
        assert gate.verdict == "pass" and timed and low > 1 and speedup.value >= worth.WORTH
        assert not marked and not pending and speedup.evidence is Evidence.MEASURED
    assert (head.word == "fail") == (gate.verdict == "fail")
    assert (head.word == "fail") == advice.sentence.startswith("Do not ship INT8 on NVIDIA L4: ")
    titles = {"candidate": "Ship INT8", "likely": "Try INT8", "baseline": "Ship FP16",
              "unknown": "Not yet: INT8"}  # fmt: skip
    broken = "Ship neither" if "ship neither" in advice.sentence else "Do not ship INT8"
    assert head.title == (broken if head.word == "fail" else titles[advice.decision])
    assert (advice.decision == "candidate") == (": ship it." in advice.sentence)
    assert (advice.decision == "likely") == advice.sentence.startswith("Likely, not measured: ")
    if advice.decision == "likely":
        assert speedup.evidence is not Evidence.MEASURED and low > 1
    assert "INT8 " in advice.sentence and " on NVIDIA L4" in advice.sentence
    if advice.decision == "baseline":
        assert "ship fp16" in advice.sentence.lower()

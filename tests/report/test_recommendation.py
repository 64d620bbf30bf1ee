"""The sentence that says what to do, for builds of every outcome."""

from __future__ import annotations

from typing import Any

import pytest

from optkit.documents.measured import DifferenceFigures, GateVerdict
from optkit.documents.prices import DatedPrice
from optkit.documents.result import CalibrationCheck, DataFinding, EngineSize, Result
from optkit.evidence import Evidence
from optkit.report import choices, recommendation, view
from tests.report.conftest import read_result

PASS = GateVerdict(verdict="pass", reasons=())


def gain(value: float, low: float, high: float, known: str = "predicted") -> DifferenceFigures:
    return DifferenceFigures(value=value, ci95=(low, high), evidence=Evidence(known))


@pytest.fixture
def built(make: Any) -> Any:
    """A build for an L4 in INT8 that passes, with changes."""

    def change(**changes: object) -> Result:
        base = read_result(make()["result"])
        return base.model_copy(update={"gate": PASS, "recommendation": None, **changes})

    return change


def decided(result: Result) -> tuple[str, str, str]:
    """What is shipped, the colour's word, and the sentence."""
    advice = recommendation.of_result(result)
    assert advice is not None
    return advice.ship, view.headline(result).word, advice.sentence


def test_faster_and_accurate(built: Any) -> None:
    ship, word, sentence = decided(built(speedup=gain(1.8, 1.35, 2.39)))
    assert (ship, word) == ("candidate", "pass")
    assert sentence == (
        "INT8 is 1.80× as fast as FP16 on NVIDIA L4 (1.35 to 2.39, predicted), drop 0.22 points of "
        "top1 (-0.20 to 0.81 points, simulated): ship it."
    )


def test_accurate_and_no_faster(built: Any) -> None:
    size = EngineSize(bytes=300, baseline_bytes=300, evidence=Evidence.COMPILED)
    slow = built(speedup=gain(0.94, 0.71, 1.25), size=size)
    ship, word, sentence = decided(slow)
    assert (ship, word) == ("baseline", "inconclusive")
    assert sentence == (
        "INT8 keeps accuracy and gains nothing on NVIDIA L4 (0.94×, 0.71 to 1.25, predicted): ship "
        "FP16."
    )
    smaller = slow.model_copy(update={"size": size.model_copy(update={"bytes": 150})})
    assert "only if its 50% smaller engine counts" in decided(smaller)[2]


def test_what_surely_gains_nothing_needs_no_accuracy(built: Any) -> None:
    size = EngineSize(bytes=300, baseline_bytes=300, evidence=Evidence.COMPILED)
    gained = "0.64×, 0.60 to 0.68, measured"
    lack = "there is no evaluation task, so accuracy is unknown"
    why = f"max_drop: {lack}"
    gate = GateVerdict(verdict="inconclusive", reasons=(why,))
    slow = built(gate=gate, speedup=gain(0.64, 0.6, 0.68, "measured"), drop=None, size=size)
    assert decided(slow) == (
        "baseline", "inconclusive",
        f"INT8 gains nothing on NVIDIA L4 ({gained}): ship FP16; drop: {lack}.",
    )  # fmt: skip
    without = GateVerdict(verdict="inconclusive", reasons=(lack,))  # no gate on the drop either
    assert decided(slow.model_copy(update={"gate": without})) == (
        "baseline", "inconclusive",
        f"INT8 gains nothing on NVIDIA L4 ({gained}): ship FP16; {lack}.",
    )  # fmt: skip
    perhaps = slow.model_copy(update={"speedup": gain(0.9, 0.7, 1.2)})
    assert decided(perhaps)[0] == "unknown"
    other = GateVerdict(verdict="inconclusive", reasons=(why, "max_latency_ms: 3 to 5 ms"))
    assert decided(slow.model_copy(update={"gate": other}))[0] == "unknown"


def test_probably_faster_is_to_be_measured(built: Any) -> None:
    ship, word, sentence = decided(built(speedup=gain(1.2, 0.9, 1.6)))
    assert (ship, word) == ("unknown", "inconclusive")
    assert "probably faster" in sentence and "measure it there" in sentence


@pytest.mark.parametrize(
    ("reasons", "ship", "told"),
    [
        (("max_drop: 3 points breaks the limit of 1",), "baseline", "Ship FP16."),
        (("max_latency_ms: 5 ms breaks the limit of 3 ms",), "none", "5 ms breaks the limit"),
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
        "Not decided for INT8 on NVIDIA L4: drop: too few samples. It is 1.73× as fast as FP16 "
        "(predicted)."
    )


def test_random_parameters_tell_nothing_of_the_trained_model(built: Any) -> None:
    ship, word, sentence = decided(built(untrained="all parameters are random"))
    assert (ship, word) == ("unknown", "inconclusive")
    assert sentence.startswith("Not decided for INT8 on NVIDIA L4: all parameters are random. Give")


def test_no_latency_yet(built: Any) -> None:
    ship, word, sentence = decided(built(latency=None, speedup=None))
    assert (ship, word) == ("unknown", "pending")
    assert "its speed on NVIDIA L4 is not known" in sentence


def test_suspect_calibration_data_goes_before_speed(built: Any) -> None:
    doubt = DataFinding(kind="range", what="values are 255 times those of evaluation",
                        measured=255.0, hint="divide by 255")  # fmt: skip
    check = CalibrationCheck(verdict="suspect", samples=8, compared=True, findings=(doubt,))
    ship, word, sentence = decided(built(speedup=gain(1.8, 1.5, 2.0), calibration=check))
    assert (ship, word) == ("unknown", "inconclusive")
    assert "255 times" in sentence


def test_bad_conditions_stand_in_the_head_and_take_the_green(built: Any) -> None:
    result = built(speedup=gain(1.8, 1.5, 2.0, "measured"))
    latency = result.latency.model_copy(update={"marks": ("others took 80 % of the CPU",)})
    marked = result.model_copy(update={"latency": latency})
    head = view.headline(marked)
    ship, _, sentence = decided(marked)
    assert ship == "unknown" and head.word == "inconclusive"
    assert "1.50 to 2.00, measured under bad conditions" in sentence
    assert sentence.endswith(": measure again before you ship it.")
    assert head.conditions == ("measured under bad conditions: others took 80 % of the CPU",)


def test_a_baseline_has_nothing_to_gain(built: Any) -> None:
    result = built()
    baseline = result.baseline.model_copy(update={"precision": "int8"})
    ship, _, sentence = decided(result.model_copy(update={"baseline": baseline}))
    assert ship == "candidate" and "at batch" in sentence


def test_a_fleet_names_the_fastest_and_the_cheapest(built: Any) -> None:
    fast = built(speedup=gain(1.8, 1.35, 2.39), target="rtx4090")
    slow = built(speedup=gain(0.9, 0.7, 1.2), target="l4")
    latency = slow.baseline.latency.model_copy(update={"throughput": 1.0})
    base = slow.baseline.model_copy(update={"latency": latency})
    slow = slow.model_copy(update={"baseline": base})
    price = DatedPrice(
        usd_per_hour=1e-9, provider="x", as_of="2026-11-01", source="x", verified=True
    )
    both = choices.of_fleet([fast, slow], {"l4": price})
    assert both is not None and both.ship == "candidate"
    assert both.sentence.startswith("Fastest that passes: INT8 on NVIDIA GeForce RTX 4090, ")
    assert "Cheapest: FP16 on NVIDIA L4, $" in both.sentence
    alone = choices.of_fleet([slow], {"l4": price})
    assert alone is not None and alone.sentence.startswith("Fastest and cheapest that passes: FP16")
    failed = built(gate=GateVerdict(verdict="fail", reasons=("max_drop: 3 points",)))
    no_base = failed.model_copy(update={"baseline": None})
    assert choices.of_fleet([no_base], {}) is None


def test_parts_are_shipped_together(built: Any) -> None:
    good, bad = built(speedup=gain(1.8, 1.5, 2.0)), built(speedup=gain(1.2, 0.9, 1.6))
    both = recommendation.of_parts({"encoder": good, "decoder": bad})
    assert both is not None and both.ship == "unknown"
    assert (
        both.sentence.startswith("encoder: INT8 is 1.80×")
        and "decoder: INT8 is prob" in both.sentence
    )


def test_the_cpu_is_the_one_that_measured_and_not_the_one_that_renders(built: Any) -> None:
    there = {"machine": "A CPU that is not here"}
    result = built(target="cpu", speedup=gain(1.8, 1.35, 2.39, "measured"))
    measured = result.model_copy(update={"latency": result.latency.model_copy(update=there)})
    assert "on A CPU that is not here (" in decided(measured)[2]
    fleet = choices.of_fleet([measured], {})
    assert fleet is not None and "INT8 on A CPU that is not here, " in fleet.sentence
    unknown = {"latency": None, "baseline": None, "speedup": None}
    assert "on the CPU that built it" in decided(result.model_copy(update=unknown))[2]
    named = result.model_copy(update={"target": "l4", "latency": measured.latency})
    assert recommendation.device_of(named) == "NVIDIA L4"

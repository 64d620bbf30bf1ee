"""What a build says about how much of a graph is quantized."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.craft.benchmarking.gates import NO_TASK
from optkit.facts.assignment import Assignment
from optkit.facts.codec import to_json
from optkit.facts.documents.measured import GateVerdict
from optkit.facts.documents.result import EngineSize, QuantizedProducts, Result
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import GIVEN_GRAPH
from optkit.facts.precisions import PRECISIONS
from optkit.show.report import coverage, recommendation_rules
from optkit.show.report.build_page import to_html
from optkit.show.report.markdown import to_markdown
from optkit.verbs.cli.build import exit_code
from optkit.verbs.cli.summary import remarks
from tests.report.conftest import read, read_result
from tests.report.test_recommendation_rules import PASS, gain

THIN = "fewer than 4 input channels: float is faster"


def of(nodes: dict[str, str], reasons: dict[str, str]) -> QuantizedProducts:
    chosen = {node: PRECISIONS[name] for node, name in nodes.items()}
    return Assignment(chosen, reasons).coverage()


NOTHING = of({"a": "fp16", "b": "fp16", "c": "fp16"}, {"a": "depthwise: x", "b": THIN,
                                                        "c": "depthwise: y"})  # fmt: skip


@pytest.fixture
def result(make: Any) -> Any:
    def change(**changes: object) -> Result:
        base = read_result(make()["result"])
        return base.model_copy(update={"gate": PASS, "recommendation": None, **changes})

    return change


@given(st.dictionaries(st.text("abcdef", min_size=1), st.sampled_from(["fp32", "int8", "int4"])),
       st.lists(st.sampled_from(["", "k: 1", "k: 2", "other", "third: 7"])))  # fmt: skip
def test_every_product_is_counted_once(nodes: dict[str, str], whys: list[str]) -> None:
    floats = [name for name, precision in nodes.items() if precision == "fp32"]
    found = of(nodes, dict(zip(floats, whys, strict=False)))
    assert found.products == len(nodes) == sum(found.by_precision.values())
    assert found.products - found.quantized == len(floats)
    assert len(floats) == sum(row.products for row in found.in_float)
    counts = [row.products for row in found.in_float]
    assert counts == sorted(counts, reverse=True)
    assert {row.node for row in found.in_float} <= set(floats)


def test_reasons_that_differ_in_particulars_are_one_kind() -> None:
    assert coverage.line(NOTHING, "int8") == (
        f"0 of 3 products in INT8; in floats: 2 (depthwise), 1 ({THIN})"
    )
    assert NOTHING.in_float[0].node == "a"
    mixed = of({"a": "int8", "b": "int4", "c": "int4"}, {})
    assert coverage.line(mixed, "int8") == "2 in INT4 and 1 in INT8 of 3 products"
    many = of({str(i): "fp32" for i in range(5)}, {str(i): f"{i}" for i in range(5)})
    assert coverage.reasons(many).endswith(", 2 (2 other reasons)")
    long = of({"a": "fp32"}, {"a": f"its kernel is too large: {'9' * 80} elements"})
    assert coverage.reasons(long) == "in floats: 1 (its kernel is too large)"


def test_nothing_in_int8_is_said_and_is_no_question_of_gain(result: Any) -> None:
    for speedup in (gain(1.0, 0.9, 1.1), gain(1.3, 1.2, 1.4), None):
        one = result(speedup=speedup, quantized=NOTHING)
        advice = recommendation_rules.of_result(one)
        assert advice is not None and advice.ship == "baseline"
        assert advice.sentence == (
            "Nothing is quantized: 0 of 3 products in INT8 on NVIDIA L4; in floats: 2 (depthwise), "
            f"1 ({THIN}). Ship FP16 instead."
        )
        assert [exit_code(one, strict) for strict in (False, True)] == [0, 3]
        assert not any("products" in line or THIN in line for line in remarks(one))  # once
    assert exit_code(result(quantized=of({"a": "int8", "b": "fp16"}, {})), strict=True) == 0


def test_a_graph_without_products_says_so(result: Any) -> None:
    advice = recommendation_rules.of_result(result(quantized=of({}, {})))
    assert advice is not None and "no Conv, ConvTranspose, MatMul or Gemm" in advice.sentence


def test_a_limit_that_floats_break_too_is_not_kept_by_the_baseline(result: Any) -> None:
    broken = GateVerdict(verdict="fail", reasons=("max_latency_ms: 2.1 ms breaks the limit 1",))
    advice = recommendation_rules.of_result(result(quantized=NOTHING, gate=broken))
    assert advice is not None and advice.ship == "none"
    assert advice.sentence.endswith("And latency 2.1 ms breaks the limit 1: do not ship it.")


def test_few_products_explain_a_small_gain(result: Any) -> None:
    some = of({"a": "int8", **dict.fromkeys("bcd", "fp16")}, dict.fromkeys("bcd", THIN))
    for speedup in (gain(1.01, 0.9, 1.1), gain(0.9, 0.8, 0.95), gain(1.8, 1.4, 2.2)):
        advice = recommendation_rules.of_result(result(speedup=speedup, quantized=some))
        assert advice is not None
        assert "Only 1 of 4 products in INT8." in advice.sentence
        assert not advice.conditions
        assert f"in floats: 3 ({THIN})" in remarks(result(quantized=some))
    most = of({"a": "int8", "b": "int8", "c": "fp16"}, {"c": THIN})
    advice = recommendation_rules.of_result(result(speedup=gain(1.8, 1.4, 2.2), quantized=most))
    assert advice is not None and "products" not in advice.sentence


def test_an_artifact_that_is_larger_than_its_baseline_says_so(result: Any) -> None:
    size = EngineSize(bytes=1220, baseline_bytes=1000, evidence=Evidence.COMPILED)
    for speedup in (gain(1.01, 0.9, 1.1), gain(0.9, 0.8, 0.95), gain(1.8, 1.4, 2.2)):
        advice = recommendation_rules.of_result(result(speedup=speedup, size=size))
        assert advice is not None and "The INT8 engine is 22% larger (" in advice.sentence


def test_an_undecided_build_names_its_size_and_few_products_too(result: Any) -> None:
    some = of({"a": "int8", **dict.fromkeys("bcd", "fp16")}, dict.fromkeys("bcd", THIN))
    size = EngineSize(bytes=1220, baseline_bytes=1000, evidence=Evidence.COMPILED)
    unknown = GateVerdict(verdict="inconclusive", reasons=(f"max_drop: {NO_TASK}",))
    advice = recommendation_rules.of_result(result(gate=unknown, size=size, quantized=some))
    assert advice is not None and advice.ship == "unknown"
    assert "Only 1 of 4 products in INT8" in advice.sentence
    assert "22% larger" in advice.sentence


def test_the_pages_have_the_line(make: Any) -> None:
    data = make()
    data["result"]["quantized"] = to_json(NOTHING)
    report = read(data)
    assert "0 of 3 products in INT8; in floats: 2 (depthwise), 1 (" in to_html(report)
    assert "**Quantized:** 0 of 3 products in INT8" in to_markdown(report)


def test_a_given_graph_is_what_is_kept_and_on_a_cpu_the_baseline(make: Any) -> None:
    data = make()["result"]
    data["fidelity"]["reference"] = GIVEN_GRAPH
    slow = gain(0.9, 0.8, 0.95)
    for target, base in (("cpu", GIVEN_GRAPH), ("l4", "FP16")):
        found = read_result(data | {"target": target}).model_copy(
            update={"gate": PASS, "recommendation": None, "speedup": slow}
        )
        advice = recommendation_rules.of_result(found)
        assert advice is not None
        assert f"INT8 is slower than {base} on" in advice.sentence
        assert f"ship {GIVEN_GRAPH}." in advice.sentence
        assert not advice.conditions  # they would speak against a graph that may be shipped

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from optkit.facts import codec, documents
from optkit.facts.documents.result import RESULTS, Results
from optkit.facts.errors import Impossible, UnknownName, WorkerFailed
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Difference, Interval, Latency, Verdict
from optkit.show.report.build_result import (
    BuildRun,
    Findings,
    PrecisionResult,
    failed,
    joined,
    result,
    to_finish,
)
from tests.report.conftest import read_result

NOTHING = {"model": None, "target": None, "precision": None}


def check(name: str, data: Any) -> None:
    json.dumps(data, allow_nan=False)
    Draft202012Validator(documents.schema(name)).validate(data)


def pending_result(**more: Any) -> dict[str, Any]:
    found = result(
        PrecisionResult("int8", "tensorrt"),
        PrecisionResult("fp16", "tensorrt"),
        Findings(**more),
        BuildRun(),
        model="m",
        target="h100",
        artifact="artifacts/m-h100-int8",
        pending=to_finish("artifacts/m-h100-int8", ["tensorrt"]),
    )
    return found.to_json()


@pytest.mark.parametrize(
    "kind", [{}, {"measure": True}, {"flips": 40, "lost": 3}, {"suspect": True}]
)
def test_reports_and_their_results_fit_the_schemas(make: Any, kind: dict[str, Any]) -> None:
    report = make(**kind)
    check("report", report)
    check("result", report["result"])


def test_the_schema_refuses_what_is_absent_or_unknown(make: Any) -> None:
    found = make()["result"]
    validator = Draft202012Validator(documents.schema("result"))
    assert not validator.is_valid({k: v for k, v in found.items() if k != "drop"})
    assert not validator.is_valid({**found, "surprise": 1})
    assert not validator.is_valid({**found, "status": "fine"})


def test_the_keys_are_those_of_the_contract(make: Any) -> None:
    found = make()["result"]
    assert list(found) == [
        "schema", "status", "error", "artifact", "model", "target", "precision", "engine",
        "pending", "latency", "accuracy", "fidelity", "baseline", "references", "speedup", "drop",
        "size", "gate", "recommendation", "calibration", "seconds", "cache_hits", "parts",
    ]  # fmt: skip
    assert {"backend", "evidence", "bytes", "layers", "bytes_moved", "note", "landing"} <= set(
        found["engine"]
    )
    assert found["engine"]["landing"] == {
        "planned": 12, "landed": 12, "by_dtype": {"int8": 12}, "unknown": 0,
    }  # fmt: skip
    assert {"evidence", "p50_ms", "p99_ms", "throughput", "batch", "band"} <= set(found["latency"])
    assert set(found["baseline"]) == {"precision", "engine", "latency", "accuracy"}
    assert set(found["size"]) == {"bytes", "baseline_bytes", "evidence"}
    assert set(found["gate"]) == {"verdict", "reasons"}
    none = failed(UnknownName("x"), **NOTHING).to_json()
    assert [*none] == [key for key in found if key != "recommendation"]


def test_raw_samples_stay_out_of_the_result(make: Any) -> None:
    report = make(measure=True)
    text = json.dumps(report["result"])
    assert "samples_ms" not in text
    assert "per_sample" not in text
    assert len(report["latency_samples"]["engine"]) == report["result"]["latency"]["runs"] == 1200


def test_status_follows_engine_and_gate(make: Any) -> None:
    assert make()["result"]["status"] == "ok"
    assert make(flips=40)["result"]["status"] == "gate_failed"
    found = pending_result()
    assert (found["status"], found["gate"], found["size"]) == ("pending", None, None)
    assert found["engine"]["evidence"] == "pending"
    assert found["engine"]["bytes"] is None
    check("result", found)
    assert pending_result(verdict=Verdict("fail"))["status"] == "gate_failed"


def test_a_failure_is_a_result_of_the_same_shape() -> None:
    lost = WorkerFailed("killed", verdict="oom", log="x" * 9999, where="compile", hint="use less")
    found = failed(lost, model="m", target="l4", precision="int8").to_json()
    check("result", found)
    assert found["status"] == "error"
    assert found["error"] == {
        "code": "worker_failed", "message": "killed", "where": "compile", "hint": "use less",
    }  # fmt: skip
    never = failed(Impossible("no FP8 on SM75"), model="m", target="t4", precision="fp8")
    assert never.status == "impossible"


def test_several_results_come_in_an_envelope(make: Any) -> None:
    results = tuple(map(read_result, (make()["result"], pending_result())))
    both = Results(schema=RESULTS, results=results, fleet="artifacts/digits-vit-fleet")
    check("results", both.to_json())


def test_a_figure_that_is_not_finite_is_never_written() -> None:
    with pytest.raises(ValueError, match="number"):
        pending_result(speedup=Difference(float("nan"), None, Evidence.PREDICTED))


def test_records_come_back_from_their_json() -> None:
    band = Latency(Evidence.PREDICTED, 1.0, 8, 8000.0, band=Interval(1.0, 2.0), samples_ms=(1.0,))
    assert codec.from_json(Latency, json.loads(json.dumps(codec.to_json(band)))) == band


def test_a_model_of_parts_is_as_good_as_its_worst_part(make: Any) -> None:
    good = make()["result"]
    bad = {**good, "status": "gate_failed", "gate": {"verdict": "fail", "reasons": ["drop: 2 %"]}}
    parts = {"encoder": read_result(good), "decoder": read_result(bad)}
    found = joined(parts, model="pair", artifact="artifacts/pair").to_json()
    assert (found["status"], found["gate"]["verdict"]) == ("gate_failed", "fail")
    assert "decoder: drop: 2 %" in found["gate"]["reasons"]
    assert found["size"]["bytes"] == 2 * good["size"]["bytes"]
    assert found["latency"] is None and found["model"] == "pair"
    assert found["parts"] == {"encoder": good, "decoder": bad}
    check("result", found)

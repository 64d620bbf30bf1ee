"""Comparisons: figures against published intervals, graphs against edits that are known."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from onnx import TensorProto, helper, numpy_helper

import optkit
from optkit.craft.benchmarking.intervals import wilson
from optkit.facts import documents
from optkit.facts.documents.diff import Diff, FigureDiff
from optkit.facts.documents.report import Report
from optkit.facts.documents.result import Result
from optkit.facts.errors import InputRefused, UsageError
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Difference, Interval
from optkit.ground.workspace import Workspace
from optkit.satellites.difference import figure_changes, to_text
from optkit.satellites.difference.side import Side
from optkit.show.report.build_result import failed
from optkit.show.report.contract import conform
from tests.report.conftest import build

SCHEMA = documents.schema("diff")


def latency(p50: float, half: float, **more: Any) -> dict[str, Any]:
    return {"p50_ms": p50, "ci95_ms": [p50 - half, p50 + half], "evidence": "measured", "batch": 8,
            "throughput": 8e3 / p50, "marks": [], **more}  # fmt: skip


def accuracy(**more: Any) -> dict[str, Any]:
    return {"metric": "top1", "value": 0.8, "ci95": [0.7, 0.9], "samples": 70, "proportion": True,
            "lower_is_better": False, "evidence": "simulated", **more}  # fmt: skip


def side(**changed: Any) -> Side:
    result = {**failed(UsageError("no"), model="net", target="l4", precision="int8").to_json(),
              "latency": latency(2.0, 0.1), "accuracy": accuracy(), **changed}  # fmt: skip
    return Side(Path("a"), "a report", result=conform(result, Result))


def row(a: Side, b: Side, figure: str) -> FigureDiff:
    return next(one for one in figure_changes.compare(a, b) if one.figure.startswith(figure))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [  # Newcombe 1998 (Statistics in Medicine 17:873-890), table II, method 10
        ((48, 80), (56, 70), (0.0524, 0.3339)),
        ((3, 10), (9, 10), (0.1705, 0.8090)),
    ],
)
def test_a_difference_of_proportions_has_newcombe_s_interval(
    a: tuple[int, int], b: tuple[int, int], expected: tuple[float, float]
) -> None:
    def scored(right: int, n: int) -> Side:
        return side(accuracy=accuracy(value=right / n, ci95=list(wilson(right, n))))

    found = row(scored(*a), scored(*b), "top1")
    assert found.change is not None
    assert found.change.interval == pytest.approx(expected, abs=1e-4)
    assert found.seen == ("higher" if expected[0] > 0 else "none")


def timed(p50: float, half: float, **more: Any) -> Side:
    return side(latency=latency(p50, half, **more))


def measured_on(cpu: str, p50: float, host: str = "here") -> Side:
    report = copy.deepcopy(build())
    report["latencies"]["engine"] = [latency(p50, 0.1)]
    report["provenance"]["machine"] = {"name": "cpu", "cpu": cpu, "host": host}
    return replace(timed(p50, 0.1), report=conform(report, Report))


@pytest.mark.parametrize(
    ("a", "b", "seen", "note"),
    [
        (timed(2.0, 0.1), timed(1.0, 0.1), "lower", None),
        (timed(2.0, 0.1), timed(2.05, 0.1), "none", None),
        (timed(2.0, 0.1), timed(3.0, 0.1, marks=["busy"]), "unknown", "bad conditions"),
        (timed(2.0, 0.1), timed(3.0, 0.1, evidence="predicted"), "unknown", "beside predicted"),
        (measured_on("EPYC", 2.0), measured_on("Xeon", 3.0), "unknown", "on another machine"),
        (measured_on("EPYC", 2.0), measured_on("EPYC", 3.0, host="other"), "higher", None),
    ],
)
def test_a_latency_differs_where_its_interval_says_so(
    a: Side, b: Side, seen: str, note: str | None
) -> None:
    found = row(a, b, "latency")
    assert found.seen == seen
    assert (note or "") in (found.note or "")


def noise(sqnr_db: float | None, samples: int = 16) -> dict[str, Any]:
    return {"sqnr_db": sqnr_db, "ci95": [30.0, 40.0], "evidence": "simulated", "reference": "fp32",
            "samples": samples, "cosine": 1.0, "max_abs_error": 0.1}  # fmt: skip


def test_a_difference_beyond_the_largest_number_is_not_claimed() -> None:
    """A manifest may hold any finite number."""
    a, b = (
        side(accuracy=accuracy(value=value, ci95=[-1.5e308, 1.5e308])) for value in (-1e308, 1e308)
    )
    found = row(a, b, "top1")
    assert (found.seen, found.change, found.note) == (
        "unknown",
        None,
        "no difference of such values",
    )


@pytest.mark.parametrize(
    ("figure", "a", "b", "note"),
    [
        ("top1", side(), side(accuracy=accuracy(evidence="measured")),
         "simulated beside measured"),
        ("top1", side(), side(accuracy=accuracy(samples=80)),
         "70 samples beside 80 samples"),
        ("speedup", timed(2.0, 0.1, batch=1), timed(3.0, 0.1), "batch 1 beside batch 8"),
        ("SQNR", side(fidelity=noise(35.0)), side(fidelity=noise(31.0, 900)),
         "16 samples beside 900 samples"),
        ("SQNR", side(fidelity=noise(35.0)), side(fidelity=noise(None)), "bit-equal"),
    ],
)  # fmt: skip
def test_nothing_is_claimed_of_what_was_found_otherwise(
    figure: str, a: Side, b: Side, note: str
) -> None:
    speedup = Difference(value=2.0, ci95=Interval(1.9, 2.1), evidence=Evidence.MEASURED)
    both = [replace(one, result=one.result.model_copy(update={"speedup": speedup}))
            for one in (a, b) if one.result is not None]  # fmt: skip
    found = row(*both, figure)
    assert found.seen == "unknown" and note in (found.note or "")


def test_the_worst_outputs_are_compared() -> None:
    def heads(scores: float) -> dict[str, Any]:
        rows = [{"output": "y", "part": part, "sqnr_db": db, "ci95": [db - 1, db + 1],
                 "max_abs_error": 0.1}
                for part, db in (("channels 0 to 3", 45.0), ("channel 4", scores))]  # fmt: skip
        return {**noise(44.0), "outputs": rows}

    found = row(side(fidelity=heads(30.0)), side(fidelity=heads(2.0)),
                "SQNR of output 'y', channel 4")  # fmt: skip
    assert (found.a.value, found.b.value, found.seen) == (30.0, 2.0, "lower")
    other = row(side(fidelity=heads(30.0)), side(fidelity=heads(60.0)),
                "SQNR of the worst output")  # fmt: skip
    assert (other.b.value, other.seen) == (45.0, "higher")


positive = st.floats(0.1, 10)


@given(positive, positive, st.floats(0.01, 0.5), st.floats(0.01, 0.5))
def test_a_ratio_turned_round_is_its_inverse(a: float, b: float, x: float, y: float) -> None:
    there = row(timed(a, a * x), timed(b, b * y), "latency").change
    back = row(timed(b, b * y), timed(a, a * x), "latency").change
    assert there is not None and back is not None
    assert there.value == pytest.approx(1 / back.value)
    assert there.interval == pytest.approx(tuple(1 / end for end in reversed(back.interval)))
    assert there.interval[0] <= there.value <= there.interval[1]


def network(**changed: Any) -> onnx.ModelProto:
    """x → Q/DQ → MatMul (weight Q/DQ) → Relu → y, with some of it otherwise."""
    said = {"scale": 0.1, "weight": 1, "name": "second", "op": "Relu", "extra": False, **changed}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"], "q"),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"], "dq"),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["wd"], "dqw", axis=1),
        helper.make_node("MatMul", ["xd", "wd"], ["h"], "first"),
        helper.make_node(said["op"], ["h"], ["y" if not said["extra"] else "z"], said["name"]),
    ]
    if said["extra"]:
        nodes.append(helper.make_node("Neg", ["z"], ["y"], "extra"))
    arrays = {
        "xs": np.float32(said["scale"]), "xz": np.uint8(3),
        "w": np.full((4, 3), said["weight"], np.int8),
        "ws": np.asarray([0.1, 0.2, 0.3], np.float32) * said["scale"],
    }  # fmt: skip
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("diff")

    def compare(**changed: Any) -> Diff:
        for name, model in (("a", network()), ("b", network(**changed))):
            onnx.save(model, folder / f"{name}.onnx")
        found = optkit.diff(
            folder / "a.onnx", folder / "b.onnx", workspace=Workspace(folder / "cache")
        )
        Draft202012Validator(SCHEMA).validate(found.to_json())
        assert all(len(line) <= 80 for line in to_text(found).splitlines())
        return found

    return compare


def test_equal_graphs_have_no_difference(compared: Any) -> None:
    found = compared()
    assert found["same"]
    assert "no difference" in to_text(found)


def test_every_kind_of_change_in_a_graph_is_reported(compared: Any) -> None:
    found = compared(scale=0.2, weight=2, op="Sigmoid", extra=True)["graph"]
    assert found["nodes"]["added"] == [{"name": "extra", "op": "Neg"}]
    assert found["nodes"]["changed"] == [
        {"name": "second", "op": ["Relu", "Sigmoid"], "attributes": []}
    ]
    assert [one["name"] for one in found["weights"]["changed"]] == ["w"]
    moved = {one["tensor"]: one["factor"] for one in found["scales"]["moved"]}
    assert moved.keys() == {"x", "w"}
    assert moved["x"] == pytest.approx([2, 2])
    assert {one["op"] for one in found["operators"]} == {"Relu", "Sigmoid", "Neg"}
    renamed = compared(name="other")["graph"]["nodes"]
    assert [one["name"] for one in renamed["removed"] + renamed["added"]] == ["second", "other"]


def test_what_products_multiply_is_compared(compared: Any, tmp_path: Path) -> None:
    plain = network()
    del plain.graph.node[:3]
    plain.graph.node[0].input[:] = ["x", "w"]
    weight = next(one for one in plain.graph.initializer if one.name == "w")
    weight.CopyFrom(numpy_helper.from_array(np.ones((4, 3), np.float32), "w"))
    onnx.save(plain, tmp_path / "plain.onnx")
    onnx.save(network(), tmp_path / "quantized.onnx")
    found = optkit.diff(
        tmp_path / "plain.onnx", tmp_path / "quantized.onnx", workspace=Workspace(tmp_path / "c")
    )
    assert found["graph"]["precision"] == [
        {"node": "first", "a": "float × float", "b": "uint8 × int8"}
    ]
    assert not found["same"]


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "a.onnx")
    whole = failed(UsageError("no"), model="net", target="l4", precision="int8").to_json()
    (tmp_path / "b.json").write_text(json.dumps(whole))
    (tmp_path / "c.json").write_text('{"schema": "optkit.fleet/v1"}')
    (tmp_path / "d.json").write_text("[1")
    (tmp_path / "e.json").write_text('{"schema": "optkit.report/v1"}')
    (tmp_path / "f.json").write_text('{"schema": "optkit.result/v1", "parts": null}')
    parts = {"encoder": whole, "decoder": whole}
    (tmp_path / "g.json").write_text(json.dumps({**whole, "parts": parts}))
    with pytest.raises(UsageError, match="it consists of encoder and decoder"):
        optkit.diff(
            tmp_path / "g.json", tmp_path / "g.json", workspace=Workspace(tmp_path / "cache")
        )
    for other, error in (("b", UsageError), *((name, InputRefused) for name in "cdef")):
        with pytest.raises(error):
            optkit.diff(
                tmp_path / "a.onnx",
                tmp_path / f"{other}.json",
                workspace=Workspace(tmp_path / "cache"),
            )

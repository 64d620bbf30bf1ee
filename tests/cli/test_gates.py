"""Gates on slices, per target and on memory; what CI systems read of them; an evaluation that stops
early; two artifacts compared. Over the small project, whose steps are in the shared store."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.dom import minidom

import pytest
from jsonschema import Draft202012Validator

from optkit.facts import documents

DIFF = documents.schema("diff")
NAMED = """
_plain = samples

def samples(seed=2):
    for feed, labels in _plain(seed):
        yield feed, labels, ["even" if label % 2 == 0 else "odd" for label in labels]
"""


@pytest.fixture
def project(small: Path, tmp_path: Path) -> Path:
    """A copy to work in, with its artifact."""
    return shutil.copytree(small, tmp_path / "project")


@pytest.mark.slow
def test_gates_on_slices_and_for_a_target_are_judged_and_told_to_ci(
    project: Path, store: Path, optkit_here: Callable[..., Any]
) -> None:
    with (project / "task.py").open("a") as file:
        file.write(NAMED)
    done = optkit_here(
        "build", "--target", "cpu", "--json", "--junit", "gates.xml",
        "--set", "gates.max_slice_drop=20%", "--set", "gates.min_slice_value=99.9%",
        "--set", "gates.min_value=99.9%", "--set", "gates.targets.cpu={min_value: 50%}",
        "--set", "gates.max_memory_bytes=2000000000",
        cwd=project, cache=store,
    )  # fmt: skip
    rows = {
        row["gate"]: row
        for row in json.loads((project / "artifacts/small-cpu-int8/report.json").read_text())[
            "gates"
        ]
    }
    assert {name: row["limit"] for name, row in rows.items()} == {
        "max_drop": 0.05, "min_value": 0.5, "max_slice_drop": 0.2, "min_slice_value": 0.999,
        "max_memory_bytes": 2e9,
    }  # fmt: skip
    assert "worst of 2 slices: " in rows["max_slice_drop"]["reason"]
    assert rows["max_slice_drop"]["reason"].split("'")[1] in ("even", "odd")
    assert rows["min_value"]["outcome"] == rows["max_memory_bytes"]["outcome"] == "pass"
    assert 0 < rows["max_memory_bytes"]["value"] < 2e9
    assert done.code == (3 if "fail" in {row["outcome"] for row in rows.values()} else 0)
    document = minidom.parse(str(project / "gates.xml"))
    cases = document.getElementsByTagName("testcase")
    assert [case.getAttribute("name") for case in cases] == list(rows)
    failed = {case.getAttribute("name") for case in cases if case.getElementsByTagName("failure")}
    assert failed == {name for name, row in rows.items() if row["outcome"] == "fail"}


@pytest.mark.slow
def test_an_evaluation_may_stop_where_its_verdict_is_certain(
    project: Path, store: Path, optkit_here: Callable[..., Any]
) -> None:
    asked = ("eval", "--target", "cpu", "--json", "--set", "gates.max_drop=30%")
    whole = optkit_here(*asked, cwd=project, cache=store)
    early = optkit_here(
        *asked, "--set", "eval.stop_early=true", "--junit", "e.xml", cwd=project, cache=store
    )
    assert whole.code == early.code == 0
    assert whole.json["accuracy"]["samples"] == 1024
    assert early.json["accuracy"]["samples"] == early.json["baseline_accuracy"]["samples"] == 256
    assert [one.json["gate"]["verdict"] for one in (whole, early)] == ["pass", "pass"]
    (row,) = early.json["gate"]["rows"]
    assert "stopped after 256 of 1,024 samples, certain at 99.9%" in row["reason"]
    assert 'name="max_drop"' in (project / "e.xml").read_text()
    strict = ("--set", "gates.max_drop=0.1%", "--set", "eval.stop_early=true", "--strict")
    undecided = optkit_here(*asked[:-2], *strict, cwd=project, cache=store)
    assert undecided.json["accuracy"]["samples"] == 1024
    assert undecided.json["accuracy"]["value"] == whole.json["accuracy"]["value"]
    assert undecided.code == 3


def test_artifacts_are_compared(
    project: Path, store: Path, optkit_here: Callable[..., Any]
) -> None:
    artifact = project / "artifacts/small-cpu-int8"

    def diff(*argv: object) -> Any:
        return optkit_here("diff", *argv, cwd=project, cache=store)

    same = diff(artifact, artifact, "--exit-code")
    assert same.code == 0
    assert "no difference seen" in same.out
    found = diff(artifact / "baseline/model.onnx", artifact, "--json", "--exit-code")
    assert found.code == 1
    Draft202012Validator(DIFF).validate(found.json)
    assert {row["node"] for row in found.json["graph"]["precision"]} == {"first", "second"}
    reports = diff(artifact / "report.json", artifact)
    assert reports.code == 0
    assert "latency, batch 8" in reports.out
    assert all(len(line) <= 80 for line in reports.out.splitlines())
    assert diff(artifact, project / "task.py").code == 5
    assert diff(artifact, project / "gone").code == 2

"""A typed step: the content of its key, the input of its worker, and the facts of its result."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from optkit.facts.codec import from_json, to_json
from optkit.facts.tensors import AxisRange
from optkit.ground.execute.step import (
    Foreign,
    PlannedResult,
    Shards,
    Step,
    StepInput,
    StepResult,
    always,
    beside_the_key,
    named,
    spread,
)
from optkit.road.steps.export import Export, HuggingFaceModel, OnnxModel, PythonModel, TorchArchive


@dataclass(frozen=True)
class Sizes:
    axes: dict[str, AxisRange]
    carrier: str | None = None


@dataclass(frozen=True, kw_only=True)
class Doubled(StepResult):
    factor: float
    marks: tuple[str, ...] = ()
    samples: int | None = always(None)


@dataclass(frozen=True, kw_only=True)
class Double(Shards, Step[Doubled]):
    name = "double"
    version = 2
    tools = ("numpy",)

    graph: StepInput
    carrier: StepInput | None = None
    sizes: Sizes = spread()
    count: int = named("n")
    compare: bool = True
    where: Path | None = beside_the_key(None)


STEP = Double(graph=Foreign(Path("g"), "1"), sizes=Sizes({"b": AxisRange(1, 2, 3)}), count=4,
              where=Path("/here"))  # fmt: skip


def test_the_key_holds_parameters_and_inputs_and_not_what_is_only_here() -> None:
    assert STEP.inputs == {"graph": STEP.graph}
    assert STEP.params == {"axes": {"b": {"min": 1, "opt": 2, "max": 3}}, "n": 4}
    assert STEP.beside == {"where": "/here"}


def test_a_new_parameter_with_a_default_leaves_keys_alone() -> None:
    other = Double(graph=STEP.graph, sizes=STEP.sizes, count=4, compare=False)
    assert other.params == {**STEP.params, "compare": False}


def test_the_worker_gets_the_same_step() -> None:
    told = json.loads(json.dumps({**STEP.params, **STEP.beside, "shard": [1, 2]}))
    paths = {"graph": Path("g"), "shard-2": Path("a"), "shard-10": Path("b")}
    found = Double.of(paths, told)
    assert (found.sizes, found.count, found.where) == (STEP.sizes, 4, Path("/here"))
    assert found.shard == (1, 2) and found.carrier is None and found.graph.path == Path("g")
    assert [(role, part.path.name) for role, part in found.parts.items()] == [
        ("shard-2", "a"), ("shard-10", "b"),
    ]  # fmt: skip
    with pytest.raises(TypeError, match="count"):
        Double.of(paths, {"axes": {}})


def test_a_result_has_the_facts_that_the_store_kept() -> None:
    kept = Doubled(factor=2.0, marks=("busy",)).to_json()
    assert kept == {"factor": 2.0, "marks": ["busy"], "samples": None}
    found = STEP.result(Foreign(Path("out"), "7", meta=kept, files={"a": "1"}))
    assert isinstance(found, Doubled) and (found.factor, found.marks) == (2.0, ("busy",))
    assert (found.digest, found.path, found.files) == ("7", Path("out"), {"a": "1"})


def test_of_a_step_that_has_not_run_only_defaults_are_known() -> None:
    found = STEP.result(PlannedResult())
    assert found.planned and found.marks == () and found.samples is None
    with pytest.raises(AttributeError):
        _ = found.factor


@pytest.mark.parametrize(
    "source",
    [PythonModel({}, "model.py:create", {"k": 1}), TorchArchive({"b": AxisRange(1, 1, 1)}),
     HuggingFaceModel({}, None, "encoder", False, {"torch": None}), OnnxModel()],
)  # fmt: skip
def test_a_source_is_reported_by_its_parameters(source: PythonModel | OnnxModel) -> None:
    step = Export(source=source, specs=())
    assert Export.of({}, json.loads(json.dumps(step.params))).source == source
    assert step.runs_code == isinstance(source, PythonModel)


def test_json_that_cannot_be_is_refused() -> None:
    with pytest.raises(TypeError, match="object cannot be written as JSON"):
        to_json(object())
    with pytest.raises(ValueError, match="zip"):
        from_json(tuple[int, int], [1])

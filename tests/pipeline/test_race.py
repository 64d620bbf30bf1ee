from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import TensorInfo
from optkit.ground.execute.step import Foreign
from optkit.ground.recipe import Bench
from optkit.road.pipeline import artifact_race
from optkit.road.pipeline.timing import Race, race
from optkit.road.steps.bench import BenchSide
from optkit.road.steps.sessions import CpuSession


class Steps:
    """Runs nothing: keeps the steps, and tells of these marks in turn. The first `stored` are
    those of runs before this one."""

    objects = Path("store/objects")

    def __init__(self, *marks: list[str], stored: int = 0) -> None:
        self.marks = iter(marks)
        self.stored = stored
        self.asked: list[Any] = []

    def do(self, step: Any, label: str) -> Any:
        self.asked.append(step)
        marks = next(self.marks)
        return SimpleNamespace(
            marks=marks, marked=bool(marks), stored=len(self.asked) <= self.stored
        )

    def recalled(self, made: Any) -> bool:
        return bool(made.stored)


SIDE = BenchSide("graph", "model.onnx", "onnxruntime", CpuSession(None))
SIDES = {"engine": SIDE, "baseline": SIDE}
BOTH = Race("race", Foreign(), {}, SIDES, Bench(), [1], {"name": "cpu"})


@pytest.mark.parametrize(
    ("marks", "strict", "tries"),
    [([["busy"]], False, 1), ([[]], True, 1), ([["busy"], []], True, 2), ([["a"], ["b"]], True, 2)],
)
def test_strict_tries_a_marked_run_once_more(
    marks: list[list[str]], strict: bool, tries: int
) -> None:
    steps = Steps(*marks)
    found = race(BOTH, steps, strict=strict)  # type: ignore[arg-type]
    assert [step.marked for step in steps.asked] == [None, "1"][:tries]
    assert found.marks == marks[-1]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("marks", "stored", "strict"),
    [
        ([["busy"], []], 1, False),  # measured again, and good
        ([["busy"], ["busy"]], 1, False),  # again, once
        ([["busy"], ["busy"], []], 2, False),  # the third try of three commands
        ([["busy"], []], 2, False),  # a good one of before is served
        ([["busy"], ["busy"], ["busy"]], 1, True),  # --strict tries its own once more
    ],
)
def test_a_marked_run_is_never_served_from_the_store(
    marks: list[list[str]], stored: int, strict: bool
) -> None:
    steps = Steps(*marks, stored=stored)
    found = race(BOTH, steps, strict=strict)  # type: ignore[arg-type]
    tries = [step.marked for step in steps.asked]
    assert tries == [None, "1", "2"][: len(marks)]
    assert found.marks == marks[-1]  # type: ignore[attr-defined]


def test_a_race_that_is_to_be_run_anew_is_never_one_of_before() -> None:
    steps = Steps([], [])
    for _ in range(2):
        race(BOTH, steps, strict=False, anew=True)  # type: ignore[arg-type]
    first, second = steps.asked
    assert first.at != second.at
    assert not first.gpu


IDS, MASK = (TensorInfo(name, "int64", ("batch", 8)) for name in ("ids", "mask"))


@pytest.mark.parametrize(
    ("new", "old", "odd"),
    [
        ((IDS,), (IDS, MASK), "old: input 'mask'"),
        ((IDS, MASK), (MASK,), "new: input 'ids'"),
        ((IDS, MASK), (MASK, IDS), None),
    ],
)
def test_two_versions_of_one_model_take_the_same_inputs_in_any_order(
    new: tuple[TensorInfo, ...],
    old: tuple[TensorInfo, ...],
    odd: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Accepted(Exception):
        pass

    def accepted(*args: Any) -> Any:
        raise Accepted

    monkeypatch.setattr(artifact_race, "_restored", lambda artifact, *args: artifact)
    monkeypatch.setattr(artifact_race, "_side", accepted)
    sides: Any = [SimpleNamespace(path=name, inputs=one) for name, one in
                  (("new", new), ("old", old))]  # fmt: skip
    with pytest.raises(InputRefused if odd else Accepted) as refused:
        artifact_race.time_beside(*sides, None, (), None, strict=False)  # type: ignore[arg-type]
    if odd:
        assert refused.value.where.startswith(odd)

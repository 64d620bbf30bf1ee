from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optkit.pipeline.judging import Race, race
from optkit.recipe import Bench


class Steps:
    """Runs nothing: keeps the parameters, and tells of these marks in turn."""

    objects = Path("store/objects")

    def __init__(self, *marks: list[str]) -> None:
        self.marks = iter(marks)
        self.asked: list[dict[str, Any]] = []

    def step(self, kind: Any, label: str, inputs: Any, params: Any, here: Any = None) -> Any:
        self.asked.append(params)
        row = {"engine": {"marks": next(self.marks)}, "baseline": {"marks": []}}
        return SimpleNamespace(meta={"rows": [row]})


SIDE = {"input": "graph", "file": "model.onnx", "backend": "onnxruntime", "session": {}}
BOTH = Race("race", {}, {"engine": SIDE, "baseline": SIDE}, Bench(), [1], {"name": "cpu"})


@pytest.mark.parametrize(
    ("marks", "strict", "tries"),
    [([["busy"]], False, 1), ([[]], True, 1), ([["busy"], []], True, 2), ([["a"], ["b"]], True, 2)],
)
def test_strict_tries_a_marked_run_once_more(
    marks: list[list[str]], strict: bool, tries: int
) -> None:
    steps = Steps(*marks)
    found = race(BOTH, steps, strict=strict)  # type: ignore[arg-type]
    assert [("at" in params) for params in steps.asked] == [False, True][:tries]
    assert found.meta["rows"][0]["engine"]["marks"] == marks[-1]


def test_a_race_that_is_to_be_run_anew_is_never_one_of_before() -> None:
    steps = Steps([], [])
    for _ in range(2):
        race(BOTH, steps, strict=False, anew=True)  # type: ignore[arg-type]
    first, second = steps.asked
    assert first["at"] != second["at"]
    assert not first["gpu"]

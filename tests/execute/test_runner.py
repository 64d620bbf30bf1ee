from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from optkit.ground.execute.runner import Runner, key_of
from optkit.ground.execute.step import Step, StepInput, StepResult, beside_the_key
from optkit.ground.execute.task import Task, TaskLimits
from optkit.ground.store import Store


@dataclass
class Ears:
    notes: list[str] = field(default_factory=list)
    finished: list[tuple[str, bool]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def start(self, step: str, label: str) -> None: ...

    def progress(self, what: str, fraction: float) -> None: ...

    def done(self, step: str, label: str, hit: bool, seconds: float) -> None:
        self.finished.append((step, hit))

    def failed(self, step: str, label: str) -> None:
        self.failures.append(label)

    def note(self, text: str) -> None:
        self.notes.append(text)


def runner(tmp_path: Path, carry: Any) -> Runner:
    return Runner(Store(tmp_path / "store"), TaskLimits(2**30), Ears(), carry)


@dataclass(frozen=True, kw_only=True)
class Double(Step[StepResult]):
    name = "double"
    version = 1
    tools = ("numpy",)

    of: StepInput | None = None
    n: int
    folder: str = beside_the_key("")


class Newer(Double):
    version = 2


class OfOtherTools(Double):
    tools = ("onnx",)


def test_a_step_runs_once_and_where_is_not_what(tmp_path: Path) -> None:
    calls = []

    def carry(task: Task, *args: Any, **kwargs: Any) -> dict[str, Any]:
        calls.append(task)
        (Path(task.out) / "n").write_text(str(task.params["n"] * 2))
        return {"ok": True}

    run = runner(tmp_path, carry)
    first = run.do(Double(n=2, folder="/here"), "double it")
    second = run.do(Double(n=2, folder="/elsewhere"), "double it")
    assert first.folder == second.folder and len(calls) == 1
    assert calls[0].params == {"n": 2, "folder": "/here"}
    assert [record.hit for record in run.records] == [False, True]
    run.do(Double(of=first, n=2), "again")
    assert run.records[2].key != run.records[0].key and len(calls) == 2


def test_a_warning_of_another_thread_that_comes_meanwhile_is_reported_too(tmp_path: Path) -> None:
    def carry(task: Task, *args: Any, **kwargs: Any) -> dict[str, Any]:
        run.store.warnings.append("first")
        return {"warnings": ["own"]}

    class Meanwhile(Ears):
        def note(self, text: str) -> None:
            super().note(text)
            if text == "own":
                run.store.warnings.append("second")

    run, heard = runner(tmp_path, carry), Meanwhile()
    run.listener = heard
    run.do(Double(n=2), "double it")
    run.do(Double(n=2), "double it")
    assert heard.notes == ["first", "own", "second", "own"]


def test_the_version_and_the_tools_are_in_the_key() -> None:
    assert len({key_of(kind(n=1)) for kind in (Double, Newer, OfOtherTools)}) == 3


def test_a_failed_step_is_not_recorded_as_done(tmp_path: Path) -> None:
    def carry(*args: Any, **kwargs: Any) -> dict[str, Any]:
        raise KeyError("boom")

    run = runner(tmp_path, carry)
    with pytest.raises(KeyError):
        run.do(Double(n=2), "double it")
    assert run.records == []
    assert isinstance(run.listener, Ears) and run.listener.failures == ["double it"]

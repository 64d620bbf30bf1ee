"""A task in parts on simulated nodes: which node does which part, and what ends the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optkit.facts.codec import from_json
from optkit.facts.errors import InputRefused
from optkit.ground.execute import local
from optkit.ground.execute import ray as carrying
from optkit.ground.execute.node import NodeAnswer
from optkit.ground.execute.task import Task, TaskLimits

CORES = 3
NODE = {"Alive": True, "NodeID": "a", "Resources": {"CPU": CORES}}
Call = Callable[[Task, threading.Event], dict[str, Any]]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """The tasks that this machine does itself."""
    done: list[Task] = []

    def run(task: Task, *rest: Any, **how: Any) -> dict[str, Any]:
        done.append(task)
        return {"by": "driver"}

    monkeypatch.setattr(local, "run", run)
    return done


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Callable[[Call], carrying.RayCluster]:
    """One whose nodes answer with a function of the task."""

    def make(answer: Call) -> carrying.RayCluster:
        def call(
            self: Any, function: Any, argument: Any, *, heard: Any = None, ended: Any = None
        ) -> dict[str, Any]:
            return answer(from_json(Task, argument.body["task"]), ended)

        monkeypatch.setattr(carrying, "connected", lambda address: SimpleNamespace(
            nodes=lambda: [NODE]))  # fmt: skip
        monkeypatch.setattr(carrying.RayCluster, "call", call)
        return carrying.RayCluster("ray", lambda text: None)

    return make


def task(tmp_path: Path) -> Task:
    (tmp_path / "out").mkdir()
    params = {"checkpoint": str(tmp_path / "kept")}
    return Task("evaluate", {}, params, str(tmp_path / "out"), shards=True)


def test_every_part_and_then_all_of_them_together(
    cluster: Callable[[Call], carrying.RayCluster], here: list[Task], tmp_path: Path
) -> None:
    asked: list[Task] = []
    told: list[tuple[str, float]] = []

    def answer(task: Task, ended: threading.Event) -> dict[str, Any]:
        asked.append(task)
        return {"shard": task.params.get("shard")}

    found = cluster(answer)(
        task(tmp_path), TaskLimits(2**30), lambda what, fraction: told.append((what, fraction))
    )
    *parts, whole = asked
    numbers = [[i, CORES] for i in range(CORES)]
    assert sorted(part.params["shard"] for part in parts) == numbers
    assert len({part.params["checkpoint"] for part in parts}) == CORES
    assert found == {"shard": None} and [*whole.inputs] == ["shard-0", "shard-1", "shard-2"]
    assert whole.inputs["shard-1"] == next(
        part.out for part in parts if part.params["shard"] == [1, CORES]
    )
    assert told[-1][1] == 1.0 and not here  # also parts that said nothing are done
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_nodes_lack_is_done_here_and_whole(
    cluster: Callable[[Call], carrying.RayCluster], here: list[Task], tmp_path: Path
) -> None:
    """Not part by part: here there is nothing to be done at the same time."""

    def answer(task: Task, ended: threading.Event) -> dict[str, Any]:
        raise carrying._Absent("a node has not this file")

    wanted = task(tmp_path)
    assert cluster(answer)(wanted, TaskLimits(2**30)) == {"by": "driver"}
    assert here == [wanted]


def test_what_one_part_raises_ends_the_others(
    cluster: Callable[[Call], carrying.RayCluster], here: list[Task], tmp_path: Path
) -> None:
    def answer(task: Task, ended: threading.Event) -> dict[str, Any]:
        if task.params["shard"][0] == 1:
            raise InputRefused("score() returned NaN")
        assert ended.wait(30)
        raise KeyboardInterrupt

    working = cluster(answer)
    with pytest.raises(InputRefused, match="NaN"):
        working(task(tmp_path), TaskLimits(2**30))
    assert not here and not working._stopped.is_set()  # other work goes on


class Nothing:
    """A transfer of no files, which remembers what was lost."""

    def __init__(self) -> None:
        self.lost: list[str] = []

    def packed(self, argument: Any, attempt: Path) -> Any:
        return argument

    def lose(self, error: Exception) -> None:
        self.lost.append(str(error))

    def check(self) -> None: ...

    def adopt(self, attempt: Path, files: Any, out: Path) -> None: ...

    def remove(self, attempt: Path) -> None: ...


@pytest.mark.parametrize("hiccups", [4, 5])
def test_a_remote_that_fails_nodes_again_and_again_leaves_the_work_to_the_driver(
    hiccups: int, here: list[Task], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers = [NodeAnswer(lost="no answer", node="a")] * hiccups + [NodeAnswer({"by": "a"})]
    nodes = SimpleNamespace(nodes=lambda: [NODE])
    monkeypatch.setattr(carrying, "connected", lambda address: nodes)
    monkeypatch.setattr(carrying.RayCluster, "_ask", lambda *how: answers.pop(0))
    working = carrying.RayCluster("ray", lambda text: None, Nothing())
    found = working(replace(task(tmp_path), shards=False), TaskLimits(2**30))
    assert found == {"by": "a" if hiccups < 5 else "driver"}
    assert len(working.transfer.lost) == len(here) == (hiccups == 5)
    assert working.cores() == CORES  # the node is left out of nothing


def test_each_gives_what_map_gives_and_stops_at_an_error(
    cluster: Callable[[Call], carrying.RayCluster],
) -> None:
    working = cluster(lambda task, ended: {})
    together = threading.Barrier(2, timeout=30)

    def one(number: int) -> int:
        together.wait()
        return -number

    assert working.each(one, [4, 3, 2, 1], parallel=2) == [-4, -3, -2, -1]
    begun: list[int] = []

    def two(number: int) -> int:
        begun.append(number)
        if number == 1:
            return 1 // 0
        assert working._stopped.wait(30)  # as what runs does
        raise KeyboardInterrupt

    with pytest.raises(ZeroDivisionError):
        working.each(two, range(9), parallel=2)
    assert len(begun) <= 3


def test_what_runs_here_ends_with_the_others(
    cluster: Callable[[Call], carrying.RayCluster], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One at a time does, so that others wait: they do not begin."""
    ran: list[threading.Event] = []

    def run(task: Task, *rest: Any, **how: Any) -> dict[str, Any]:
        if not how["unwanted"].is_set():
            ran.append(how["unwanted"])
        assert how["unwanted"].wait(30)
        raise KeyboardInterrupt

    monkeypatch.setattr(local, "run", run)
    working = cluster(lambda task, ended: {})

    def one(number: int) -> dict[str, Any]:
        if number == 3:
            while not ran:
                time.sleep(0.01)
            raise InputRefused("its own")
        return working(Task("s", {}, {}, str(tmp_path), here=True), TaskLimits(2**30))

    with pytest.raises(InputRefused):
        working.each(one, range(4), parallel=4)
    assert len(ran) == 1

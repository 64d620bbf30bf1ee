"""A task in parts, on nodes that are only played: who does what, and what ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optkit.errors import InputRefused
from optkit.execute import local
from optkit.execute import ray as carrying
from optkit.execute.local import Limits

CORES = 3
NODE = {"Alive": True, "NodeID": "a", "Resources": {"CPU": CORES}}
Call = Callable[[dict[str, Any], threading.Event], dict[str, Any]]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The tasks that this machine does itself."""
    done: list[dict[str, Any]] = []

    def run(task: dict[str, Any], *rest: Any, **how: Any) -> dict[str, Any]:
        done.append(task)
        return {"by": "driver"}

    monkeypatch.setattr(local, "run", run)
    return done


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Callable[[Call], carrying.Cluster]:
    """One whose nodes answer with a function of the task."""

    def make(answer: Call) -> carrying.Cluster:
        def call(
            self: Any, function: Any, argument: Any, *, heard: Any = None, ended: Any = None
        ) -> dict[str, Any]:
            return {"meta": answer(argument["task"], ended)}

        monkeypatch.setattr(carrying, "_connected", lambda address: SimpleNamespace(
            nodes=lambda: [NODE]))  # fmt: skip
        monkeypatch.setattr(carrying.Cluster, "call", call)
        return carrying.Cluster("ray", lambda text: None)

    return make


def task(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "out").mkdir()
    return {"step": "evaluate", "inputs": {}, "params": {"checkpoint": str(tmp_path / "kept")},
            "out": str(tmp_path / "out"), "shards": True}  # fmt: skip


def test_every_part_and_then_all_of_them_together(
    cluster: Callable[[Call], carrying.Cluster], here: list[dict[str, Any]], tmp_path: Path
) -> None:
    asked: list[dict[str, Any]] = []
    told: list[tuple[str, float]] = []

    def answer(task: dict[str, Any], ended: threading.Event) -> dict[str, Any]:
        asked.append(task)
        return {"shard": task["params"].get("shard")}

    found = cluster(answer)(
        task(tmp_path), Limits(2**30), lambda what, fraction: told.append((what, fraction))
    )
    *parts, whole = asked
    numbers = [[i, CORES] for i in range(CORES)]
    assert sorted(part["params"]["shard"] for part in parts) == numbers
    assert len({part["params"]["checkpoint"] for part in parts}) == CORES
    assert found == {"shard": None} and [*whole["inputs"]] == ["shard-0", "shard-1", "shard-2"]
    assert whole["inputs"]["shard-1"] == next(
        part["out"] for part in parts if part["params"]["shard"] == [1, CORES]
    )
    assert told[-1][1] == 1.0 and not here  # also parts that said nothing are done
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_nodes_lack_is_done_here_and_whole(
    cluster: Callable[[Call], carrying.Cluster], here: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Not part by part: here there is nothing to be done at the same time."""

    def answer(task: dict[str, Any], ended: threading.Event) -> dict[str, Any]:
        raise carrying._Absent("a node has not this file")

    wanted = task(tmp_path)
    assert cluster(answer)(wanted, Limits(2**30)) == {"by": "driver"}
    assert here == [wanted]


def test_what_one_part_raises_ends_the_others(
    cluster: Callable[[Call], carrying.Cluster], here: list[dict[str, Any]], tmp_path: Path
) -> None:
    def answer(task: dict[str, Any], ended: threading.Event) -> dict[str, Any]:
        if task["params"]["shard"][0] == 1:
            raise InputRefused("score() returned NaN")
        assert ended.wait(30)
        raise KeyboardInterrupt

    working = cluster(answer)
    with pytest.raises(InputRefused, match="NaN"):
        working(task(tmp_path), Limits(2**30))
    assert not here and not working._stopped.is_set()  # other work goes on


def test_each_gives_what_map_gives_and_stops_at_an_error(
    cluster: Callable[[Call], carrying.Cluster],
) -> None:
    working = cluster(lambda task, ended: {})
    together = threading.Barrier(2, timeout=30)

    def one(number: int) -> int:
        together.wait()
        return -number

    assert working.each(one, [4, 3, 2, 1], parallel=2) == [-4, -3, -2, -1]
    with pytest.raises(ZeroDivisionError):
        working.each(lambda number: 1 // number, [1, 0])
    assert working._stopped.is_set()

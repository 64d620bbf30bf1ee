"""A Ray cluster whose nodes are this process: all of optkit's code for a task in parts runs,
without Ray and without workers."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optkit.ground.execute import node
from optkit.ground.execute import ray as carrying
from optkit.ground.execute.task import Task, TaskLimits
from optkit.ground.execute.transfer import RemoteCall
from optkit.road.steps import perform

SHARDS = (1, 2, 3, 4, 8)


class Nodes:
    """`count` nodes of one core. They answer in an order that `seed` shuffles, and the node of one
    part dies twice when its files are written."""

    def __init__(self, count: int, seed: int, patch: pytest.MonkeyPatch) -> None:
        rng = random.Random(seed)
        self.order = rng.sample(range(count), count)
        self.deaths = [rng.randrange(count)] * 2
        self._answered: list[int] = []
        self._turn, self._working = threading.Condition(), threading.Lock()
        alive = {"Alive": True, "NodeID": "a", "Resources": {"CPU": count}}
        ray = SimpleNamespace(nodes=lambda: [alive])
        patch.setattr(carrying, "connected", lambda address: ray)
        patch.setattr(carrying.RayCluster, "_ask", lambda cluster, *how: self._ask(*how))
        patch.setattr(node, "_WORKERS", _work)
        self.notes: list[str] = []
        self._cluster = carrying.RayCluster("ray", self.notes.append)

    def run(
        self, step: str, inputs: Mapping[str, Path], params: dict[str, Any], out: Path
    ) -> Mapping[str, object]:
        out.mkdir()
        paths = {name: str(path) for name, path in inputs.items()}
        return self._cluster(Task(step, paths, params, str(out), shards=True), TaskLimits(2**35))

    def _ask(
        self, function: Any, argument: RemoteCall, attempt: Path, *rest: Any
    ) -> node.NodeAnswer:
        body: Any = argument.body
        with self._working:
            answer = node.answered(function, argument)
        part = body["task"]["params"].get("shard", [0])[0]
        if part in self.deaths:
            self.deaths.remove(part)
            for file in attempt.iterdir():
                file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
            raise carrying._Died("a node died")
        with self._turn:
            if "shard" in body["task"]["params"]:
                assert self._turn.wait_for(lambda: self._next() == part, 60)
                self._answered.append(part)
                self._turn.notify_all()
        return answer

    def _next(self) -> int:
        return self.order[len(self._answered)]


def _work(task: Task, limits: TaskLimits, progress: Any) -> Mapping[str, object]:
    inputs = {name: Path(path) for name, path in task.inputs.items()}
    return perform(task.step, inputs, task.params, Path(task.out), progress)

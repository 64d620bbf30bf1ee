"""Which steps share a worker, and when it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import psutil
import pytest

from optkit.facts.errors import OptkitError
from optkit.ground.execute.task import Task, TaskLimits
from optkit.ground.execute.warm_workers import Workers

ROOMY = TaskLimits(8 * 2**30)
MODEL = '<ir_version: 10, opset_import: ["" : 21]> g (float[N,2] x) => (float[N,2] y) {y = Relu(x)}'


_OTHERS: set[int] = set()  # processes of other tests, whose runners may still be alive


@pytest.fixture(autouse=True)
def _apart() -> None:
    _OTHERS.update(child.pid for child in psutil.Process(os.getpid()).children())


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers()
    yield made
    made.close()
    assert children() == []


@pytest.fixture
def task(tmp_path: Path) -> Task:
    file = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), file)
    return Task("summary", {"model": str(file)}, {"axes": {}}, str(tmp_path), stays=True)


def children() -> list[psutil.Process]:
    found = psutil.Process(os.getpid()).children()
    return [child for child in found if child.pid not in _OTHERS]


def test_the_next_task_runs_where_the_last_one_ended(
    workers: Workers, task: Task, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    first = workers(task, ROOMY, scratch_root=scratch)
    (child,) = children()
    assert workers(task, ROOMY, scratch_root=scratch) == first
    assert [c.pid for c in children()] == [child.pid] and len(list(scratch.iterdir())) == 1
    workers.close()
    assert children() == [] and list(scratch.iterdir()) == []


def test_a_task_that_does_not_stay_is_alone(workers: Workers, task: Task) -> None:
    workers(replace(task, stays=False), ROOMY)
    assert children() == []


def test_it_sleeps_while_another_task_runs_alone(workers: Workers, task: Task) -> None:
    expected = workers(task, ROOMY)
    (child,) = children()
    workers(replace(task, stays=False), ROOMY)
    assert [c.pid for c in children()] == [child.pid]
    assert workers(task, ROOMY) == expected
    assert [c.pid for c in children()] == [child.pid]


def test_a_failure_ends_it(workers: Workers, task: Task) -> None:
    workers(task, ROOMY)
    (child,) = children()
    with pytest.raises(OptkitError, match="no such file"):
        workers(replace(task, inputs={"model": "/no/such/file"}), ROOMY)
    assert children() == []
    workers(task, ROOMY)
    assert children()[0].pid != child.pid


def test_one_that_holds_much_ends(workers: Workers, task: Task) -> None:
    workers(task, ROOMY)
    assert len(children()) == 1
    workers(task, TaskLimits(300 * 2**20))  # its imports alone are more than an eighth of that
    assert children() == []


def test_one_that_died_meanwhile_is_replaced(workers: Workers, task: Task) -> None:
    expected = workers(task, ROOMY)
    (child,) = children()
    child.kill()
    psutil.wait_procs([child], timeout=5)
    assert workers(task, ROOMY) == expected


def test_it_ends_with_its_owner(task: Task) -> None:
    owner = Workers()
    owner(task, ROOMY)
    assert len(children()) == 1
    del owner
    assert children() == []

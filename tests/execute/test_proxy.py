from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper

from optkit.facts.errors import InputRefused, WorkerFailed
from optkit.ground.execute.proxy import Proxy
from optkit.ground.execute.task import TaskLimits

LIMITS = TaskLimits(memory_bytes=2 * 2**30, seconds=60)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weight = numpy_helper.from_array(np.eye(3, dtype=np.float32) * 2, "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")],
        "double",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
        [weight],
    )
    path = tmp_path / "double.onnx"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(made, path)
    return path


Workers = Callable[[], list[psutil.Process]]


@pytest.fixture
def workers() -> Workers:
    """Those of a test; others of this process stay for its next steps."""

    def running() -> list[psutil.Process]:
        children = psutil.Process().children(recursive=True)
        return [child for child in children if "optkit.road.worker" in child.cmdline()]

    before = running()
    return lambda: [child for child in running() if child not in before]


def test_runs_elsewhere_and_leaves_nothing(model: Path, tmp_path: Path, workers: Workers) -> None:
    scratch = tmp_path / "scratch"
    with Proxy(model, {}, LIMITS, scratch) as session:
        assert session.inputs == ("x",) and session.outputs == ("y",)
        for batch in (1, 5):
            x = np.random.default_rng(0).standard_normal((batch, 3), dtype=np.float32)
            np.testing.assert_array_equal(session.run({"x": x})["y"], 2 * x)
        assert len(workers()) == 1
    assert workers() == [] and list(scratch.iterdir()) == []


def test_a_bad_feed_is_reported_and_the_session_lives_on(model: Path, tmp_path: Path) -> None:
    with Proxy(model, {}, LIMITS, tmp_path / "s") as session:
        with pytest.raises(InputRefused, match="x"):
            session.run({"x": np.zeros((1, 4), np.float32)})
        assert session.run({"x": np.ones((1, 3), np.float32)})["y"].sum() == 6


def test_a_bad_model_is_reported_and_leaves_nothing(tmp_path: Path, workers: Workers) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(InputRefused):
        Proxy(path, {}, LIMITS, tmp_path / "s")
    assert workers() == [] and list((tmp_path / "s").iterdir()) == []


def test_a_killed_worker_is_a_verdict(model: Path, tmp_path: Path, workers: Workers) -> None:
    with Proxy(model, {}, LIMITS, tmp_path / "s") as session:
        os.kill(workers()[0].pid, signal.SIGKILL)
        with pytest.raises(WorkerFailed) as caught:
            session.run({"x": np.ones((1, 3), np.float32)})
        assert caught.value.verdict == "crashed"
    assert workers() == []


def test_a_stopped_worker_is_a_timeout(model: Path, tmp_path: Path, workers: Workers) -> None:
    with Proxy(model, {}, TaskLimits(2 * 2**30, seconds=20), tmp_path / "s") as session:
        session._limits = TaskLimits(2 * 2**30, seconds=0.5)
        os.kill(workers()[0].pid, signal.SIGSTOP)
        with pytest.raises(WorkerFailed) as caught:
            session.run({"x": np.ones((1, 3), np.float32)})
        assert caught.value.verdict == "timeout"
    assert workers() == []

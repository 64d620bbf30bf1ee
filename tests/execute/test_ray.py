"""The calls and the messages to a cluster, without a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optkit.facts.errors import StorageError
from optkit.ground.devices import device_names, names
from optkit.ground.execute import node, transfer
from optkit.ground.execute import ray as carrying
from optkit.ground.execute.task import Task, TaskLimits
from optkit.ground.execute.transfer import RemoteCall


def test_accelerators_have_the_names_that_ray_gives_them() -> None:
    pytest.importorskip("ray")
    from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager

    reported = [name for target in names() for name in device_names(target)]
    assert "NVIDIA L4" in reported
    for name in reported:
        expected = NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type(name)
        assert carrying.accelerator(name) == expected
    assert carrying.accelerator("NVIDIA GeForce RTX 4090") == "GeForce-RTX-4090"


def packed(tmp_path: Path, **changes: Any) -> RemoteCall:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "task.py").write_text("one")
    params = {"path": str(tmp_path / "task.py")}
    task = Task("random", {"model": str(tmp_path)}, params, str(tmp_path / "tmp/1"))
    return node.packed(replace(task, **changes), TaskLimits(2**30))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"versions": {"numpy": "0.1"}}, "numpy is"),
        ({"params": {"versions": {"tensorrt-rtx": "0.1"}}}, "tensorrt-rtx is"),
        ({"inputs": {"model": "/no/such"}}, "sees another store"),
        ({"out": "/no/such/tmp/1"}, "store does not exist"),
    ],
)
def test_a_node_says_why_it_does_not_fit(changes: Any, why: str, tmp_path: Path) -> None:
    assert why in str(node.answered(node.perform, packed(tmp_path, **changes)).unfit)


@pytest.mark.parametrize("name", ["task.py", "labels.txt"])
def test_a_project_file_must_be_the_same_on_the_node(name: str, tmp_path: Path) -> None:
    """The task's own, and one that its arguments name."""
    files = {each: tmp_path / each for each in ("task.py", "labels.txt")}
    for file in files.values():
        file.write_text("one")
    params = {"path": str(files["task.py"]), "args": {"deep": [str(files["labels.txt"])]}}
    argument = packed(tmp_path, params=params)
    files[name].write_text("two")
    assert name in str(node.answered(node.perform, argument).absent)


def test_a_folder_that_is_not_shared_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_SEEN_SECONDS", 0.1)
    with pytest.raises(StorageError, match="not visible"):
        transfer.SharedFolder().adopt(tmp_path / "try", {"model.onnx": 5}, tmp_path)

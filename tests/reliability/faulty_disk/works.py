"""What a process does on a disk that fails or loses power: each work changes a store or a folder of
artifacts, and `told` hears what is promised from then on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import optkit
from optkit import Workspace
from optkit.facts import errors
from optkit.ground.artifact import Artifact, write
from optkit.ground.execute.task import Executor, Order, Task
from optkit.ground.intake import stage_onnx
from optkit.ground.store import Meta, Store, digest_file, write_durably
from optkit.road import worker

Told = Callable[[dict[str, Any]], None]

RECIPE = {"name": "net", "axes": {"batch": {"min": 1, "opt": 2, "max": 8}}}
NAME = "net-cpu-int8"


def network(folder: Path) -> None:
    """y = a small perceptron of x, as one file and with external data."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 4, name)
        for name, shape in (("w1", (16, 32)), ("w2", (32, 8)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("MatMul", ["b", "w2"], ["y"], "head"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])
    graph = helper.make_graph(nodes, "net", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, folder / "net.onnx")
    outside = {"save_as_external_data": True, "location": "net.data", "size_threshold": 0}
    onnx.save(model, folder / "large.onnx", **outside)


def in_this_process(task: Task, *limits: Any, **more: Any) -> Meta:
    """An executor: a worker's answer, without the start of a worker."""
    answer = worker._answer(Order(task, Path(task.out) / "no result"))
    if answer.error is not None:
        raise errors.from_json(answer.error)
    assert answer.meta is not None
    return answer.meta


def build(
    root: Path, told: Told, max_drop: float = 0.01, executor: Executor = in_this_process
) -> dict[str, Any]:
    """A whole build of root/net.onnx, with the store in root/cache."""
    rng = np.random.default_rng(1)
    batches = [{"x": rng.standard_normal((8, 16)).astype(np.float32)} for _ in range(2)]
    built = optkit.build(
        str(root / "net.onnx"), target="cpu", precision="int8", out=root / "out", defer=True,
        calibration=batches, recipe={**RECIPE, "gates": {"max_drop": max_drop}},
        workspace=Workspace(root / "cache", executor=executor, listener=None),
    )  # fmt: skip
    told({"artifact": built.digest, "out": "out"})
    return {"digest": built.digest}


def publish(root: Path, told: Told) -> dict[str, Any]:
    """Two entries; the second one has a file of the first one under another name."""
    store = Store(root / "cache")

    def first(folder: Path) -> Meta:
        (folder / "deep").mkdir()
        (folder / "deep" / "weights").write_bytes(b"w" * 10_000)
        (folder / "graph").write_text("graph")
        return {}

    made, _ = store.make("aa", "first", first)

    def second(folder: Path) -> Meta:
        (folder / "weights").hardlink_to(made.file("deep/weights"))
        (folder / "graph").write_text("another graph")
        return {}

    store.make("bb", "second", second)
    return {}


def remember(root: Path, told: Told) -> dict[str, Any]:
    """Records, one of which is replaced."""
    store = Store(root / "cache")
    for key, value in (("aa", 1), ("bb", 2), ("aa", 3)):
        store.remember(key, {"value": value})
    return {}


def state(root: Path, told: Told) -> dict[str, Any]:
    """A file that is replaced."""
    for text in ("one", "two" * 5000):
        write_durably(root / "state", text.encode())
        told({"file": "state", "text": text})
    return {}


def stage(root: Path, told: Told) -> dict[str, Any]:
    """The copy of a model with external data."""
    staged = stage_onnx(root / "large.onnx", Store(root / "cache").objects)
    folder = staged.path.parent.relative_to(root)
    told({"folder": str(folder), "files": {n: sha for n, (sha, _) in staged.files.items()}})
    return {}


def artifact(root: Path, told: Told) -> dict[str, Any]:
    """An artifact that replaces an older one, and one of a new name in a new folder."""
    older = Artifact.load(root / "out" / NAME)
    files = {name: older.path / name for name in older.manifest.files}
    newer = replace(older.manifest, digest="e" * 64)
    for out in (root / "out", root / "new" / "out"):
        write(out, newer, {**files, "more/notes": b"n" * 5000})
        told({"artifact": newer.digest, "out": str(out.relative_to(root))})
    return {}


def export(root: Path, told: Told) -> dict[str, Any]:
    """The files of a stage in a folder of the user."""
    workspace = Workspace(root / "cache", executor=in_this_process, listener=None)
    optkit.export(str(root / "net.onnx"), out=root / "mine" / "exported", workspace=workspace)
    told(whole(root, root / "mine" / "exported"))
    return {}


def package(root: Path, told: Told) -> dict[str, Any]:
    """The layout of another program."""
    optkit.package(root / "out" / NAME, format="ort-package", out=root / "packages")
    (made,) = (root / "packages").glob("net-*")
    told(whole(root, made))
    return {}


def whole(root: Path, folder: Path) -> dict[str, Any]:
    """The promise that a folder has the files of now."""
    files = {
        str(path.relative_to(folder)): digest_file(path)
        for path in folder.rglob("*") if path.is_file()
    }  # fmt: skip
    return {"folder": str(folder.relative_to(root)), "files": files}

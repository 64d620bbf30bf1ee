"""Artifacts of strangers: checked and tried before they run here, their engines not opened."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import optkit
from optkit.facts.errors import IntegrityError, UnsafeFile, WorkerFailed
from optkit.facts.evidence import Evidence
from optkit.facts.tensors import Feed, TensorInfo
from optkit.ground import trust
from optkit.ground.artifact import Artifact, EngineFile, Manifest, reader, write
from optkit.ground.execute.task import TaskLimits
from optkit.ground.runtimes import SessionOptions, backend
from optkit.ground.store import digest_json
from tests.hostile import onnx_files

MANIFEST = Manifest(
    name="net",
    target="l4",
    precision="int8",
    digest="d" * 64,
    recipe={"name": "net", "axes": {"batch": {"min": 1, "opt": 2, "max": 4}}},
    inputs=(TensorInfo("x", "float32", (4,)),),
    outputs=(TensorInfo("y", "float32", (4,)),),
    versions={"onnx": "1.23.2"},
    result={"schema": "optkit.result/v1", "engine": None},
)
FEED = {"x": np.arange(4, dtype=np.float32)}


@pytest.fixture(autouse=True)
def own(cache: Path) -> Path:
    """What is known here, for this test alone."""
    return cache / "known"


def _foreign(
    out: Path, own: Path, model: bytes, engine: dict[str, str] | None = None, **change: Any
) -> Path:
    """An artifact that was written on another machine."""
    files = {"model.onnx": model, "engine.plan": b"engine", "baseline/engine.plan": b"other"}
    manifest = dataclasses.replace(MANIFEST, engine=engine, **change)
    made = write(out, manifest, files)
    shutil.rmtree(own)
    return made.path


def _plain() -> ModelProto:
    model: ModelProto = onnx_files.plain_model()
    model.ir_version = 10
    return model


def _sound() -> bytes:
    return bytes(_plain().SerializeToString())


def _loop_of_a_constant(folder: Path) -> bytes:
    return bytes(onnx_files.SIZES["loop"](folder).read_bytes())


def _growing() -> bytes:
    """12 bytes of shape become 512 GiB when it runs."""
    model = _plain()
    sizes = helper.make_tensor("s", TensorProto.INT64, [1], [1 << 37])
    model.graph.initializer.append(sizes)
    del model.graph.node[:]
    model.graph.node.extend(
        [
            helper.make_node("Shape", ["x"], ["n"]),
            helper.make_node("Add", ["n", "s"], ["many"]),
            helper.make_node("ConstantOfShape", ["many"], ["big"]),
            helper.make_node("ReduceSum", ["big"], ["r"], keepdims=0),
            helper.make_node("Add", ["x", "r"], ["y"]),
        ]
    )
    return bytes(model.SerializeToString())


def _endless() -> bytes:
    """A loop whose condition stays true, without a trip count: no constant tells it."""
    model = _plain()
    values = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("v", TensorProto.FLOAT, [4]),
    ]
    outs = [
        helper.make_tensor_value_info("c2", TensorProto.BOOL, []),
        helper.make_tensor_value_info("v2", TensorProto.FLOAT, [4]),
    ]
    nodes = [helper.make_node("Identity", ["c"], ["c2"]), helper.make_node("Relu", ["v"], ["v2"])]
    body = helper.make_graph(nodes, "body", values, outs)
    model.graph.initializer.append(helper.make_tensor("go", TensorProto.BOOL, [], [True]))
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("Loop", ["", "go", "x"], ["y"], body=body))
    return bytes(model.SerializeToString())


def _limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "_limits", lambda: TaskLimits(2 << 30, 3.0))


def test_the_intake_checks_the_graph_of_a_stranger(tmp_path: Path, own: Path) -> None:
    (tmp_path / "m").mkdir()
    model = _loop_of_a_constant(tmp_path / "m")
    with optkit.load(_foreign(tmp_path / "out", own, model)) as opened:
        with pytest.raises(UnsafeFile, match=r"Loop runs up to \d+ times"):
            opened.run(FEED)
        with pytest.raises(UnsafeFile, match="Loop runs"):
            opened.session()


@pytest.mark.parametrize(("model", "verdict"), [(_growing, "oom"), (_endless, "timeout")])
def test_a_graph_without_bounds_ends_in_the_child(
    model: Any, verdict: str, tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _limited(monkeypatch)
    path = _foreign(tmp_path / "out", own, model())
    with pytest.raises(WorkerFailed) as caught:
        optkit.load(path).run(FEED)
    assert caught.value.verdict == verdict and caught.value.exit_code == 6
    assert "trusted" in str(caught.value.hint)


def test_a_graph_is_tried_once(tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _foreign(tmp_path / "out", own, _sound())
    assert optkit.load(path).run(FEED)["y"].tolist() == [1, 3, 5, 7]
    monkeypatch.setattr(trust, "Proxy", lambda *args: pytest.fail("tried again"))
    assert optkit.load(path).run(FEED)["y"].tolist() == [1, 3, 5, 7]
    own_path = write(tmp_path / "own", MANIFEST, {"model.onnx": _growing()}).path
    with Artifact.load(own_path).session() as session:  # written here: no try
        assert session.note is not None
    shutil.rmtree(own)
    with optkit.load(path, trusted=True) as opened:
        assert opened.run(FEED)["y"].tolist() == [1, 3, 5, 7]


class _Engine:
    """Stands for a backend whose engines are machine code."""

    traits = backend("tensorrt-rtx").traits
    opened: list[Path] = []  # noqa: RUF012

    def session(self, path: Path, options: SessionOptions) -> Any:
        self.opened.append(path)
        return _Ran()


class _Ran:
    inputs = outputs = ()

    def run(self, feed: Feed) -> Feed:
        return {}

    def close(self) -> None:
        pass


def test_an_engine_is_opened_only_where_it_was_compiled(
    tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = reader.backend
    monkeypatch.setattr(_Engine, "opened", [])
    monkeypatch.setattr(
        reader, "backend", lambda name: _Engine() if name == "tensorrt-rtx" else real(name)
    )
    engine = EngineFile("tensorrt-rtx", "engine.plan")
    path = _foreign(tmp_path / "out", own, _sound(), engine)
    foreign = optkit.load(path)
    with foreign.session() as session:
        assert session.evidence == Evidence.SIMULATED and not _Engine.opened
        assert "not compiled on this machine" in str(session.note)
    with pytest.raises(UnsafeFile, match="not compiled on this machine"):
        foreign.require_own_engine()
    with optkit.load(path, trusted=True).session() as session:
        assert session.evidence == Evidence.MEASURED
    assert len(_Engine.opened) == 1
    here = write(tmp_path / "own", dataclasses.replace(MANIFEST, engine=engine),
                 {"model.onnx": _sound(), "engine.plan": b"engine"})  # fmt: skip
    here.require_own_engine()
    assert here.session().evidence == Evidence.MEASURED
    foreign = optkit.load(path)  # that engine is the same, its baseline's is not
    with pytest.raises(UnsafeFile, match=r"baseline/engine\.plan"):
        foreign.require_own_engine()


def test_a_graph_is_checked_where_it_lies(tmp_path: Path) -> None:
    from optkit.ground.intake import check_onnx

    hostile = {
        **onnx_files.EXTERNAL_DATA, **onnx_files.SIZES, **onnx_files.GRAPHS, **onnx_files.NAMES,
    }  # fmt: skip
    for number, (name, build) in enumerate(hostile.items()):
        folder = tmp_path / str(number) / "m"
        folder.mkdir(parents=True)
        with pytest.raises(UnsafeFile):
            check_onnx(build(folder))
        assert name
    folder = tmp_path / "sound"
    folder.mkdir()
    check_onnx(onnx_files.save(onnx_files.plain_model(), folder))


def _forged(path: Path, change: Mapping[str, Any]) -> None:
    file = path / "manifest.json"
    body = {**json.loads(file.read_text()), **change}
    body.pop("check")
    file.write_text(json.dumps({**body, "check": digest_json(body)}))


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": [{"name": "x", "dtype": 1, "shape": [4]}]},
        {"inputs": [{"name": ["x"], "dtype": "float32", "shape": [4]}]},
        {"outputs": [{"name": "y", "dtype": "float32", "shape": [1.5]}]},
        {"outputs": [{"name": "y", "dtype": "float32", "shape": [True]}]},
        {"recipe": {"axes": []}},
        {"recipe": {"axes": {"batch": 5}}},
        {"recipe": {"axes": {"batch": {"opt": "8"}}}},
        {"recipe": {"axes": {"batch": {}}}},
        {"result": {"engine": "none"}},
        {"result": {"latency": {"evidence": 5}}},
        {"result": {"latency": {"p50_ms": 1}}},
        {"own_baseline": 1},
        {"own_baseline": True},  # although there is a folder baseline/
        {"omitted": {"../x": {"sha256": "0" * 64, "size": 1, "role": "proves"}}},
        {"omitted": {"model.onnx": {"sha256": "0" * 64, "size": 1, "role": "proves"}}},
    ],
    ids=str,
)
def test_wrong_types_in_a_manifest(change: dict[str, Any], tmp_path: Path) -> None:
    made = write(tmp_path, MANIFEST, {"model.onnx": _sound(), "baseline/model.onnx": _sound()})
    _forged(made.path, {})
    Artifact.load(made.path).verify()
    _forged(made.path, change)
    with pytest.raises(IntegrityError, match=r"manifest\.json: damaged"):
        Artifact.load(made.path)

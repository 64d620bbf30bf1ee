"""Artifacts in MLflow, Weights & Biases and trackio, read back by the trackers' own readers."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
import torch
from torch import nn

import optkit
from optkit.facts.errors import IntegrityError, StorageError, ToolchainMissing, UnknownName
from optkit.facts.tensors import TensorInfo
from optkit.road.packaging import formats
from optkit.road.packaging.variants import PackageSubject, Variant
from optkit.verbs.integrations import deploy, deployment, tracking
from tests.environments import ROOT, environment, output, wait_for
from tests.packaging import tiny
from tests.packaging.identity import Generated, artifact

FIGURES = {
    "latency_ms_p50": 0.25, "samples_per_second": 32000.0, "accuracy_top1": 0.9833,
    "accuracy_drop": 0.0011, "speedup": 1.3, "baseline_accuracy_top1": 0.9833,
}  # fmt: skip
NOTES = {
    "evidence.latency_ms_p50": "predicted", "interval.latency_ms_p50": "0.1 to 0.5",
    "evidence.accuracy_top1": "simulated", "interval.accuracy_top1": "0.97 to 0.99",
    "evidence.accuracy_drop": "simulated", "interval.accuracy_drop": "-0.0032 to 0.0063",
}  # fmt: skip


def test_an_unknown_tracker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="mlflow"):
        tracking.log(tmp_path, to="mlfow")  # type: ignore[arg-type]


def test_a_missing_library_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ToolchainMissing, match="wandb does not load") as missing:
        tracking.log(tiny.artifact(tmp_path), to="wandb")
    assert missing.value.hint == "pip install 'optkit[wandb]'"


def test_a_damaged_artifact_is_not_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", ModuleType("trackio"))
    built = tiny.artifact(tmp_path)
    (built.path / "empty").write_bytes(b"changed")
    with pytest.raises(IntegrityError, match="empty"):
        tracking.log(built, to="trackio")


def test_what_a_tracker_says_is_an_error_of_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(*_: object, **__: object) -> None:
        raise ConnectionError("no route to the server")

    trackio = ModuleType("trackio")
    trackio.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    with pytest.raises(StorageError, match="trackio did not take the figures: no route"):
        tracking.log(tiny.artifact(tmp_path), to="trackio")


def test_a_training_logs_its_artifacts_and_survives_its_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Run:
        id = "1"

        def log(self, figures: dict[str, float]) -> None:
            taken.append(figures)

        def finish(self) -> None:
            if len(taken) == 2:
                raise ConnectionError("no route to the server")

    taken: list[dict[str, float]] = []
    trackio = ModuleType("trackio")
    trackio.init = lambda project, name, **_: Run()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    monkeypatch.setattr(deployment.api, "build", lambda *_, target, **__: tiny.artifact(
        tmp_path, target))  # fmt: skip
    built = deploy(
        torch.nn.Linear(4, 4), [torch.ones(1, 4)], targets=["l4", "cpu"], tracker="trackio"
    )
    assert [one.manifest.target for one in built] == ["l4", "cpu"]
    assert taken == [FIGURES, FIGURES]
    (record,) = caplog.records
    assert "net-cpu-int8 has no run in trackio: trackio did not take" in record.getMessage()


# --- the trackers --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def python() -> Path:
    """An interpreter with the trackers, ONNX Runtime, and what optkit needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return environment(
        "trackers", "mlflow==3.17.2", "wandb==0.31.0", "trackio==0.43.0",
        "onnxruntime", *project["dependencies"],
    )  # fmt: skip


def run(python: Path, code: str, folder: Path, *arguments: str | Path, **env: str) -> Any:
    """The JSON of the last line that the code prints."""
    places = {"PYTHONPATH": str(ROOT), "OPTKIT_CACHE": str(folder / "cache")}
    printed = output([python, "-c", code, *arguments], folder, **places, **env)
    return json.loads(printed.splitlines()[-1])


@pytest.fixture(scope="module")
def server(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A tracking server on loopback: its URI."""
    options = ("--backend-store-uri", "sqlite:///runs.db", "--artifacts-destination", "models")
    with serving(python, tmp_path_factory.mktemp("mlflow"), "/health", "server", *options) as uri:
        yield uri


@contextmanager
def serving(python: Path, folder: Path, ready: str, *command: str | Path) -> Iterator[str]:
    """`mlflow …` as a server on loopback, from when it answers at `ready`: its URI."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = ("--host", "127.0.0.1", "--port", str(port), "--workers", "1")
    kept = {"HOME": str(folder), "PATH": f"{python.parent}:{os.environ['PATH']}"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [python.parent / "mlflow", *command, *place], cwd=folder, stdout=log, stderr=log,
            env=kept,
        )  # fmt: skip
    try:
        wait_for(f"http://127.0.0.1:{port}{ready}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


TO_MLFLOW = """
import json, sys

import mlflow
import numpy as np

from optkit.integrations import tracking

folder, feed, out, registered = sys.argv[1:]
mlflow.set_experiment("training")
with mlflow.start_run() as mine:  # of the caller
    logged = tracking.log(folder, to="mlflow", project="digits")
    assert mlflow.active_run().info.run_id == mine.info.run_id != logged.run
run, client = mlflow.get_run(logged.run), mlflow.MlflowClient()
model = client.get_logged_model(logged.model.removeprefix("models:/"))
mlflow.register_model(logged.model, registered)
for place, uri in (("logged", logged.model), ("registered", f"models:/{registered}/1")):
    function = mlflow.pyfunc.load_model(uri)
    np.savez(f"{out}/{place}.npz", **function.predict(dict(np.load(feed))))
    assert function.predict(function.input_example)
print(json.dumps({
    "name": run.info.run_name, "status": run.info.status, "metrics": run.data.metrics,
    "params": run.data.params, "tags": run.data.tags,
    "experiment": client.get_experiment(run.info.experiment_id).name,
    "model": {metric.key: metric.value for metric in model.metrics},
    "model_status": str(model.status), "model_tags": model.tags,
    "inputs": str(function.metadata.signature.inputs),
}))
"""


@pytest.mark.slow
def test_mlflow_loads_what_was_logged_and_computes_the_same_bits(
    python: Path, server: str, cache: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    example = torch.randn(64, 16)
    quick = {"name": "net", "bench": {"seconds": 0.05, "warmup_seconds": 0.05, "batches": [1]}}
    built = optkit.build(net, example, target="cpu", precision="int8", calibration=[example],
                         recipe=quick, out=tmp_path, workspace=optkit.Workspace(cache))  # fmt: skip
    (name,) = (info.name for info in built.manifest.inputs)
    feed = {name: np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)}
    np.savez(tmp_path / "feed.npz", **feed)
    found = run(python, TO_MLFLOW, tmp_path, built.path, tmp_path / "feed.npz", tmp_path, "net",
                MLFLOW_TRACKING_URI=server)  # fmt: skip
    with built.session() as session:
        ours = session.run(feed)
    for place in ("logged", "registered"):
        theirs = np.load(tmp_path / f"{place}.npz")
        assert theirs.keys() == ours.keys()
        for key, value in ours.items():
            np.testing.assert_array_equal(theirs[key], value)
    assert (found["experiment"], found["name"]) == ("digits", built.name)
    assert (found["status"], found["model_status"]) == ("FINISHED", "READY")
    assert found["metrics"]["latency_ms_p50"] == built.result["latency"]["p50_ms"]
    assert found["metrics"] == found["model"]
    assert found["params"]["digest"] == built.digest
    assert found["params"]["measured_on"] == built.result["latency"]["machine"]
    for tags in (found["tags"], found["model_tags"]):
        assert tags["optkit.evidence.latency_ms_p50"] == "measured"
    assert f"{name!r}: Tensor('float32', (-1, 16))" in found["inputs"]


@pytest.mark.slow
def test_mlflow_serves_a_folder(python: Path, tmp_path: Path) -> None:
    x = (TensorInfo("x", "float32", ("batch", 4)),)
    built = artifact(tmp_path, "cpu", inputs=x)
    folder = formats.package(PackageSubject("net", (Variant(built),)), "mlflow", tmp_path).folder
    rows = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    body = json.dumps({"inputs": {"x": rows.tolist()}}).encode()
    options = ("models", "serve", "--model-uri", folder, "--env-manager", "local")
    with serving(python, tmp_path, "/ping", *options) as uri:
        kind = {"Content-Type": "application/json"}
        with urlopen(Request(f"{uri}/invocations", body, kind)) as answer:
            found = json.load(answer)["predictions"]["of x"]
    np.testing.assert_array_equal(np.array(found, np.float32), rows)


TO_WANDB = """
import json, sys
from pathlib import Path

import wandb
from wandb.proto import wandb_internal_pb2

from optkit.integrations import tracking

mine = wandb.init(project="training")
logged = tracking.log(sys.argv[1], to="wandb", project="digits")
assert wandb.run is mine
mine.log({"loss": 1.0})
mine.finish()


def records(data):
    # of a file of W&B: seven bytes, then a log of LevelDB in blocks of 32 KiB
    place, parts = 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


found = {}
(file,) = Path("wandb").glob(f"offline-run-*/run-{logged.run}.wandb")
for data in records(file.read_bytes()):
    record = wandb_internal_pb2.Record.FromString(data)
    if record.HasField("run"):
        found["name"], found["project"] = record.run.display_name, record.run.project
        for item in record.run.config.update:
            found[item.key] = json.loads(item.value_json)
    for item in record.history.item:
        found[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
print(json.dumps(found))
"""


@pytest.mark.slow
def test_wandb_keeps_the_figures_offline(python: Path, tmp_path: Path) -> None:
    built = tiny.artifact(tmp_path)
    found = run(python, TO_WANDB, tmp_path, built.path, WANDB_MODE="offline")
    assert (found["name"], found["project"]) == (built.name, "digits")
    assert found.items() >= (FIGURES | NOTES).items()
    assert (found["target"], found["digest"]) == ("l4", built.digest)


TO_TRACKIO = """
import json, sys

import trackio
from trackio.sqlite_storage import SQLiteStorage

from optkit.integrations import tracking

mine = trackio.init("training", auto_log_cpu=False)
logged = tracking.log(sys.argv[1], to="trackio", project="digits")
trackio.log({"loss": 1.0})
trackio.finish()
(run,) = trackio.Api().runs("digits")
(own,) = trackio.Api().runs("training")
print(json.dumps({
    "name": run.name, "same": run.id == logged.run, "config": run.config,
    "rows": SQLiteStorage.get_logs("digits", run.name),
    "loss": [row["loss"] for row in SQLiteStorage.get_logs("training", own.name)],
}))
"""


@pytest.mark.slow
def test_trackio_keeps_the_figures(python: Path, tmp_path: Path) -> None:
    built = tiny.artifact(tmp_path)
    found = run(python, TO_TRACKIO, tmp_path, built.path, TRACKIO_DIR=str(tmp_path / "trackio"))
    assert (found["name"], found["same"], found["loss"]) == (built.name, True, [1.0])
    (row,) = found["rows"]
    assert row.items() >= FIGURES.items()
    assert found["config"].items() >= ({"target": "l4", "digest": built.digest} | NOTES).items()


@pytest.mark.slow
def test_mlflow_loads_generated_signatures(python: Path, tmp_path: Path) -> None:
    """Folders with random signatures: loaded, and run on their own input example."""
    draw = random.Random(1)
    folders = []
    for number in range(50):
        drawn = Generated.draw(draw)
        built = artifact(tmp_path / str(number), "cpu", "int8", drawn.inputs, drawn.location)
        subject = PackageSubject("net", (Variant(built),))
        folders.append(formats.package(subject, "mlflow", tmp_path / str(number)).folder)
    (tmp_path / "folders.json").write_text(json.dumps(folders))
    assert run(python, LOAD, tmp_path, tmp_path / "folders.json") == {"folders": 50, "errors": []}


LOAD = """
import json, sys
from pathlib import Path

import mlflow
import numpy as np

errors = []
folders = json.loads(Path(sys.argv[1]).read_text())
for folder in folders:
    try:
        function = mlflow.pyfunc.load_model(folder)
        example = function.input_example
        for name, array in example.items():
            np.testing.assert_array_equal(function.predict(example)[f"of {name}"], array)
    except Exception as error:
        errors.append(f"{folder}: {error!r}")
print(json.dumps({"folders": len(folders), "errors": errors}))
"""

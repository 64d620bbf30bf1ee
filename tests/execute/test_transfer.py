"""Transfer of files to a node with a separate store, and back, without a cluster."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec")

from optkit.facts.codec import from_json, to_json
from optkit.facts.errors import StorageError
from optkit.ground.execute import node, transfer
from optkit.ground.execute.node import NodeAnswer
from optkit.ground.execute.task import Task, TaskLimits
from optkit.ground.execute.transfer import Call, Ground, RemoteCall, ThroughRemote
from optkit.ground.store import Remote, RemoteLost, RemoteReadOnly, Store


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ThroughRemote:
    """That of a machine; on its node OPTKIT_CACHE names another folder."""
    monkeypatch.setenv("OPTKIT_CACHE", str(tmp_path / "node"))
    transfer._connected.cache_clear()
    return ThroughRemote(Store(tmp_path / "driver", Remote(f"file://{tmp_path}/remote")))


def copied(argument: RemoteCall, here: Ground) -> dict[str, Any]:
    """A node's function: every file beside the input and in it, with the node's place of each."""
    here.out.mkdir()
    places = [Path(here.place(path)) for path in argument.needs]
    for number, place in enumerate(places):
        folder = place if place.is_dir() else place.parent
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                (here.out / str(number)).mkdir(exist_ok=True)
                (here.out / str(number) / path.name).write_bytes(path.read_bytes())
    here.tell("copied", 1.0)
    return {"places": [*map(str, places), here.place(str(argument.body))]}


def carried(
    driver: ThroughRemote, function: Call, argument: RemoteCall, attempt: Path
) -> NodeAnswer:
    """What Ray would do with it: JSON there and back."""
    given = json.loads(json.dumps(to_json(driver.packed(argument, attempt))))
    answer = node.answered(function, from_json(RemoteCall, given))
    return from_json(NodeAnswer, json.loads(json.dumps(to_json(answer))))


def test_a_node_reads_and_writes_in_its_own_store(driver: ThroughRemote, tmp_path: Path) -> None:
    root = tmp_path / "driver"
    model = root / "objects/ab/abcd/model.onnx"
    shard = root / "tmp/1-shard-0"
    for path, text in ((model, "graph"), (model.with_name("w.data"), "data"), (shard / "s", "s")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    out = root / "tmp/1"
    out.mkdir()
    argument = RemoteCall(str(root / "devices"), (str(model), str(shard)), str(out))
    answer = carried(driver, copied, argument, out.with_name("1-try"))
    driver.adopt(out.with_name("1-try"), answer.files, out)
    assert {path.relative_to(out).as_posix(): path.read_text() for path in out.rglob("*/*")} == {
        "0/model.onnx": "graph", "0/w.data": "data", "1/s": "s",
    }  # fmt: skip
    *places, kept = answer.result["places"]  # type: ignore[index]
    assert all(place.startswith(str(tmp_path / "node/tmp")) for place in places)
    assert kept == str(tmp_path / "node/devices")
    assert not list((tmp_path / "node/tmp").iterdir())


def test_a_task_runs_on_a_node_without_the_drivers_folder(
    driver: ThroughRemote, tmp_path: Path
) -> None:
    inputs = [{"name": "x", "dtype": "float32", "shape": [4, 8], "range": None}]
    params, out = {"inputs": inputs, "axes": {}}, str(tmp_path / "driver/tmp/1")
    task = Task("random", {}, params, out, stays=True)
    answer = carried(driver, node.perform, node.packed(task, TaskLimits(2**31)), tmp_path / "1-try")
    driver.adopt(tmp_path / "1-try", answer.files, tmp_path / "got")
    assert (tmp_path / "got/index.json").is_file() and answer.result is not None


def test_a_file_that_is_lost_on_the_way_is_sent_again(
    driver: ThroughRemote, tmp_path: Path
) -> None:
    path = tmp_path / "driver/steps/ab/abcd/model.onnx"
    path.parent.mkdir(parents=True)
    path.write_text("graph")
    argument = RemoteCall("", (str(path),), str(tmp_path / "out"))
    driver.packed(argument, tmp_path / "1-try")
    for file in (tmp_path / "remote/files").glob("*/*"):
        file.write_text("other")  # of the same size
    answer = carried(driver, copied, argument, tmp_path / "2-try")
    driver.doubt(str(answer.lacking))
    assert carried(driver, copied, argument, tmp_path / "3-try").files


def test_a_node_that_cannot_reach_the_remote_gets_no_tasks(
    driver: ThroughRemote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_POSTED_SECONDS", 0.0)
    given = driver.packed(RemoteCall("", (), ""), tmp_path / "1-try")
    assert given.remote is not None
    remote = replace(given.remote, url="ftp://me:hunter2@127.0.0.1:1/place")
    unfit = str(node.answered(copied, replace(given, remote=remote)).unfit)
    assert "127.0.0.1" in unfit and "hunter2" not in unfit
    driver.check()  # it is the node's own trouble
    (tmp_path / "remote/optkit.json").write_text("other")
    with pytest.raises(RemoteLost):
        driver.check()
    driver.lose(RemoteLost("gone"))
    with pytest.raises(RemoteLost, match="given up"):
        driver.packed(RemoteCall("", (), ""), tmp_path / "2-try")


@pytest.mark.parametrize(("error", "told"), [(RemoteLost, "lost"), (RemoteReadOnly, "unfit")])
def test_a_remote_that_fails_a_node_meanwhile_is_no_fault_of_the_node(
    driver: ThroughRemote, tmp_path: Path, error: type[RemoteLost], told: str
) -> None:
    def cut(argument: RemoteCall, here: Ground) -> dict[str, Any]:
        raise error("no answer")

    answer = carried(driver, cut, RemoteCall("", (), str(tmp_path / "out")), tmp_path / "1-try")
    assert answer == NodeAnswer(**{told: "no answer"})  # type: ignore[arg-type]


def test_a_node_keeps_no_checkpoint_of_what_is_done(
    driver: ThroughRemote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part's, which lies in that of the whole; the driver's own is the driver's."""
    used: list[Path] = []

    def work(task: Task, *rest: Any) -> dict[str, Any]:
        used.append(Path(str(task.params["checkpoint"])))
        used[-1].mkdir(parents=True)
        (used[-1] / "scores").write_text("half")
        return {}

    monkeypatch.setattr(node, "_WORKERS", work)
    root = tmp_path / "driver"
    checkpoint = root / "tmp/resume-abcd/shard-0-of-2"
    checkpoint.mkdir(parents=True)
    task = Task("evaluate", {}, {"checkpoint": str(checkpoint)}, str(root / "tmp/1"))
    carried(driver, node.perform, node.packed(task, TaskLimits(2**31)), tmp_path / "1-try")
    assert used[0].is_relative_to(tmp_path / "node/tmp/resume-abcd")
    assert not list((tmp_path / "node/tmp").iterdir()) and checkpoint.is_dir()


def test_progress_goes_through_the_remote(
    driver: ThroughRemote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_POSTED_SECONDS", 0.0)
    heard: list[tuple[str, float]] = []
    attempt = tmp_path / "1-try"

    def busy(argument: RemoteCall, here: Ground) -> dict[str, Any]:
        here.tell("half", 0.5)
        for _ in range(500):
            driver.hear(attempt, lambda what, fraction: heard.append((what, fraction)))
            if heard:
                break
            time.sleep(0.01)
        here.out.mkdir()
        return {}

    carried(driver, busy, RemoteCall("", (), str(tmp_path / "out")), attempt)
    assert heard[0] == ("half", 0.5)
    assert not list((tmp_path / "remote/progress").iterdir())
    with pytest.raises(StorageError):
        Store(tmp_path / "alone").sharing.reached()

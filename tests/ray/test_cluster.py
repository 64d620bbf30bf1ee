"""On a real cluster: which node does which task, and what happens when nodes die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import psutil
import pytest

from optkit.facts.errors import OptkitError, ToolchainMissing, UsageError
from optkit.ground.execute.task import Task
from optkit.ground.execute.transfer import RemoteCall
from optkit.ground.workspace import Silent, Workspace

pytestmark = pytest.mark.slow

OPTKIT = (sys.executable, "-c", "from optkit.cli import main; main()")
MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[batch,16] x) => (float[batch,4] y)
<float[16,32] w1 = {%s}, float[32,4] w2 = {%s}>
{ h = MatMul(x, w1)
  r = Relu(h)
  y = MatMul(r, w2) }
"""
RECIPE = """
name: small
model: {path: small.onnx}
axes: {batch: {min: 1, opt: 8, max: 64}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    weights = [", ".join(map(str, rng.standard_normal(n).round(4))) for n in (512, 128)]
    folder = tmp_path / "project"
    folder.mkdir()
    onnx.save(onnx.parser.parse_model(MODEL % tuple(weights)), folder / "small.onnx")
    np.savez(folder / "samples.npz", x=rng.standard_normal((64, 16)).astype(np.float32))
    (folder / "optkit.yaml").write_text(RECIPE)
    return folder


@pytest.fixture
def cluster(nodes: Any) -> Any:
    from optkit.ground.execute.ray import RayCluster

    said: list[str] = []
    found = RayCluster(nodes.address, said.append)
    found.said = said  # type: ignore[attr-defined]
    return found


def task(out: Path, **changes: Any) -> Task:
    inputs = [{"name": "x", "dtype": "float32", "shape": [4, 8], "range": None}]
    out.mkdir(parents=True)
    params = {"inputs": inputs, "axes": {}}
    return replace(Task("random", {}, params, str(out), stays=True), **changes)


def packed(task: Task) -> RemoteCall:
    from optkit.ground.execute.node import packed
    from optkit.ground.execute.task import TaskLimits

    return packed(task, TaskLimits(2**31))


def test_every_task_runs_on_a_node_with_its_accelerator(
    cluster: Any, nodes: Any, tmp_path: Path
) -> None:
    from optkit.ground.execute.node import perform

    def where(argument: RemoteCall, here: Any) -> object:
        import ray

        perform(argument, here)
        return ray.get_runtime_context().get_node_id()

    def one(number: int) -> bool:
        label = list(nodes.by_label)[number % 3]
        wanted = task(tmp_path / "tmp" / str(number))
        node = cluster.call(where, packed(wanted), device=label)
        assert (Path(wanted.out) / "index.json").exists()
        return bool(node == nodes.by_label[label].node_id)

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(one, range(12)))
    assert [path.name for path in (tmp_path / "tmp").iterdir() if "-" in path.name] == []


def test_an_accelerator_that_no_node_has_is_an_error_at_once(cluster: Any, tmp_path: Path) -> None:
    from optkit.ground.execute.node import perform

    with pytest.raises(ToolchainMissing, match="H100") as caught:
        cluster.call(perform, packed(task(tmp_path / "t")), device="H100")
    assert "1 × L4" in str(caught.value.hint)


def test_a_node_of_other_versions_gets_no_tasks(cluster: Any, tmp_path: Path) -> None:
    from optkit.ground.execute.task import TaskLimits

    with pytest.raises(ToolchainMissing) as caught:
        cluster(task(tmp_path / "t", versions={"numpy": "0.1"}), TaskLimits(2**31))
    assert "numpy is" in str(caught.value.hint) and len(cluster.said) == 3


def test_an_error_of_a_step_is_its_own(cluster: Any, tmp_path: Path) -> None:
    from optkit.ground.execute.task import TaskLimits

    with pytest.raises(OptkitError, match="random"):
        cluster(task(tmp_path / "t", params={}), TaskLimits(2**31))
    assert list(tmp_path.iterdir()) == [tmp_path / "t"]


def test_a_client_elsewhere_does_the_same(nodes: Any, project: Path, tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    done = build(project, tmp_path / "client", on=f"ray://127.0.0.1:{nodes.client_port}")
    out, err = done.communicate()
    assert done.returncode == 0, err
    assert json.loads(out)["engine"]["landing"]["landed"] == 2


def test_a_killed_node_changes_no_digest(nodes: Any, project: Path, tmp_path: Path) -> None:
    local = build(project, tmp_path / "local")
    _, err = local.communicate()
    assert local.returncode == 0, err
    here = digests(tmp_path / "local")
    running = build(project, tmp_path / "there", on="ray", address=nodes.address)
    while (label := at_work(nodes)) is None:
        assert running.poll() is None, running.communicate()[1]
        time.sleep(0.01)
    nodes.kill(label)
    out, err = running.communicate()
    assert running.returncode == 0 and json.loads(out)["status"] == "ok", err
    assert digests(tmp_path / "there") == here
    assert list((tmp_path / "there/cache/tmp").iterdir()) == []


def test_nodes_that_share_no_folder_exchange_files(
    nodes: Any, project: Path, tmp_path: Path
) -> None:
    local = build(project, tmp_path / "local")
    _, err = local.communicate()
    assert local.returncode == 0, err
    remote = ("--remote", f"file://{tmp_path}/remote")
    running = build(project, tmp_path / "there", "l4", *remote, on="ray", address=nodes.address)
    while (label := at_work(nodes)) is None:
        assert running.poll() is None, running.communicate()[1]
        time.sleep(0.01)
    nodes.kill(label)
    _, err = running.communicate()
    assert running.returncode == 0, err
    assert digests(tmp_path / "there") == digests(tmp_path / "local")
    held = [path for path in nodes.stores.glob("*/objects/*/*") if path.is_file()]
    assert held and not list(nodes.stores.glob("*/steps"))
    assert list((tmp_path / "there/cache/tmp").iterdir()) == []
    again = build(project, tmp_path / "again", "l4", *remote)
    out, err = again.communicate()
    assert again.returncode == 0, err
    assert digests(tmp_path / "again") == digests(tmp_path / "local")
    assert json.loads(out)["cache_hits"] > 10


def test_a_remote_that_vanishes_leaves_the_work_to_the_driver(
    nodes: Any, project: Path, tmp_path: Path
) -> None:
    place, out = tmp_path / "remote", tmp_path / "there"
    remote = ("--remote", f"file://{place}")
    running = build(project, out, "l4", *remote, on="ray", address=nodes.address)
    while len(list(out.glob("cache/steps/*/*"))) < 3:
        assert running.poll() is None, running.communicate()[1]
        time.sleep(0.01)
    place.rename(tmp_path / "gone")
    place.write_text("no folder any more")
    _, err = running.communicate()
    assert running.returncode == 0, err
    assert err.count("going on without it") == 1
    assert digests(out)


def test_python_builds_on_a_cluster(
    nodes: Any, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import optkit

    class Ears(Silent):
        notes: ClassVar[list[str]] = []

        def note(self, text: str) -> None:
            self.notes.append(text)

    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    samples = [{"x": np.load(project / "samples.npz")["x"]}]
    made = [
        optkit.build(
            str(project / "small.onnx"),
            target="h100",
            calibration=samples,
            out=tmp_path / f"out-{on}",
            workspace=Workspace(
                tmp_path / f"cache-{on}",
                None if on is None else f"file://{tmp_path}/remote",
                executor=on,
                listener=Ears(),
            ),
        )
        for on in (None, "ray")
    ]
    assert made[0].digest == made[1].digest
    assert [
        note for note in Ears.notes if "no node of the cluster has the accelerator H100" in note
    ]
    with pytest.raises(UsageError, match="address of a cluster"):
        workspace = Workspace(tmp_path / "c", executor="nowhere")
        optkit.tune(str(project / "small.onnx"), target="l4", workspace=workspace)


def test_an_interrupted_build_leaves_no_work_behind(
    nodes: Any, project: Path, tmp_path: Path
) -> None:
    running = build(project, tmp_path / "out", on="ray", address=nodes.address)
    while (label := at_work(nodes)) is None:
        assert running.poll() is None, running.communicate()[1]
        time.sleep(0.01)
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate()
    assert running.returncode == 143, err
    deadline = time.monotonic() + 20
    while at_work(nodes) is not None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert at_work(nodes) is None
    again = build(project, tmp_path / "out", on="ray", address=nodes.address)
    out, err = again.communicate()
    assert again.returncode == 0, err
    assert label and json.loads(out)["status"] == "ok"


def test_what_has_no_node_is_said_and_stays_pending(
    nodes: Any, project: Path, tmp_path: Path
) -> None:
    done = build(project, tmp_path / "out", "h100", on="ray", address=nodes.address)
    out, err = done.communicate()
    assert done.returncode == 0 and "no node of the cluster has the accelerator H100" in err
    assert json.loads(out)["status"] == "pending"


@pytest.mark.parametrize("apart", [False, True])
def test_a_pending_artifact_is_finished_on_a_node(
    cluster: Any, project: Path, tmp_path: Path, apart: bool
) -> None:
    """The device is this machine's CPU, which no label names: the node's part alone is tried."""
    from dataclasses import asdict

    from optkit.ground.execute.task import TaskLimits
    from optkit.ground.execute.transfer import ThroughRemote
    from optkit.ground.store import Remote, Store
    from optkit.verbs.api import load
    from optkit.verbs.api.cluster_finish import finish_here

    done = build(project, tmp_path, "cpu", "--defer")
    _, err = done.communicate()
    assert done.returncode == 0, err
    artifact, out = tmp_path / "small-cpu-int8", tmp_path / "cache/tmp/1/finished"
    out.mkdir(parents=True)
    body = {
        "artifact": str(artifact),
        "shown": "artifacts/small",
        "limits": asdict(TaskLimits(2**31)),
        "strict": False,
    }
    argument = RemoteCall(body, (str(artifact),), str(out), str(tmp_path / "cache"))
    if apart:
        remote = Remote(f"file://{tmp_path}/remote")
        cluster.transfer = ThroughRemote(Store(tmp_path / "cache", remote))
    found = cluster.call(finish_here, argument, device="L4")["result"]
    assert found["status"] == "ok" and found["latency"]["evidence"] == "measured"
    assert found["artifact"] == "artifacts/small"
    assert load(out / artifact.name).result == found


def build(
    project: Path,
    out: Path,
    target: str = "l4",
    *options: str,
    on: str | None = None,
    address: str | None = None,
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*OPTKIT, "build", "--target", target, "--out", str(out), "--cache", str(out / "cache"),
         "--json", "--calibration", "samples.npz", *options, *(["--on", on] if on else [])],
        cwd=project, env={**os.environ, **({"RAY_ADDRESS": address} if address else {})},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def digests(out: Path) -> list[str]:
    return [json.loads(path.read_bytes())["digest"] for path in out.glob("*/manifest.json")]


def at_work(nodes: Any) -> str | None:
    """A node with a step's child that computes."""
    for label, node in nodes.by_label.items():
        raylet = node.all_processes["raylet"][0].process.pid
        for process in psutil.Process(raylet).children(recursive=True):
            try:
                if "optkit.road.worker" in process.cmdline() and process.status() == "running":
                    return str(label)
            except psutil.Error:
                continue
    return None

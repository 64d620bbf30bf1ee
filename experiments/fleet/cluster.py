"""A fleet on a Ray cluster: tasks find their accelerator, killed nodes change nothing, and what has
no node is told at once.

    python experiments/fleet/cluster.py SCRATCH

A real cluster of three nodes on this machine, their accelerators only claimed. Results go to
`cluster.json` beside this file.

- routing: 60 JSON tasks, 20 for each accelerator; how many ran on the node that has it
- kills: a small model's fleet l4, t4, rtx4090 × int8, fp16, once without a cluster, then ten times
  from an empty store on the cluster; in each sweep the raylet and all processes of a node at work
  are killed once, and a new node takes its place. How many end with the local digests
- apart: three more such sweeps on nodes that share no folder, each with a store of its own, and
  files through a remote
- missing: seconds until `optkit build --target h100` says that no node has one, and its status
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import numpy as np
import onnx_ir as ir
import psutil
import ray
from ray.cluster_utils import Cluster as Fake

from optkit.execute.local import Limits
from optkit.execute.node import packed, perform
from optkit.execute.ray import LABEL, Cluster

ACCELERATORS = {"l4": "L4", "t4": "T4", "rtx4090": "GeForce-RTX-4090"}
PRECISIONS = ("int8", "fp16")
TASKS, SWEEPS, APART = 60, 10, 3
OPTKIT = (sys.executable, "-c", "from optkit.cli import main; main()")
MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[batch,64] x) => (float[batch,8] y) <float[64,256] w1 = {%s}, float[256,8] w2 = {%s}>
{ h = MatMul(x, w1)
  r = Relu(h)
  y = MatMul(r, w2) }
"""
RECIPE = "name: small\nmodel: {path: small.onnx}\naxes: {batch: {min: 1, opt: 8, max: 64}}\n"
_STORE = 80 << 20  # bytes of Ray's object store; nothing of ours goes through it


class Nodes:
    """A head that takes no tasks, and a node with one core for each accelerator. `stores`: the
    folder where each node keeps a store of its own."""

    def __init__(self, stores: Path | None = None) -> None:
        self.stores = stores
        self.fake = Fake(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0, "include_dashboard": False, "object_store_memory": _STORE,
            },
        )  # fmt: skip
        self.by_label: dict[str, Any] = {}
        for label in ACCELERATORS.values():
            self.add(label)

    def add(self, label: str) -> None:
        own = {"OPTKIT_CACHE": str(self.stores / label)} if self.stores else {}
        self.by_label[label] = self.fake.add_node(
            num_cpus=1, num_gpus=1, labels={LABEL: label}, object_store_memory=_STORE,
            env_vars=own,
        )  # fmt: skip

    def kill_one_at_work(self, running: subprocess.Popen[str]) -> str:
        """Kill the node whose workers use most CPU, once one does; a new one takes its place."""
        spent = dict.fromkeys(self.by_label, 0.0)
        while max(spent.values()) < 0.05 and running.poll() is None:
            before = {label: self._cpu_seconds(label) for label in self.by_label}
            time.sleep(0.1)
            spent = {label: self._cpu_seconds(label) - before[label] for label in before}
        label = max(spent, key=lambda name: spent[name])
        self.fake.remove_node(self.by_label[label], allow_graceful=False)
        self.add(label)
        return label

    def _cpu_seconds(self, label: str) -> float:
        raylet = self.by_label[label].all_processes["raylet"][0].process.pid
        total = 0.0
        for process in psutil.Process(raylet).children(recursive=True):
            try:
                if "optkit.worker" in process.cmdline():
                    total += sum(process.cpu_times()[:2])
            except psutil.Error:
                continue
        return total


def routing(nodes: Nodes, scratch: Path) -> dict[str, Any]:
    """Every task is told the node it ran on."""
    cluster = Cluster(nodes.fake.address, print)
    labels = list(ACCELERATORS.values())

    def one(number: int) -> bool:
        label = labels[number % len(labels)]
        out = scratch / "routing" / str(number)
        out.mkdir(parents=True)
        inputs = [{"name": "x", "dtype": "float32", "shape": [4, 8], "range": None}]
        task = {"step": "random", "inputs": {}, "out": str(out), "stays": True,
                "params": {"inputs": inputs, "axes": {}}}  # fmt: skip
        found = cluster.call(perform, packed(task, Limits(2**30)), device=label)
        return bool(found["node"] == nodes.by_label[label].node_id)

    with ThreadPoolExecutor(12) as pool:
        right = list(pool.map(one, range(TASKS)))
    ray.shutdown()
    return {"tasks": TASKS, "on_the_right_node": sum(right)}


def project(scratch: Path) -> None:
    rng = np.random.default_rng(0)
    weights = [", ".join(map(str, rng.standard_normal(n).round(4))) for n in (64 * 256, 256 * 8)]
    scratch.mkdir(parents=True)
    ir.save(ir.from_onnx_text(MODEL % tuple(weights)), scratch / "small.onnx")
    np.savez(scratch / "samples.npz", x=rng.standard_normal((512, 64)).astype(np.float32))
    (scratch / "optkit.yaml").write_text(RECIPE)


def sweep(scratch: Path, name: str, address: str | None, *options: str) -> subprocess.Popen[str]:
    """The fleet from an empty store; with an address on the cluster."""
    pairs = [
        *(part for target in ACCELERATORS for part in ("--target", target)),
        *(part for precision in PRECISIONS for part in ("--precision", precision)),
    ]
    return subprocess.Popen(
        [*OPTKIT, "build", *pairs, "--calibration", "samples.npz", "--out", name, "--json",
         "--cache", f"{name}/cache", *options, *(["--on", "ray"] if address else [])],
        cwd=scratch, env={**os.environ, **({"RAY_ADDRESS": address} if address else {})},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def digests(folder: Path) -> dict[str, str]:
    found = json.loads(next(folder.glob("*-fleet/fleet.json")).read_bytes())
    return {name: one["digest"] for name, one in found["artifacts"].items()}


def alone(scratch: Path) -> dict[str, str]:
    """The digests of a build without a cluster."""
    local = sweep(scratch, "local", None)
    _, told = local.communicate()
    assert local.returncode in (0, 3), told
    return digests(scratch / "local")


def kills(
    nodes: Nodes, scratch: Path, expected: dict[str, str], names: list[str], *, remote: bool = False
) -> dict[str, Any]:
    """One kill per sweep, after a number of finished steps that differs from sweep to sweep.
    `remote`: each has one."""
    rng, rows = random.Random(0), []
    for name in names:
        after = rng.randrange(1, 12)
        started = time.monotonic()
        options = ["--remote", f"file://{scratch / name}/remote"] if remote else []
        running = sweep(scratch, name, nodes.fake.address, *options)
        while len(list((scratch / name / "cache").glob("steps/*/*"))) < after:
            assert running.poll() is None, running.communicate()[1]
            time.sleep(0.05)
        killed = nodes.kill_one_at_work(running)
        _, told = running.communicate()
        row = {
            "after_steps": after,
            "killed": killed,
            "tasks_lost": told.count("another node takes its work"),
            "exit_code": running.returncode,
            "same_digests": digests(scratch / name) == expected,
            "seconds": round(time.monotonic() - started, 1),
        }
        print(row, file=sys.stderr)
        rows.append(row)
    return {
        "artifacts": len(expected),
        "sweeps": rows,
        "same_digests": sum(row["same_digests"] for row in rows),
    }


def apart(scratch: Path, expected: dict[str, str]) -> dict[str, Any]:
    """`kills` on nodes without a common folder."""
    nodes = Nodes(scratch / "stores")
    try:
        names = [f"apart-{number}" for number in range(APART)]
        found = kills(nodes, scratch, expected, names, remote=True)
    finally:
        nodes.fake.shutdown()
    files = {
        folder.name: len(list(folder.glob("objects/*/*")))
        for folder in sorted((scratch / "stores").iterdir())
    }
    return {**found, "files_in_the_stores_of_nodes": files}


def missing(nodes: Nodes, scratch: Path) -> dict[str, Any]:
    started = time.monotonic()
    running = subprocess.Popen(
        [*OPTKIT, "build", "--target", "h100", "--calibration", "samples.npz", "--on", "ray",
         "--out", "missing", "--cache", "missing/cache", "--json"],
        cwd=scratch, env={**os.environ, "RAY_ADDRESS": nodes.fake.address},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stderr is not None
    line = next(line for line in running.stderr if "no node of the cluster" in line)
    seconds = time.monotonic() - started
    out, _ = running.communicate()
    return {"said": line.strip(), "seconds": round(seconds, 1),
            "status": json.loads(out)["status"], "exit_code": running.returncode}  # fmt: skip


def main() -> None:
    scratch = Path(sys.argv[1]).absolute()
    project(scratch)
    expected = alone(scratch)
    nodes = Nodes()
    try:
        found = {
            "routing": routing(nodes, scratch),
            "missing": missing(nodes, scratch),
            "kills": kills(nodes, scratch, expected, [f"sweep-{n}" for n in range(SWEEPS)]),
        }
    finally:
        nodes.fake.shutdown()
    found["apart"] = apart(scratch, expected)
    Path(__file__).with_suffix(".json").write_text(f"{json.dumps(found, indent=1)}\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

"""Two machines, and a cluster, that share steps through a server that speaks S3.

    python experiments/fleet/s3.py SCRATCH        # pip install 'optkit[remote]' s3fs 'moto[server]'

The server is moto's, on this machine. A machine is a project in a folder of its own, with an empty
store; the fleet is that of `cluster.py`. Results go to `s3.json` beside this file.

- alone: seconds of the fleet without a remote
- machines: the fleet on one machine, then on another: seconds, steps that ran, digests as alone
- bucket: objects and bytes in it then
- vanished: the server is killed after some steps: exit code, warnings, digests as alone
- refused: nobody listens: exit code, seconds until it is said
- cluster: three nodes that share no folder, files through the bucket: digests as alone
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    PORT = probe.getsockname()[1]
os.environ |= {
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{PORT}",
}

from cluster import ACCELERATORS, PRECISIONS, Nodes, digests, project, sweep

BUCKET = "team"
KILL_AFTER = 8  # steps
PAIRS = len(ACCELERATORS) * len(PRECISIONS)


def served() -> subprocess.Popen[bytes]:
    """A server with an empty bucket."""
    import s3fs

    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", str(PORT)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while True:
        try:
            with socket.create_connection(("127.0.0.1", PORT), 1):
                break
        except OSError:
            time.sleep(0.1)
    s3fs.S3FileSystem(skip_instance_cache=True).mkdir(BUCKET)
    return server


def machine(scratch: Path, name: str, *options: str) -> dict[str, Any]:
    """The fleet on a machine of that name."""
    folder = scratch / name
    project(folder)
    started = time.monotonic()
    running = sweep(folder, "out", None, *options)
    _, told = running.communicate()
    return outcome(folder, running.returncode, told, started)


def outcome(folder: Path, code: int, told: str, started: float) -> dict[str, Any]:
    seconds = round(time.monotonic() - started, 1)
    fleet = json.loads(next(folder.glob("out/*-fleet/fleet.json")).read_bytes())
    ran = [step["step"] for step in fleet["steps"] if not step["hit"]]
    return {
        "exit_code": code,
        "seconds": seconds,
        "steps": len(fleet["steps"]),
        "ran": len(ran),
        "which": sorted(set(ran)),
        "warnings": told.count("the remote does not answer"),
        "digests": digests(folder / "out"),
    }


def vanished(scratch: Path, server: subprocess.Popen[bytes], *options: str) -> dict[str, Any]:
    folder = scratch / "vanished"
    project(folder)
    started = time.monotonic()
    running = sweep(folder, "out", None, *options)
    while len(list(folder.glob("out/cache/steps/*/*"))) < KILL_AFTER:
        assert running.poll() is None, running.communicate()[1]
        time.sleep(0.05)
    server.kill()
    server.wait()
    _, told = running.communicate()
    return outcome(folder, running.returncode, told, started)


def refused(scratch: Path, *options: str) -> dict[str, Any]:
    """Behind `vanished`: nobody listens any more."""
    folder = scratch / "refused"
    project(folder)
    started = time.monotonic()
    running = sweep(folder, "out", None, *options)
    out, _ = running.communicate()
    return {
        "exit_code": running.returncode,
        "seconds": round(time.monotonic() - started, 1),
        "said": json.loads(out)["results"][0]["error"]["message"],
    }


def clustered(scratch: Path, *options: str) -> dict[str, Any]:
    folder = scratch / "cluster"
    project(folder)
    nodes = Nodes(folder / "stores")
    try:
        started = time.monotonic()
        running = sweep(folder, "out", nodes.fake.address, *options)
        _, told = running.communicate()
        return outcome(folder, running.returncode, told, started)
    finally:
        nodes.fake.shutdown()


def bucket() -> dict[str, int]:
    import s3fs

    found = s3fs.S3FileSystem(skip_instance_cache=True).find(BUCKET, detail=True).values()
    return {"objects": len(found), "bytes": sum(one["size"] for one in found)}


def main() -> None:
    scratch = Path(sys.argv[1]).absolute()
    remote = ("--remote", f"s3://{BUCKET}/optkit")
    found: dict[str, Any] = {"artifacts": PAIRS, "alone": machine(scratch, "alone")}
    server = served()
    try:
        found["machines"] = [machine(scratch, name, *remote) for name in ("one", "two")]
        found["bucket"] = bucket()
        found["vanished"] = vanished(scratch, server, "--remote", f"s3://{BUCKET}/other")
        found["refused"] = refused(scratch, *remote)
        server = served()
        found["cluster"] = clustered(scratch, *remote)
    finally:
        server.kill()
        server.wait()
    expected = found["alone"].pop("digests")
    for one in (*found["machines"], found["vanished"], found["cluster"]):
        one["same_digests"] = one.pop("digests") == expected
    Path(__file__).with_suffix(".json").write_text(f"{json.dumps(found, indent=1)}\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

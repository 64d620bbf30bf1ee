"""The same search with one trial at a time and with two, on a Ray cluster of two nodes.

    taskset -c 2,3 python experiments/fleet/searches.py SCRATCH

Two nodes of one core each on this machine, which lends them two cores. `optkit tune` of a recipe of
optkit's own for `l4`, as often with `--parallel 1` as with `--parallel 2`, in turn, each time from
a store of its own that has everything but the trials: the model is built and surveyed there before.
Seconds are those of the command: the trials, then the judgement and the artifact, which are one
after the other either way; `trials_seconds` are those until the last trial has ended, `load_before`
how many processes wanted a core of this machine before it began. Results go to `searches.json`
beside this file.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray.cluster_utils import Cluster as Fake

OPTKIT = (sys.executable, "-c", "from optkit.cli import main; main()")
SEARCH = ("tune", "--recipe", "digits-vit", "--target", "l4", "--min-sqnr", "35", "--seed", "0")
TRIALS, RUNS = 12, 2
CORES = 2
_STORE = 80 << 20  # bytes of Ray's object store; nothing of ours goes through it


def search(scratch: Path, address: str, name: str, trials: int, parallel: int) -> dict[str, Any]:
    """One command, and when its last trial had ended."""
    words = [*OPTKIT, *SEARCH, "--trials", str(trials), "--parallel", str(parallel), "--json",
             "--out", str(scratch / name), "--cache", str(scratch / name / "cache"),
             "--on", "ray"]  # fmt: skip
    started, last = time.monotonic(), 0.0
    running = subprocess.Popen(
        words, cwd=scratch, env={**os.environ, "RAY_ADDRESS": address}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert running.stdout is not None and running.stderr is not None
    for line in running.stderr:
        if re.search(rf" s  trial \d+ of {trials}: ", line):
            last = time.monotonic() - started
    found = json.loads(running.stdout.read())
    assert running.wait() in (0, 3), found["error"]
    best = next((point for point in found["front"] if point["chosen"]), found["front"][0])
    return {
        "parallel": parallel,
        "trials": found["search"]["trials"],
        "trials_seconds": round(last, 1),
        "seconds": round(time.monotonic() - started, 1),
        "chosen": {key: best[key] for key in ("latency_ms", "sqnr_db", "quantized")},
        "digest": found["digest"],
    }


def main() -> None:
    scratch, (before, *_) = Path(sys.argv[1]).absolute(), os.getloadavg()
    scratch.mkdir(parents=True, exist_ok=True)
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": _STORE}
    fake = Fake(initialize_head=True, head_node_args=head)
    rows = []
    try:
        for _ in range(CORES):
            fake.add_node(num_cpus=1, object_store_memory=_STORE)
        search(scratch, fake.address, "built", 1, 1)
        for run in range(RUNS):
            for parallel in (1, CORES):
                name = f"run-{run}-{parallel}"
                shutil.copytree(scratch / "built" / "cache", scratch / name / "cache")
                rows.append(search(scratch, fake.address, name, TRIALS, parallel))
                print(json.dumps(rows[-1]), file=sys.stderr)
    finally:
        ray.shutdown()
        fake.shutdown()

    def ratio(key: str) -> float:
        one, several = (
            median(row[key] for row in rows if row["parallel"] == p) for p in (1, CORES)
        )
        return round(one / several, 2)

    found = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": {"cores": len(os.sched_getaffinity(0)), "of": os.cpu_count(),
                    "load_before": round(before, 1),
                    "system": f"{platform.system()} {platform.machine()}"},
        "command": f"optkit {' '.join(SEARCH)} --trials {TRIALS} --parallel K --on ray",
        "nodes": CORES,
        "runs": rows,
        "times_as_fast": {key: ratio(key) for key in ("trials_seconds", "seconds")},
    }  # fmt: skip
    Path(__file__).with_suffix(".json").write_text(f"{json.dumps(found, indent=1)}\n")
    print(json.dumps(found["times_as_fast"]))


if __name__ == "__main__":
    main()

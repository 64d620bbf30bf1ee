"""optkit and its peers, side by side: the same workloads, data and machine, one table with ratios.

    python experiments/peers/run.py                # everything; docs/studies/benchmarks.md
    python experiments/peers/run.py --workload w3 --peer optkit  # a part; the rest as it was
    python experiments/peers/run.py --kept                   # nothing made: the page, anew
    python experiments/peers/run.py --quick                  # W1 with ONNX Runtime alone, no page

Run it with the interpreter that has optkit installed (with its `cpu` and `rtx` extras; `--quick`
also wants `torch` and `examples`, because it builds no environment). The first run makes the
workloads, of which it trains four, and builds one environment per peer in the cache
($OPTKIT_CACHE/peers or the user's cache folder; `--root`), which takes about half an hour on two
cores. Afterwards only what changed is done again: a peer's rows when its adapter or version
changes, optkit's whenever its source does, latency when any graph of that workload has changed.
`--fresh` repeats all of the named rows; `--again latency` repeats the timings alone, on a machine
that is quiet now.

    quantize   with_PEER.py in the peer's environment: seconds, peak memory of the process tree
    score      score.py: the task's metric and SQNR to FP32
    latency    latency.py: interleaved, two threads, spinning off, ratio to FP32 as exported
    landing    landing.py: compiled for compute capability 8.9 by TensorRT-RTX
    calibrate  ranges alone, on W3: memory and time per sample

Everything runs on `--cores` cores (default 2), whatever the machine has.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import environments
import feeds
import page
import platformdirs
import process
from configurations import CALIBRATIONS, CONFIGURATIONS, WORKLOADS, Calibration, Configuration
from environments import Environment
from kept import digest, keep, recall

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
BASE = "onnxruntime"  # the environment that trains, scores and times
PARTS = ("quantize", "score", "landing", "latency", "calibrate")


@dataclass
class Bench:
    """One run: where things are kept and what is to be done again."""

    root: Path
    peers: frozenset[str]  # whose rows are made; the others' are the last run's
    again: frozenset[str]
    seconds: float
    made: dict[str, Environment]

    def environment(self, name: str) -> Environment:
        if name not in self.made:
            self.made[name] = environments.ensure(self.root, name)
        return self.made[name]

    def call(self, environment: str, script: str, *parts: Any) -> process.Outcome:
        return process.run([self.environment(environment).python, HERE / script, *map(str, parts)])

    def answer(self, environment: str, script: str, *parts: Any) -> dict[str, Any]:
        """The script's JSON, or {"failure": reason}."""
        return self.call(environment, script, *parts).answer()

    def train(self, workload: str) -> None:
        if feeds.model(self.root, workload).exists():
            return
        print(f"{workload}: training, once", flush=True)
        outcome = self.call(BASE, "workloads.py", "--root", self.root, workload)
        if outcome.code:
            raise SystemExit(f"{workload}: {outcome.reason()}")


def quantize(bench: Bench, one: Configuration, named: bool) -> dict[str, Any]:
    """Seconds, memory and size of one row; the graph stays in quantized/<workload>/<row>/.

    A row that is not `named` is the last run's, even if its tool has changed since.
    """
    environment = bench.environment(one.peer)
    out = bench.root / "quantized" / one.workload / one.key
    record = out.with_suffix(".quantize.json")
    if not named:
        return recall(record)
    source = feeds.model(bench.root, one.workload)
    inputs = digest(one.options, source, *_code(one.peer), environment.versions)

    def make() -> dict[str, Any]:
        if environment.failure:
            return {"failure": environment.failure}
        print(f"{one.workload} {one.key}: quantizing", flush=True)
        shutil.rmtree(out, ignore_errors=True)
        record.unlink(missing_ok=True)
        options = json.dumps(one.options)
        parts = ("--root", bench.root, "--workload", one.workload, "--out", out)
        outcome = bench.call(one.peer, f"with_{one.peer}.py", *parts, "--options", options)
        measured = {"process_seconds": outcome.seconds, "peak_bytes": outcome.peak_bytes}
        answer = {**outcome.answer(), **measured, "options": one.options}
        return answer if "failure" in answer else {**answer, "bytes": _size(out)}

    return keep(record, inputs, make, fresh="quantize" in bench.again)


def _code(peer: str) -> list[Path]:
    """The sources that a peer's rows depend on."""
    own = [PROJECT / "optkit", HERE / "recipes"] if peer == "optkit" else []
    return [HERE / f"with_{peer}.py", HERE / "adapter.py", HERE / "feeds.py", *own]


def _size(folder: Path) -> int:
    """The graph and its external data."""
    graph = folder / "model.onnx"
    return sum(file.stat().st_size for file in folder.iterdir() if file.name.startswith(graph.name)
               or file.suffix == ".data")  # fmt: skip


def judge(bench: Bench, one: Configuration, row: dict[str, Any], named: bool) -> dict[str, Any]:
    """Add the score and the landing of a quantized graph to its row."""
    if "failure" in row:
        return row
    folder = bench.root / "quantized" / one.workload / one.key
    graph = folder / "model.onnx"
    asked = one.session or row.get("session", {})
    row = {**row, "session": asked}
    if one.runs or one.session:
        inputs = digest(graph, asked, HERE / "score.py", HERE / "sessions.py")
        parts = ("--root", bench.root, "--workload", one.workload, "--model", graph)
        row["score"] = keep(
            folder.with_suffix(".score.json"),
            inputs,
            lambda: bench.answer(BASE, "score.py", *parts, "--session", json.dumps(asked)),
            fresh=named and "score" in bench.again,
        )
    if one.lands:
        versions = bench.environment("optkit").versions
        row["landing"] = keep(
            folder.with_suffix(".landing.json"),
            digest(graph, HERE / "landing.py", versions.get("tensorrt-rtx")),
            lambda: bench.answer("optkit", "landing.py", "--model", graph),
            fresh=named and "landing" in bench.again,
        )
    return row


def baseline(bench: Bench, workload: str) -> dict[str, Any]:
    """FP32 as exported: its size, score and layers."""
    source = feeds.model(bench.root, workload)
    inputs = digest(source, HERE / "score.py", HERE / "landing.py", HERE / "sessions.py")

    def make() -> dict[str, Any]:
        parts = ("--root", bench.root, "--workload", workload, "--model", source)
        return {
            "bytes": source.stat().st_size,
            "score": bench.answer(BASE, "score.py", *parts),
            "landing": bench.answer("optkit", "landing.py", "--model", source),
        }

    return keep(bench.root / "quantized" / f"{workload}.fp32.json", inputs, make)


def latency(bench: Bench, workload: str, rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Batch size → name → times; all graphs of the workload that run, and FP32, in one process."""
    models: list[tuple[str, Path, dict[str, Any]]] = [
        ("fp32", feeds.model(bench.root, workload), {})
    ]
    for one in CONFIGURATIONS:
        row = rows.get(one.key) if one.workload == workload and one.runs else None
        if row and "failure" not in row.get("score", {"failure": None}):
            folder = bench.root / "quantized" / workload / one.key
            models.append((one.key, folder / "model.onnx", row["session"]))
    asked = [(name, str(model), session) for name, model, session in models]
    own = (HERE / "latency.py", HERE / "sessions.py")
    inputs = digest(asked, *(model for _, model, _ in models), *own)
    found = {}
    for batch in WORKLOADS[workload].batches:
        parts = ("--root", bench.root, "--workload", workload, "--batch", batch)

        def make(parts: tuple[Any, ...] = parts) -> dict[str, Any]:
            print(f"{workload}: timing {len(models)} graphs, batch {parts[-1]}", flush=True)
            last = ("--seconds", bench.seconds, "--models", json.dumps(asked))
            return {**bench.answer(BASE, "latency.py", *parts, *last), "load": os.getloadavg()[0]}

        file = bench.root / "quantized" / f"{workload}.latency{batch}.json"
        if not bench.peers:
            found[str(batch)] = recall(file)
            continue
        found[str(batch)] = keep(file, inputs, make, fresh="latency" in bench.again)
    return found


def calibrate(bench: Bench, one: Calibration, named: bool) -> dict[str, Any]:
    """Ranges of every tensor of W3: seconds, and the peak memory of the process tree; of optkit,
    whose command does more, of its calibration step."""
    name = f"{one.peer}-{one.name}-{one.options['samples']}".replace(" ", "-")
    about = {"peer": one.peer, "name": one.name, "samples": one.options["samples"]}
    out = bench.root / "calibrated" / name
    if not named:
        return {**about, **recall(out.with_suffix(".json"))}
    environment = bench.environment(one.peer)
    source = feeds.model(bench.root, "w3")

    def make() -> dict[str, Any]:
        if environment.failure:
            return {"failure": environment.failure}
        print(f"calibrating {name}", flush=True)
        parts = ("--root", bench.root, "--workload", "w3", "--out", out)
        options = json.dumps(one.options)
        outcome = bench.call(one.peer, f"with_{one.peer}.py", *parts, "--options", options)
        answer = outcome.answer()
        if "failure" in answer:
            return answer
        seconds = answer.get("steps", {}).get("calibrate", answer["seconds"])
        peak = answer.get("peaks", {}).get("calibrate", outcome.peak_bytes)
        return {"seconds": seconds, "peak_bytes": peak}

    inputs = digest(one.options, source, *_code(one.peer), environment.versions)
    kept = keep(out.with_suffix(".json"), inputs, make, fresh="calibrate" in bench.again)
    shutil.rmtree(out, ignore_errors=True)
    return {**about, **kept}


def machine(cores: list[int]) -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    models = [line.split(":", 1)[1].strip() for line in text.splitlines() if "model name" in line]
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    wanted = ("avx2", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8")
    return {
        "cpu": models[0] if models else platform.processor(),
        "features": [name for name in wanted if f" {name}" in flags],
        "cores": len(cores),
        "of": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def everything(bench: Bench, options: argparse.Namespace, cores: list[int]) -> dict[str, Any]:
    """All results as one object: what was asked for now, the rest as it was kept."""
    workloads = options.workload or list(WORKLOADS)
    found: dict[str, Any] = {
        "schema": "optkit.peers/v1",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine(cores),
        "workloads": {},
    }
    for workload in workloads:
        bench.train(workload)
        rows = {}
        for one in CONFIGURATIONS:
            if one.workload != workload or (options.quick and one.peer != BASE):
                continue
            named = one.peer in bench.peers
            rows[one.key] = judge(bench, one, quantize(bench, one, named), named)
        found["workloads"][workload] = {
            "fp32": baseline(bench, workload),
            "rows": rows,
            "latency": latency(bench, workload, rows),
        }
    if "w3" in workloads and not options.quick:
        found["calibration"] = [
            calibrate(bench, one, one.peer in bench.peers) for one in CALIBRATIONS
        ]
    found["versions"] = {name: one.versions for name, one in sorted(bench.made.items())}
    found["failures"] = {name: one.failure for name, one in bench.made.items() if one.failure}
    return found


def main() -> None:
    options = _options()
    cores = sorted(os.sched_getaffinity(0))[: options.cores]
    os.sched_setaffinity(0, cores)
    again = frozenset(PARTS if options.fresh else options.again)
    everyone = {one.peer for one in CONFIGURATIONS}
    peers = frozenset(() if options.kept else options.peer or everyone)
    root = options.root.resolve()
    root.mkdir(parents=True, exist_ok=True)
    bench = Bench(root, peers, again, 2 if options.quick else options.seconds, {})
    if options.quick:  # this interpreter has torch and ONNX Runtime: build nothing
        python = Path(sys.executable)
        bench.made[BASE] = Environment(BASE, python, environments.versions(python))
    found = everything(bench, options, cores)
    written = json.dumps(found, indent=1)
    (root / "results.json").write_text(written + "\n")
    if options.quick:
        print(written)
    elif set(found["workloads"]) == set(WORKLOADS):
        options.page.write_text(page.write(found))
        print(options.page)


def _options() -> argparse.Namespace:
    cache = os.environ.get("OPTKIT_CACHE") or platformdirs.user_cache_dir("optkit")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=Path(cache) / "peers", help="the cache")
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS))
    peers = sorted({one.peer for one in CONFIGURATIONS})
    parser.add_argument("--peer", action="append", choices=peers, help="whose rows to make")
    parser.add_argument("--fresh", action="store_true", help="repeat the named rows")
    parser.add_argument("--again", action="append", default=[], choices=PARTS)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60, help="per workload and batch size")
    parser.add_argument("--page", type=Path, default=PROJECT / "docs/studies/benchmarks.md")
    parser.add_argument("--kept", action="store_true", help="make nothing, write the page anew")
    parser.add_argument("--quick", action="store_true", help="W1, ONNX Runtime alone, no page")
    options = parser.parse_args()
    if options.quick:
        options.workload = ["w1"]
    return options


if __name__ == "__main__":
    main()

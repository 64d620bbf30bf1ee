"""The detector of examples/05_digit_detector in FP32, FP16, INT8 and FP8: optkit beside its peers.

    python experiments/detector/run.py SCRATCH

Run it with the interpreter that has optkit installed (with its `cpu`, `rtx` and `torch` extras).
SCRATCH gets the exported graph, the quantized ones, and an environment for each peer. A graph that
is there is not made again. Writes results.json and results.md beside itself.

    quantize   optkit by the recipe `digit-detector`; each peer, in its environment, by the
               adapters of experiments/peers, on the graph that torch exported, with the same 256
               scenes
    score      mean average precision in ONNX Runtime on the CPU, on the scenes of the recipe's
               task; the drop from optkit's FP16 graph, with a paired bootstrap over scenes
    latency    all graphs that a CPU can run, interleaved in one process, two threads
    landing    compiled for compute capability 8.9 by TensorRT-RTX
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import optkit
from optkit.craft.benchmarking import accuracy, paired_drop
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Score
from optkit.facts.tensors import Feed

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PEERS = HERE.parent / "peers"
EXAMPLE = ROOT / "examples" / "05_digit_detector"
sys.path[:0] = [str(PEERS), str(EXAMPLE)]

import environments  # noqa: E402
import model as detector  # noqa: E402
import process  # noqa: E402
import results_page  # noqa: E402
import samples as calibration  # noqa: E402
import task  # noqa: E402
from sessions import session  # noqa: E402

NAME = "detector"
INPUT, OUTPUT = "image", "detections"
SAMPLES = 256
HERE_RUNS = "onnxruntime"  # the peer that needs no environment of its own
OFF = {"level": "ORT_DISABLE_ALL"}  # higher levels damage the FP16 graph


@dataclass(frozen=True)
class Row:
    """One graph of the table. `peer`: optkit, or whose adapter `script` is; `options`: those of the
    adapter, or target and precision; `session`: options of ONNX Runtime; `timed`: a CPU has kernels
    for it; `lands`: it is compiled for an L4."""

    name: str
    peer: str
    options: Mapping[str, Any]
    script: Path = Path()
    session: Mapping[str, Any] = field(default_factory=dict)
    timed: bool = False
    lands: bool = True

    @property
    def key(self) -> str:
        return self.name.lower().replace(",", "").replace(" ", "-")


def ours(target: str, precision: str) -> Row:
    on_cpu = target == "cpu"
    name = f"optkit {precision.upper()}, {target}"
    options = {"target": target, "precision": precision}
    # as in optkit's own sessions
    own = {"disabled_optimizers": ["MatMulAddFusion", "WeightBiasQuantization"]}
    return Row(name, "optkit", options, session=own, timed=on_cpu, lands=not on_cpu)


def peer(name: str, environment: str, script: Path, timed: bool = True, **options: Any) -> Row:
    found = {"samples": SAMPLES, **options}
    return Row(name, environment, found, script, {} if timed else OFF, timed)


FP16 = ours("l4", "fp16")
ROWS = (
    FP16,
    ours("l4", "int8"),
    ours("l4", "fp8"),
    ours("cpu", "int8"),
    peer("ONNX Runtime static, defaults", HERE_RUNS, HERE / "defaults_of_onnxruntime.py",
         method="static"),
    peer("ONNX Runtime static, per channel", HERE_RUNS, PEERS / "with_onnxruntime.py",
         method="static"),
    peer("ONNX Runtime dynamic, defaults", HERE_RUNS, HERE / "defaults_of_onnxruntime.py",
         method="dynamic"),
    peer("NNCF, defaults", "nncf", PEERS / "with_nncf.py"),
    peer("ModelOpt INT8, defaults", "modelopt", PEERS / "with_modelopt.py", timed=False,
         mode="int8", method="entropy", carrier="fp16"),
    peer("ModelOpt INT8, FP32 carrier", "modelopt", PEERS / "with_modelopt.py",
         mode="int8", method="entropy"),
)  # fmt: skip


def export(root: Path) -> Path:
    """The FP32 graph as torch exports it, and the samples of calibration and of latency."""
    import torch
    from safetensors.torch import load_file
    from workloads import write

    folder = root / "models"
    graph = folder / f"{NAME}.onnx"
    if graph.exists():
        return graph
    folder.mkdir(parents=True, exist_ok=True)
    model = detector.create()
    weights = load_file(EXAMPLE / "weights.safetensors")
    model.load_state_dict(
        {k: v.float() if v.is_floating_point() else v for k, v in weights.items()}
    )
    feeds = [feed[INPUT] for feed in calibration.samples()]
    tested, _ = next(task.samples())
    arrays = {f"calibration.{INPUT}": np.concatenate(feeds), f"test.{INPUT}": tested[INPUT]}
    example = (torch.from_numpy(tested[INPUT][:2]),)
    write(model, example, [INPUT], OUTPUT, arrays, NAME, folder)
    return graph


def made(root: Path, row: Row) -> dict[str, Any]:
    """The facts of a row whose graph is made now or was made before: `graph`, `bytes`; for optkit
    `artifact` and its `gate`. {"failure": reason} if its tool fails."""
    record = root / "quantized" / f"{row.key}.json"
    if record.exists():
        return json.loads(record.read_text())  # type: ignore[no-any-return]
    print(f"{row.name}: quantizing", flush=True)
    found = build(root, row) if row.peer == "optkit" else quantize(root, row)
    if "failure" not in found:
        found["bytes"] = Path(found["graph"]).stat().st_size
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(found, indent=1))
    return found


def build(root: Path, row: Row) -> dict[str, Any]:
    start = "from optkit.cli import main; main()"  # what the `optkit` script does
    outcome = process.run([
        sys.executable, "-c", start, "build", "--recipe", "digit-detector", "--json",
        "--target", row.options["target"], "--precision", row.options["precision"],
        "--out", root / "artifacts", "--cache", root / "store",
    ])  # fmt: skip
    result = json.loads(outcome.out) if outcome.code in (0, 3) else {}
    if "artifact" not in result:
        return {"failure": outcome.reason()}
    folder = Path(result["artifact"])
    manifest = optkit.load(folder).manifest
    on_cpu = row.options["target"] == "cpu"
    file = manifest.engine.file if on_cpu and manifest.engine else "model.onnx"
    return {"graph": str(folder / file), "artifact": str(folder), "gate": result["gate"]}


def quantize(root: Path, row: Row) -> dict[str, Any]:
    if row.peer == HERE_RUNS:
        python = Path(sys.executable)
    else:
        environment = environments.ensure(root, row.peer)
        if environment.failure is not None:
            return {"failure": environment.failure}
        python = environment.python
    out = root / "quantized" / row.key
    shutil.rmtree(out, ignore_errors=True)
    answer = process.run([
        python, row.script, "--root", root, "--workload", NAME, "--out", out,
        "--options", json.dumps(row.options),
    ]).answer()  # fmt: skip
    return answer if "failure" in answer else {"graph": str(out / "model.onnx")}


def runner(row: Row | None, facts: Mapping[str, Any]) -> Callable[[Feed], Feed]:
    """A function that runs the graph of a row on the CPU; of optkit's, as its artifact does."""
    if "artifact" in facts:
        return optkit.load(facts["artifact"]).run
    opened = session(Path(facts["graph"]), dict(row.session) if row else {})
    names = [one.name for one in opened.get_outputs()]
    dtype = np.float16 if "float16" in opened.get_inputs()[0].type else np.float32

    def run(feed: Feed) -> Feed:
        given = {name: array.astype(dtype) for name, array in feed.items()}
        return dict(zip(names, opened.run(None, given), strict=True))

    return run


@dataclass(frozen=True)
class Precision:
    """mAP@.5:.95 with its resamples, and mAP@.5."""

    score: Score
    at_half: float


def scored(run: Callable[[Feed], Feed]) -> Precision:
    rows = []
    for feed, labels in task.samples():
        outputs = {name: np.asarray(array, np.float32) for name, array in run(feed).items()}
        rows.append(task.score(outputs, labels))
    whole = task.combine(np.concatenate(rows))
    score = accuracy.from_samples(
        whole, metric=task.metric(), evidence=Evidence.SIMULATED, weighted=task.weighted
    )
    return Precision(score, task.weighted(whole, overlap="50")(np.ones(len(whole))))


def lost(baseline: Precision, one: Precision) -> dict[str, float] | None:
    """The drop of mAP@.5:.95 in points with its 95 % interval; None for the baseline itself."""
    if one is baseline:
        return None
    drop = paired_drop.drop(baseline.score, one.score)
    assert drop.ci95 is not None
    points = 100 * baseline.score.value
    return {"points": points * drop.value, "low": points * drop.ci95.low,
            "high": points * drop.ci95.high}  # fmt: skip


def latency(root: Path, facts: Mapping[str, Mapping[str, Any]], seconds: float) -> dict[str, Any]:
    """Batch size → name → times, of FP32 and all graphs that a CPU has kernels for."""
    models = [("FP32", facts["FP32"]["graph"], {})]
    models += [
        (row.name, facts[row.name]["graph"], dict(row.session))
        for row in ROWS
        if row.timed and "graph" in facts[row.name]
    ]
    found = {}
    for batch in results_page.BATCHES:
        print(f"timing {len(models)} graphs, batch {batch}", flush=True)
        command = [
            sys.executable, PEERS / "latency.py", "--root", root, "--workload", NAME, "--batch",
            str(batch), "--seconds", str(seconds), "--models", json.dumps(models),
        ]  # fmt: skip
        found[str(batch)] = process.run(command).answer()
    return found


def landing(graph: str) -> dict[str, Any]:
    return process.run([sys.executable, PEERS / "landing.py", "--model", graph]).answer()


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cpu": name or platform.processor(),
        "vnni": any("avx512_vnni" in line or "avx_vnni" in line for line in lines),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
    }


def versions(root: Path) -> dict[str, dict[str, str]]:
    peers = sorted({row.peer for row in ROWS} - {"optkit", HERE_RUNS})
    return {
        "optkit": environments.versions(Path(sys.executable)),
        **{name: environments.ensure(root, name).versions for name in peers},
    }


def everything(root: Path, seconds: float) -> dict[str, Any]:
    fp32 = export(root)
    facts: dict[str, dict[str, Any]] = {
        "FP32": {"graph": str(fp32), "bytes": fp32.stat().st_size},
        **{row.name: made(root, row) for row in ROWS},
    }
    by_name = {row.name: row for row in ROWS}
    precisions: dict[str, Precision] = {}
    for name in [FP16.name, *(name for name in facts if name != FP16.name)]:
        one = facts[name]
        if "failure" in one:
            continue
        print(f"{name}: scoring", flush=True)
        try:
            precisions[name] = scored(runner(by_name.get(name), one))
        except Exception as error:  # ONNX Runtime's own types derive from Exception directly
            one["failure"] = f"does not run: {error}"[:200]
            continue
        found = precisions[name]
        one |= {"map": found.score.value, "map50": found.at_half, "scenes": found.score.samples}
        one["drop"] = lost(precisions[FP16.name], found)
        if name in by_name and by_name[name].lands:
            one["landing"] = landing(one["graph"])
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "versions": versions(root),
        "rows": {name: _told(one) for name, one in facts.items()},
        "latency": latency(root, facts, seconds),
    }


def _told(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Without the paths of this machine."""
    return {key: value for key, value in facts.items() if key not in ("graph", "artifact")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scratch", type=Path, help="where graphs and environments are kept")
    parser.add_argument("--seconds", type=float, default=60, help="of timing per batch size")
    options = parser.parse_args()
    root = options.scratch.resolve()
    root.mkdir(parents=True, exist_ok=True)
    found = everything(root, options.seconds)
    (HERE / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    (HERE / "results.md").write_text(results_page.write(found))
    print(results_page.table(found))


if __name__ == "__main__":
    main()

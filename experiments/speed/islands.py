"""From how many multiplications per converted element does an island of integer convolutions pay?

    python experiments/speed/islands.py SCRATCH NAME ...

NAME: a model of timm. Weights and samples are random. Each model is quantized for this CPU several
times: islands with fewer multiplications per element at their borders than a threshold stay in
float (`quantization.nodes`), and all graphs are timed in turn with all cores. The rule of the
backend is switched off. Run it with an interpreter that has optkit and timm; for AVX2 on a machine
with VNNI, time the graphs of SCRATCH again with `--time` and the interpreter that
`python -m tests.avx2.environment build/avx2` makes (build/avx2/bin/python).

Prints FP32 / INT8 of the least latencies, in brackets of the medians.
"""

from __future__ import annotations

import argparse
import shutil
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

THRESHOLDS = (0, 15, 30, 60, 100, 150, 200)
SECONDS = 12.0


def quantized(name: str, side: int, scratch: Path) -> None:
    """Write the float graph and one quantized graph per threshold, unless they are there."""
    import timm
    import torch

    from optkit import graph, pipeline
    from optkit.api import jobs
    from optkit.assignment import Scheme
    from optkit.devices import target
    from optkit.precisions import PRECISIONS
    from optkit.quantization.placement.assign import assign
    from optkit.quantization.placement.islands import islands
    from optkit.runtimes import backend
    from optkit.steps.files import GRAPH
    from optkit.workspace import Workspace

    torch.manual_seed(0)
    net, samples = timm.create_model(name).eval(), torch.randn(16, 3, side, side)
    runner = Workspace(scratch / "cache", listener=None).runner()
    plain = backend("onnxruntime").rules(target("cpu"), PRECISIONS["int8"])
    rules = replace(plain, least_per_border=None)
    found, before = None, None
    for threshold in THRESHOLDS:
        nodes = {} if found is None else {
            node: "fp32" for island in found if island.macs < threshold * island.converted
            for node in island.nodes
        }  # fmt: skip
        if found is not None and nodes == before:
            continue  # the same graph as that of the threshold before
        before = nodes
        # a pattern that names every node switches the rule of the backend off
        recipe = {"axes": {"batch": {"min": 1, "opt": 1, "max": 8}},
                  "quantization": {"effort": "fast", "nodes": {"*": "int8", **nodes}}}  # fmt: skip
        job = jobs.job_of(
            net, samples[:2], jobs.pair("cpu", "int8"), recipe=recipe,
            calibration=list(samples.split(2)), name=None, runner=runner,
        )  # fmt: skip
        build = pipeline.run(job, runner, pipeline.QUANTIZE)
        assert build.quantized is not None
        if found is None:
            model = graph.load(build.fused.path / GRAPH)
            planned = assign(model, Scheme("int8", "fp32", {"int8": rules})).quantized()
            convolutions = [n.name for n in model.graph if n.op_type == "Conv"]
            found = islands(model, [str(n) for n in convolutions if n in planned])
            shutil.copyfile(build.fused.path / GRAPH, scratch / f"{name}.float.onnx")
        shutil.copyfile(build.quantized.path / GRAPH, scratch / f"{name}.{threshold}.onnx")


def timed(name: str, side: int, scratch: Path) -> None:
    import onnxruntime

    from optkit.backends.ort_session import DISABLED

    names = ["float", *(str(each) for each in THRESHOLDS)]
    files = {each: scratch / f"{name}.{each}.onnx" for each in names}
    sessions = {
        each: onnxruntime.InferenceSession(
            file, disabled_optimizers=list(DISABLED), providers=["CPUExecutionProvider"]
        )
        for each, file in files.items()
        if file.exists()
    }
    for batch in (1, 8):
        x = np.random.default_rng(0).random((batch, 3, side, side), dtype=np.float32)
        times: dict[str, list[float]] = {each: [] for each in sessions}
        started = time.monotonic()
        while time.monotonic() - started < SECONDS or len(times["float"]) < 3:
            for each, session in sessions.items():
                began = time.perf_counter()
                session.run(None, {session.get_inputs()[0].name: x})
                times[each].append(time.perf_counter() - began)
        slow = times.pop("float")
        row = [f"{each}: {min(slow) / min(t):.2f} ({median(slow) / median(t):.2f})"
               for each, t in times.items()]  # fmt: skip
        print(f"{name}, batch {batch}, FP32 {1e3 * min(slow):.1f} ms; " + ", ".join(row))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scratch", type=Path)
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--side", type=int, default=224, help="of the pictures; default 224")
    parser.add_argument("--time", action="store_true", help="only time the graphs of SCRATCH")
    args = parser.parse_args()
    args.scratch.mkdir(parents=True, exist_ok=True)
    for name in args.names:
        if not args.time:
            quantized(name, args.side, args.scratch)
        timed(name, args.side, args.scratch)


if __name__ == "__main__":
    main()

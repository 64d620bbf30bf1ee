"""By how much must an island of integer convolutions save more than its borders cost?

    python experiments/speed/islands.py SCRATCH NAME ...

NAME: a model of timm. Weights and samples are random. Each model is quantized several times for the
CPU of `--kind`, with borders that cost so many times as much as `optkit/devices/data/cpu-*.yaml`
says (0: all islands are in integers; `MARGIN` in optkit/quantization/placement/islands.py: what a
build does), and all graphs are timed in turn. Run it with an interpreter that has optkit and timm;
for AVX2 on a machine with VNNI, write the graphs with `--quantize --kind cpu-avx2`, and time them
with `--time` and the interpreter that `python -m tests.avx2.environment build/avx2` makes
(build/avx2/bin/python).

Prints how many products are in integers, and FP32 / INT8 of the least latencies, in brackets of the
medians.
"""

from __future__ import annotations

import argparse
import shutil
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from optkit.devices import target
from optkit.placement import OperatorSpeed
from optkit.precisions import PRECISIONS

FACTORS = (0.0, 1.0, 1.5, 2.0, 3.0)
SECONDS = 12.0


def quantized(name: str, side: int, scratch: Path, kind: str) -> None:
    """Write the float graph and one quantized graph per factor that changes it."""
    import timm
    import torch

    from optkit import graph, pipeline
    from optkit.api import jobs
    from optkit.assignment import Scheme
    from optkit.backends.onnxruntime import OnnxRuntime
    from optkit.calibration import observe
    from optkit.quantization.choose_qparams import choose_qparams
    from optkit.quantization.placement.assign import assign
    from optkit.quantization.qdq.apply import apply, taps
    from optkit.recipe import Quantization
    from optkit.runtimes import SessionOptions
    from optkit.steps.files import GRAPH
    from optkit.workspace import Workspace

    torch.manual_seed(0)
    net, samples = timm.create_model(name).eval(), torch.randn(8, 3, side, side)
    runner = Workspace(scratch / "cache", listener=None).runner()
    job = jobs.job_of(
        net, samples[:2], jobs.pair("cpu", "int8"), calibration=[samples], name=None, runner=runner,
        recipe={"axes": {"batch": {"min": 1, "opt": 1, "max": 8}}},
    )  # fmt: skip
    build = pipeline.run(job, runner, pipeline.FUSE)
    source = scratch / f"{name}.float.onnx"
    shutil.copyfile(build.fused.path / GRAPH, source)
    model = graph.load(source)
    rules = OnnxRuntime().rules(target(kind), PRECISIONS["int8"])
    assert rules.kernels is not None
    everywhere = {"int8": replace(rules, kernels=None)}
    wanted = taps(model, assign(model, Scheme("int8", "fp32", everywhere)), everywhere)
    tapped = scratch / "tapped.onnx"
    graph.save(graph.expose(model, [tap.name for tap in wanted]), tapped)
    with OnnxRuntime().session(tapped, SessionOptions(spinning=False)) as session:
        feeds = [{session.inputs[0].name: samples.numpy()}]
        seen = observe(session, feeds, wanted, memory_bytes=1 << 30, progress=lambda *_: None)
    before = None
    for factor in FACTORS:
        costing = {
            key: scaled(getattr(rules.kernels, key), factor) for key in ("conversion", "sum")
        }
        chosen = {"int8": replace(rules, kernels=replace(rules.kernels, **costing))}
        assignment = assign(model, Scheme("int8", "fp32", chosen), seen)
        planned = assignment.quantized()
        if planned == before:
            continue
        before = planned
        qparams = choose_qparams(
            model, assignment, seen, chosen, Quantization(weights="rtn", bias_correction=False),
            method="minmax", percentile=99.99, carrier=np.float32,
        )  # fmt: skip
        changed = model.clone()
        apply(changed, qparams, assignment, chosen, seen, scale_dtype=np.float32, simulated=False)
        graph.save(changed, scratch / f"{name}.{factor}.onnx")
        every = len(assignment.nodes)
        print(f"{name}, {kind}: {len(planned)} of {every} in integers with {factor}", flush=True)


def scaled(speed: OperatorSpeed, factor: float) -> OperatorSpeed:
    return OperatorSpeed(speed.element_ns * factor, speed.operator_us * factor)


def timed(name: str, side: int, scratch: Path, threads: int) -> None:
    import onnxruntime

    from optkit.backends.ort_session import DISABLED

    names = ["float", *(str(each) for each in FACTORS)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    files = {each: scratch / f"{name}.{each}.onnx" for each in names}
    sessions = {
        each: onnxruntime.InferenceSession(
            file, options, disabled_optimizers=list(DISABLED), providers=["CPUExecutionProvider"]
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
        head = f"{name}, batch {batch}, FP32 {1e3 * min(slow):.1f} ms; "
        print(head + ", ".join(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scratch", type=Path)
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--side", type=int, default=224, help="of the pictures; default 224")
    parser.add_argument("--time", action="store_true", help="only time the graphs of SCRATCH")
    parser.add_argument("--kind", default="cpu", help="the CPU whose speeds decide; default cpu")
    parser.add_argument("--threads", type=int, default=0, help="of the timing; default all cores")
    parser.add_argument("--quantize", action="store_true", help="only write the graphs")
    args = parser.parse_args()
    args.scratch.mkdir(parents=True, exist_ok=True)
    for name in args.names:
        if not args.time:
            quantized(name, args.side, args.scratch, args.kind)
        if not args.quantize:
            timed(name, args.side, args.scratch, args.threads)


if __name__ == "__main__":
    main()

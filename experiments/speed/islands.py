"""From how many multiplications per converted element does an island of integer convolutions pay?

    python experiments/speed/islands.py SCRATCH NAME ...

NAME: a model of timm. Weights and samples are random. Each model is quantized for this CPU several
times, with thresholds in place of that of the backend, and all graphs are timed in turn with all
cores. Run it with an interpreter that has optkit and timm; for AVX2 on a machine
with VNNI, time the graphs of SCRATCH again with `--time` and the interpreter that
`python -m tests.avx2.environment build/avx2` makes (build/avx2/bin/python).

Prints FP32 / INT8 of the least latencies, in brackets of the medians.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from statistics import median

import numpy as np

THRESHOLDS = (0, 30, 60, 100, 150, 200)
SECONDS = 12.0


def quantized(name: str, side: int, scratch: Path) -> None:
    """Write the float graph and one quantized graph per threshold that changes it."""
    import timm
    import torch

    from optkit import pipeline
    from optkit.api import jobs
    from optkit.backends import onnxruntime
    from optkit.steps.files import GRAPH
    from optkit.workspace import Workspace

    torch.manual_seed(0)
    net, samples = timm.create_model(name).eval(), torch.randn(16, 3, side, side)
    runner = Workspace(scratch / "cache", listener=None).runner()
    recipe = {"axes": {"batch": {"min": 1, "opt": 1, "max": 8}}, "quantization": {"effort": "fast"}}
    before = None
    for threshold in THRESHOLDS:
        onnxruntime._LEAST_PER_BORDER = (threshold, threshold)
        job = jobs.job_of(
            net, samples[:2], jobs.pair("cpu", "int8"), recipe=recipe,
            calibration=list(samples.split(2)), name=None, runner=runner,
        )  # fmt: skip
        build = pipeline.run(job, runner, pipeline.QUANTIZE)
        assert build.quantized is not None
        shutil.copyfile(build.fused.path / GRAPH, scratch / f"{name}.float.onnx")
        if build.planned != before:
            shutil.copyfile(build.quantized.path / GRAPH, scratch / f"{name}.{threshold}.onnx")
        before = build.planned


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

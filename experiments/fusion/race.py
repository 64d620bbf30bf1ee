"""Sessions of ONNX Runtime, timed in turns so that what else the machine does hits all alike."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

Feed = dict[str, np.ndarray]
WARM_UP = 3


def session(
    model: Path | bytes, threads: int, *, optimized: bool = True
) -> onnxruntime.InferenceSession:
    """On the CPU, all optimizations or none; its threads sleep when idle."""
    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = (
        levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    )
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    given = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


def race(
    sessions: Mapping[str, onnxruntime.InferenceSession], feed: Feed, rounds: int
) -> dict[str, np.ndarray]:
    """Seconds of every run by session, in rounds in which each runs once, another one first."""
    taken: dict[str, list[float]] = {name: [] for name in sessions}
    names = list(sessions)
    for at in range(-WARM_UP, rounds):
        for name in names[at % len(names) :] + names[: at % len(names)]:
            start = time.perf_counter()
            sessions[name].run(None, feed)
            if at >= 0:
                taken[name].append(time.perf_counter() - start)
    return {name: np.array(times) for name, times in taken.items()}


def ratio(before: np.ndarray, after: np.ndarray) -> dict[str, float]:
    """How many times as fast, round by round: the median and the quartiles."""
    low, median, high = np.percentile(before / after, [25, 50, 75])
    return {"ratio": round(median, 3), "low": round(low, 3), "high": round(high, 3)}


def circumstances(threads: int, *packages: str) -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(": ")[1] for line in lines if "model name" in line), "")
    return {
        "date": date.today().isoformat(),
        "processor": name or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "load": round(os.getloadavg()[0], 1),
        "versions": {package: version(package) for package in packages},
    }

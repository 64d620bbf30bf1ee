"""One form of a model on the held-out samples: agreement, SQNR and latency beside the model as
shipped. Plain tools must accept every graph of an artifact (tests/plain_tools.py). Runs in a
process of its own, so that a crash in a runtime is a result, not the end.

    python measure.py '{"model": …, "form": …, "held": …, "decision": …, "seconds": …}'

Prints one JSON object. `form`: an artifact's folder, or an .onnx.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
from decisions import DECISIONS, Outputs
from keeping import rows

import optkit
from tests.plain_tools import accepted

Run = Callable[[dict[str, np.ndarray]], Outputs]


def plain(path: str) -> tuple[Run, list[str], list[str]]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = [info.name for info in session.get_inputs()]
    outputs = [info.name for info in session.get_outputs()]
    return lambda feed: session.run(outputs, {name: feed[name] for name in inputs}), inputs, outputs


def form(path: str, inputs: list[str], outputs: list[str]) -> Run:
    if Path(path).suffix == ".onnx":
        return plain(path)[0]
    session = optkit.load(path).session(threads=1)

    def run(feed: dict[str, np.ndarray]) -> Outputs:
        found = session.run({name: feed[name] for name in inputs})
        return [found[name] for name in outputs]

    return run


def sqnr(ours: list[Outputs], theirs: list[Outputs]) -> float | None:
    """The lowest of all outputs, in dB; None without any error."""
    lowest = math.inf
    for number in range(len(ours[0])):
        signal = sum(float(np.sum(np.square(row[number], dtype=np.float64))) for row in ours)
        noise = sum(
            float(np.sum(np.square(one[number].astype(np.float64) - other[number])))
            for one, other in zip(ours, theirs, strict=True)
        )
        if noise:
            lowest = min(lowest, 10 * math.log10(signal / noise) if signal else -math.inf)
    return lowest if math.isfinite(lowest) else None


def ratio(shipped: Run, other: Run, feed: dict[str, np.ndarray], seconds: float) -> float:
    """Median time of the model as shipped over that of the other, one run each in turn."""
    times: tuple[list[float], list[float]] = ([], [])
    for run in (shipped, other) * 3:
        run(feed)
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times[0]) < 5:
        for run, kept in zip((shipped, other), times, strict=True):
            start = time.perf_counter()
            run(feed)
            kept.append(time.perf_counter() - start)
    return float(np.median(times[0]) / np.median(times[1]))


def main() -> None:
    asked = json.loads(sys.argv[1])
    held = rows(Path(asked["held"]))
    for graph in Path(asked["form"]).rglob("*.onnx"):  # what they refuse raises
        accepted(graph)
    shipped, inputs, outputs = plain(asked["model"])
    other = form(asked["form"], inputs, outputs)
    ours, theirs = [shipped(feed) for feed in held], [other(feed) for feed in held]
    pairs = [DECISIONS[asked["decision"]](*pair) for pair in zip(ours, theirs, strict=True)]
    same, total = (sum(column) for column in zip(*pairs, strict=True))
    found = {
        "agreement": same / total if total else None,
        "decisions": total,
        "sqnr_db": sqnr(ours, theirs),
        "finite": all(bool(np.isfinite(array).all()) for row in theirs for array in row),
        "ratio": ratio(shipped, other, held[0], asked["seconds"]) if asked["seconds"] else None,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()

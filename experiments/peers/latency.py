"""Latency of several graphs, interleaved in one process: every round times each of them in turn.

    python latency.py --root DIR --workload w1 --batch 8 --seconds 60 --models JSON

`--models`: [[name, file, session options], ...]; the first is FP32 as exported. In each turn a
graph runs once untimed, then twice, and the shorter counts. A ratio to FP32 is taken of minima over
rounds (what the machine can do) and as the median of the rounds' own ratios (what it did).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import feeds
import numpy as np
import onnxruntime as ort
from sessions import session


def turn(loaded: ort.InferenceSession, feed: feeds.Feed) -> float:
    """Seconds of the quicker of two runs, after one that warms the caches."""
    loaded.run(None, feed)
    found = []
    for _ in range(2):
        begun = time.perf_counter()
        loaded.run(None, feed)
        found.append(time.perf_counter() - begun)
    return min(found)


def rounds(loaded: dict[str, Any], feed: feeds.Feed, seconds: float) -> dict[str, list[float]]:
    """Whole rounds until `seconds` have passed, at least five."""
    times: dict[str, list[float]] = {name: [] for name in loaded}
    ends = time.perf_counter() + seconds
    count = 0
    while time.perf_counter() < ends or count < 5:
        for name, one in loaded.items():
            times[name].append(turn(one, feed))
        count += 1
    return times


def summary(times: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Per name: minimum and median in ms, and both ratios to the first name (above 1: faster)."""
    base = np.array(next(iter(times.values())))
    found = {}
    for name, row in times.items():
        own = np.array(row)
        found[name] = {
            "rounds": len(own),
            "min_ms": float(own.min()) * 1e3,
            "median_ms": float(np.median(own)) * 1e3,
            "ratio": float(base.min() / own.min()),
            "median_ratio": float(np.median(base / own)),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--workload", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--models", type=json.loads, required=True)
    options = parser.parse_args()
    count = options.batch
    (feed,) = feeds.feeds(options.root, options.workload, "test", count, count)
    loaded, refused = {}, {}
    for name, model, asked in options.models:
        try:
            loaded[name] = session(Path(model), asked)
            loaded[name].run(None, feed)
        except Exception as error:  # ONNX Runtime's own types derive from Exception directly
            loaded.pop(name, None)
            refused[name] = str(error)[:200]
    print(json.dumps({**summary(rounds(loaded, feed, options.seconds)), "refused": refused}))


if __name__ == "__main__":
    main()

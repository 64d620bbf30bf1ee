"""A mixture of experts in 4 and 8 bits beside FP32: decisions, perplexity, tokens per second, size.

    python experiments/experts/train.py WORK --steps 1000
    optkit build --recipe experiments/experts/mixture.yaml --target cpu --precision int4,int8 ...
    python experiments/experts/run.py TEXTS NAME=MODEL.onnx ... --out results.json

The first graph is the reference. TEXTS: a file of ids, int64 [windows, 64] (.npy). Prompts have 256
tokens; a decode step has one token behind 256 in the cache. The graphs take turns, so that other
work on the machine slows all of them alike; each time is the least of all rounds, and the ratio is
that of the medians.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from datetime import date
from pathlib import Path
from statistics import median

import numpy as np
import onnxruntime

PROMPT, ROUNDS = 256, 40


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def feed(graph: onnxruntime.InferenceSession, ids: np.ndarray, past: int) -> dict[str, np.ndarray]:
    """Tokens [batch, n] behind `past` zeros in the cache."""
    batch, count = ids.shape
    place = np.arange(past, past + count)
    known = {
        "input_ids": ids,
        "attention_mask": np.ones((batch, past + count), np.int64),
        "position_ids": np.tile(place, (batch, 1)),
    }
    given = {}
    for each in graph.get_inputs():
        shape = [batch if d == "batch" else past if isinstance(d, str) else d for d in each.shape]
        given[each.name] = known[each.name] if each.name in known else np.zeros(shape, np.float32)
    return given


def judged(graph: onnxruntime.InferenceSession, windows: np.ndarray) -> tuple[float, np.ndarray]:
    """Perplexity, and the next token that it chooses at each place."""
    losses, chosen = [], []
    for at in range(0, len(windows), 8):
        ids = windows[at : at + 8]
        logits = graph.run(["logits"], feed(graph, ids, 0))[0].astype(np.float64)
        chosen.append(logits[:, :-1].argmax(-1))
        shifted = logits[:, :-1] - logits[:, :-1].max(-1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        losses.append(-np.take_along_axis(logs, ids[:, 1:, None], -1).mean())
    return math.exp(float(np.mean(losses))), np.concatenate(chosen)


def timed(
    graphs: dict[str, onnxruntime.InferenceSession], ids: np.ndarray, past: int
) -> dict[str, list[float]]:
    feeds = {name: feed(graph, ids, past) for name, graph in graphs.items()}
    spent: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(ROUNDS + 2):
        for name, graph in graphs.items():
            start = time.perf_counter()
            graph.run(["logits"], feeds[name])
            if turn > 1:
                spent[name].append(time.perf_counter() - start)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare graphs of one mixture.")
    parser.add_argument("texts", type=Path)
    parser.add_argument("graphs", nargs="+", help="NAME=MODEL.onnx; the first is the reference")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    paths = {name: Path(path) for name, _, path in (each.partition("=") for each in options.graphs)}
    windows = np.load(options.texts)
    graphs = {name: session(path) for name, path in paths.items()}
    prompt = windows.reshape(1, -1)[:, :PROMPT]
    spent = {"prompt": timed(graphs, prompt, 0), "decode": timed(graphs, prompt[:, :1], PROMPT)}
    first, rows, reference = next(iter(paths)), {}, np.empty(0)
    for name, path in paths.items():
        perplexity, chosen = judged(graphs[name], windows)
        reference = chosen if name == first else reference
        files = [path, *path.parent.glob(f"{path.name}.data*")]
        row = {
            "perplexity": perplexity,
            "equal_decisions": float((chosen == reference).mean()),
            "megabytes": sum(file.stat().st_size for file in files) / 1e6,
        }
        for what, tokens in (("prompt", PROMPT), ("decode", 1)):
            times = spent[what]
            row[f"{what}_tokens_per_second"] = tokens / min(times[name])
            row[f"{what}_speedup"] = median(times[first]) / median(times[name])
        rows[name] = row
        print(name, {key: round(number, 4) for key, number in row.items()}, flush=True)
    machine = {
        "processor": platform.processor() or platform.machine(),
        "onnxruntime": onnxruntime.__version__,
        "threads": 1,
    }
    found = {"date": str(date.today()), "machine": machine, "windows": len(windows), "graphs": rows}
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

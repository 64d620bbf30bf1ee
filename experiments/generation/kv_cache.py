"""What a key-value cache of codes costs and gains, beside one of floats.

    python experiments/generation/kv_cache.py PROJECT --root SCRATCH [--threads 1]

PROJECT: a Hugging Face folder model/, a recipe, and data/held-out.jsonl, as examples/02_tiny_llama.

    accuracy   perplexity of held-out windows through the cache of the artifact (int8 weights), and
               its change against the same weights with a cache of floats: the interval is that of
               the mean over windows
    memory     resident bytes that a loop of TOKENS tokens adds to a process, and the bytes of the
               caches
    attention  GroupQueryAttention alone: one token after TOKENS, in one buffer, and a prompt; in
               every round the formats take turns

The result goes to kv_cache.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from transformers import AutoTokenizer

import optkit
from optkit import graph
from optkit.data.sequences import completed
from optkit.decoder import IN_PLACE, Decoder
from optkit.devices import cpu
from optkit.quantization.kv_cache import FORMATS, quantize_caches
from optkit.runtimes import SessionOptions, simulator
from optkit.tensors import Feed

WINDOWS, WINDOW = 128, 256
TOKENS, PROMPT, ROUNDS = 4096, 512, 200
SHAPES = {"6 heads on 2 of 64": (6, 2, 64), "32 heads on 8 of 128": (32, 8, 128)}
CACHES = {"nk": "pk", "nv": "pv"}
BUILD = [sys.executable, "-c", "from optkit.cli import main; main()", "build"]
FORMAT = {"float": None, "int8": "int8", "int4": "int4"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("project", type=Path)
    parser.add_argument("--root", type=Path, required=True, help="artifacts and cache")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--grow", type=Path, help=argparse.SUPPRESS)  # in a process of its own
    options = parser.parse_args()
    if options.grow is not None:
        print(json.dumps(grown(options.grow)))
        return
    built = {name: artifact(options.project, name, options.root) for name in FORMAT}
    found = {
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, {cpu().name}, {' '.join(instructions())}",
        "cores": len(os.sched_getaffinity(0)), "threads": options.threads,
        "versions": {name: version(name) for name in ("onnxruntime", "torch", "transformers")},
        "accuracy": dict(accuracy(built, options.project)),
        "memory": {name: memory(path, options) for name, path in built.items()},
        "attention": list(attention(options.threads)),
    }  # fmt: skip
    print(json.dumps(found, indent=1))
    Path(__file__).with_name("kv_cache.json").write_text(f"{json.dumps(found, indent=1)}\n")


def instructions() -> list[str]:
    words = Path("/proc/cpuinfo").read_text().split()
    return [name for name in ("avx2", "avx512f", "avx512_vnni") if name in words]


def artifact(project: Path, name: str, root: Path) -> Path:
    stored = f"--set=quantization.kv_cache={FORMAT[name] or 'null'}"
    asked = ["--precision", "int8", "--target", "cpu", "--out", root / name, "--json",
             "--cache", root / "cache", stored]  # fmt: skip
    done = subprocess.run(
        [*BUILD, project, *map(str, asked)], stdout=subprocess.PIPE, text=True, check=False
    )
    return Path(json.loads(done.stdout)["artifact"])


def empty(inputs: Any, ids: np.ndarray) -> Feed:
    """Token ids with everything else that a decoder takes, before its first token."""
    named = {info.name: info for info in inputs}
    found = completed({"input_ids": ids}, named, {"past_sequence"})
    return {name: np.asarray(found[name]) for name in named}


def accuracy(built: dict[str, Path], project: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    tokenizer = AutoTokenizer.from_pretrained(project / "model")
    lines = (project / "data" / "held-out.jsonl").read_text().splitlines()
    ids = np.array([i for line in lines for i in tokenizer(json.loads(line)["text"])["input_ids"]])
    windows = ids[: WINDOWS * WINDOW].reshape(-1, WINDOW)
    exact = None
    for name, path in built.items():
        with optkit.load(path).session() as session:
            scores = np.array([likelihoods(session.run(empty(session.inputs, window[None])), window)
                               for window in windows])  # fmt: skip
        exact = scores if exact is None else exact
        lost = (exact - scores).mean(axis=1)
        yield (
            name,
            {
                "perplexity": round(float(np.exp(-scores.mean())), 4),
                "change_percent": round(100 * float(np.expm1(lost.mean())), 4),
                "plus_minus": round(196 * float(lost.std() / np.sqrt(len(lost))), 4),
            },
        )


def likelihoods(outputs: Feed, window: np.ndarray) -> np.ndarray:
    """Of each token but the first, in nats."""
    logits = outputs["logits"][0, :-1].astype(np.float64)
    logs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    found: np.ndarray = np.take_along_axis(logs, window[1:, None], -1)[:, 0]
    return found


def memory(path: Path, options: argparse.Namespace) -> dict[str, int]:
    command = [sys.executable, __file__, options.project, "--root", options.root, "--grow", path]
    done = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def grown(path: Path) -> dict[str, int]:
    """Bytes of the caches of TOKENS tokens, and what a loop over them adds to this process."""
    with optkit.load(path).session(threads=1) as session:
        decoder = Decoder.of(session.inputs, session.outputs)
        assert decoder is not None
        feed = empty(session.inputs, np.ones((1, 1), np.int64))
        session.run(feed)
        start = {info.name: feed.pop(info.name) for info in decoder.cache}
        before = resident()
        loop = session.loop(decoder.carried, start, TOKENS)
        for step in range(1, TOKENS + 1):
            feed["attention_mask"] = np.ones((1, step), np.int64)
            feed["position_ids"] = np.array([[step - 1]])
            loop.run(feed)
        after = resident()
    sizes = (int(np.prod(info.shape[1:2] + info.shape[3:])) * np.dtype(info.dtype).itemsize
             for info in decoder.cache)  # fmt: skip
    return {"resident": after - before, "caches": TOKENS * sum(sizes)}


def resident() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def attention(threads: int) -> Iterator[dict[str, Any]]:
    for shape, sizes in SHAPES.items():
        for past, new in ((TOKENS, 1), (0, PROMPT)):
            runs = {name: run(sizes, FORMAT[name], past, new, threads) for name in FORMAT}
            taken: dict[str, list[float]] = {name: [] for name in runs}
            for _ in range(ROUNDS if new == 1 else ROUNDS // 10):
                for name, call in runs.items():
                    call()  # the caches of the processor are as this format leaves them
                    start = time.perf_counter()
                    call()
                    taken[name].append(time.perf_counter() - start)
            speed = {name: ratio(taken["float"], times) for name, times in taken.items()}
            ms = {name: round(1e3 * float(np.median(times)), 3) for name, times in taken.items()}
            yield {"shape": shape, "past": past, "new": new, "speed": speed, "ms": ms}


def ratio(floats: list[float], times: list[float]) -> list[float]:
    """Round by round: the lower quartile, the median and the upper quartile."""
    found = np.percentile(np.array(floats) / np.array(times), [25, 50, 75])
    return [round(float(value), 2) for value in found]


def run(
    sizes: tuple[int, int, int], dtype: str | None, past: int, new: int, threads: int
) -> Callable[[], Any]:
    """A run of one attention, whose cache is one buffer."""
    heads, groups, size = sizes
    path = Path(f"/tmp/optkit-kv-{os.getpid()}.onnx")
    graph.save(model(heads, groups, size, dtype), path)
    session = simulator().session(path, SessionOptions(threads=threads))
    path.unlink()
    random, total = np.random.default_rng(0), past + new
    rows = {name: random.standard_normal((1, new, width * size)).astype(np.float32)
            for name, width in (("q", heads), ("k", groups), ("v", groups))}  # fmt: skip
    start = {
        info.name: random.integers(0, 100, (1, groups, past, info.shape[3])).astype(info.dtype)
        for info in session.inputs if info.name in CACHES.values()
    }  # fmt: skip
    loop = session.loop(CACHES, start, total)
    feed = {**rows, "last": np.array([total - 1], np.int32), "total": np.array([total], np.int32),
            "bias": np.zeros((1, 1, new, total), np.float32)}  # fmt: skip
    return lambda: loop.run(feed)


def model(heads: int, groups: int, size: int, dtype: str | None) -> ir.Model:
    cache = f"float[1, {groups}, p, {size}]"
    found = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>
        g (float[1, s, {heads * size}] q, float[1, s, {groups * size}] k,
           float[1, s, {groups * size}] v, {cache} pk, {cache} pv, int32[1] last, int32[1] total,
           float[1, 1, s, t] bias) => (float[1, s, {heads * size}] y, {cache} nk, {cache} nv)
        {{ y, nk, nv = com.microsoft.GroupQueryAttention
             <num_heads = {heads}, kv_num_heads = {groups}, scale = {size**-0.5}>
             (q, k, v, pk, pv, last, total, , , , bias) }}"""
    )
    for value in found.graph.outputs[1:]:
        value.shape = ir.Shape([1, groups, "t", size])
    found.metadata_props[IN_PLACE] = json.dumps(list(CACHES))
    if dtype is not None:
        scale = np.full((1, groups, 1, size), 0.03, np.float32)
        quantize_caches(found, list(CACHES), dict.fromkeys(CACHES, scale), FORMATS[dtype])
    return found


if __name__ == "__main__":
    main()

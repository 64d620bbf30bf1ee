"""Decode speed of a Hugging Face decoder: our artifacts beside ONNX Runtime GenAI's own model.

    python experiments/generation/decode.py PROJECT --root SCRATCH [--threads 2] [--rounds 20]

PROJECT: a Hugging Face folder model/, a recipe, and data/held-out.jsonl, as examples/02_tiny_llama.
Contenders, each in every round, in random order, with as many threads, which spin as by default:

    optkit   `optkit generate`'s loop, in Python, over what `optkit build PROJECT` makes (int4 as
             the recipe says, in blocks of 32, and in floats) and over what GenAI's builder makes of
             the model (int4, blocks of 32, accuracy level 4)
    genai    GenAI's loop, in C++, over the same: our artifacts are folders that it loads

Models are compared in one loop. The result goes to decode.json beside this file: tokens per second
with ratios round by round; and what each model loses, on WINDOWS windows of held-out text: the SQNR
of its logits against our FP32, and its perplexity.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx_ir as ir
from transformers import AutoTokenizer

import optkit
from optkit import graph
from optkit.decoder import Decoder
from optkit.fusion.ort.cached import note_in_place
from optkit.generation.decoding import Ending, Pace, decode
from optkit.generation.sampling import greedy
from optkit.runtimes import Recurrent, SessionOptions, backend

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "peers"))
import environments

ARTIFACTS = {  # our name -> precision, what the recipe does not say
    "fp32": ("fp32", ()),
    "int4": ("int4", ()),
    "int4 by 32": ("int4", ("quantization.block_size=32",)),
    "int4 in floats": ("int4", ("quantization.placement.nbits_accuracy=0",)),
}
COMMAND = [sys.executable, "-c", "from optkit.cli import main; main()", "build"]
REQUIREMENTS = [environments.TORCH, "onnxruntime-genai==0.18.0", "onnxruntime==1.31.1",
                "transformers==5.23.0", "onnx-ir==1.1.0"]  # fmt: skip
BUILDER = ["-p", "int4", "-e", "cpu", "--extra_options", "int4_accuracy_level=4",
           "int4_block_size=32"]  # fmt: skip
REST_SECONDS = 0.2
WINDOWS, WINDOW = 32, 256
YARDSTICK = "genai: its builder's int4"
BORROWED = "optkit: genai's int4"

Run = Callable[[list[int], int], dict[str, Pace]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("project", type=Path)
    parser.add_argument("--root", type=Path, required=True, help="artifacts, environment, cache")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--behind", type=int, nargs="+", default=[32, 512], help="prompt, tokens")
    parser.add_argument("--new", type=int, default=64, help="tokens per run")
    options = parser.parse_args()
    python = environment(options.root)
    built = {
        name: artifact(options.project, precision, changes, options.root, name)
        for name, (precision, changes) in ARTIFACTS.items()
    }
    yardstick = builders(python, options.project / "model", options.root)
    sessions: dict[str, Any] = {
        f"optkit: {name}": optkit.load(path).session(threads=options.threads)
        for name, path in built.items()
    }
    sessions[BORROWED] = in_place(yardstick, options.root, options.threads)
    lost = dict(losses(sessions, options.project))
    with subprocess.Popen(
        [str(python), str(Path(__file__).with_name("with_genai.py"))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as genai:  # fmt: skip
        contenders = {name: running(session) for name, session in sessions.items()}
        contenders[YARDSTICK] = theirs(genai, yardstick, options.threads)
        for name, path in built.items():
            contenders[f"genai: our {name}"] = theirs(genai, path, options.threads)
        rows = [
            row
            for behind in options.behind
            for row in race(contenders, behind, options.new, options.rounds)
        ]
        assert genai.stdin is not None
        genai.stdin.close()
    for row in rows:
        print(f"behind {row['behind']:4d}  {row['name']:26s} {row['tokens_per_second']:8.1f}/s  "
              f"{row['of_fp32']['ratio']:.2f} of our FP32, "
              f"{row['of_genai']['ratio']:.2f} of GenAI's model in this loop")  # fmt: skip
    for name, one in lost.items():
        print(f"{name:26s} {one['sqnr_db'] or inf:.1f} dB, perplexity {one['perplexity']:.3f}")
    found = {"circumstances": circumstances(options.threads), "rows": rows, "accuracy": lost}
    Path(__file__).with_name("decode.json").write_text(f"{json.dumps(found, indent=1)}\n")


def artifact(project: Path, precision: str, changes: Sequence[str], root: Path, name: str) -> Path:
    out, cache = root / "artifacts" / name.replace(" ", "-"), root / "cache"
    asked = ["--target", "cpu", "--precision", precision, "--out", out, "--cache", cache, "--json"]
    done = subprocess.run(
        [*COMMAND, project, *map(str, asked), *(f"--set={change}" for change in changes)],
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return Path(json.loads(done.stdout)["artifact"])


def losses(
    sessions: dict[str, Recurrent], project: Path
) -> Iterator[tuple[str, dict[str, float | None]]]:
    """What each model loses against the first. Windows stand side by side, each from an empty
    cache; each token but a window's first is judged by those before it."""
    tokenizer = AutoTokenizer.from_pretrained(project / "model")
    lines = (project / "data" / "held-out.jsonl").read_text().splitlines()
    ids = np.array([i for line in lines for i in tokenizer(json.loads(line)["text"])["input_ids"]])
    windows = ids[: WINDOWS * WINDOW].reshape(-1, 1, WINDOW)
    exact = None
    for name, session in sessions.items():
        logits = np.concatenate([read(session, window) for window in windows]).astype(np.float64)
        exact = logits if exact is None else exact
        noise = np.square(logits - exact).sum()
        told = logits[:, :-1] - np.logaddexp.reduce(logits[:, :-1], axis=-1, keepdims=True)
        own = np.take_along_axis(told, windows[:, 0, 1:, None], axis=-1)
        sqnr = 10 * np.log10(np.square(exact).sum() / noise) if noise else None
        yield name, {"sqnr_db": None if sqnr is None else round(float(sqnr), 2),
                     "perplexity": round(float(np.exp(-own.mean())), 4)}  # fmt: skip


def read(session: Recurrent, ids: np.ndarray) -> np.ndarray:
    """Logits [1, sequence, vocabulary] of one window."""
    decoder = Decoder.of(session.inputs, session.outputs)
    assert decoder is not None
    feed = {info.name: np.zeros((1, decoder.heads, 0, decoder.head_size), info.dtype)
            for info in decoder.cache}  # fmt: skip
    feed |= {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    if decoder.positions:
        feed["position_ids"] = np.arange(ids.shape[1])[None]
    return session.run(feed)["logits"]


def in_place(folder: Path, root: Path, threads: int) -> Recurrent:
    """A session of GenAI's model, whose cache is one buffer and of declared width."""
    model = graph.load(folder / "model.onnx")
    width = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]["head_size"]
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.shape is not None and len(value.shape) == 4:
            value.shape = ir.Shape([*value.shape.dims[:3], width])
    note_in_place(model)
    path = root / "genai-in-place" / "model.onnx"
    path.parent.mkdir(exist_ok=True)
    graph.save(model, path)
    return backend("onnxruntime").session(path, SessionOptions(threads=threads))


def running(session: Recurrent) -> Run:
    decoder = Decoder.of(session.inputs, session.outputs)
    assert decoder is not None

    def run(ids: list[int], new: int) -> dict[str, Pace]:
        ending = Ending(frozenset(), new, pad=0)
        made = decode(session, decoder, [ids], ending, greedy, lambda row, token: None)
        return {"prefill": made.prefill, "decode": made.decode}

    return run


def theirs(process: subprocess.Popen[str], folder: Path, threads: int) -> Run:
    to, back = process.stdin, process.stdout
    assert to is not None and back is not None

    def run(ids: list[int], new: int) -> dict[str, Pace]:
        found = ask(to, back, {"model": str(folder), "ids": ids, "new": new, "threads": threads})
        return {phase: Pace(*numbers) for phase, numbers in found.items()}

    return run


def ask(to: IO[str], back: IO[str], task: dict[str, Any]) -> dict[str, Any]:
    to.write(f"{json.dumps(task)}\n")
    to.flush()
    found: dict[str, Any] = json.loads(back.readline())
    return found


def race(contenders: dict[str, Run], behind: int, new: int, rounds: int) -> list[dict[str, Any]]:
    """Each contender once per round, in an order drawn anew and after a rest: always behind the
    longest run of another, one is slower than it is. The first round warms up."""
    random = np.random.default_rng(0)
    ids = random.integers(5, 200, behind).tolist()
    pace: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for at in range(-1, rounds):
        for name in random.permutation(names):
            time.sleep(REST_SECONDS)
            found = contenders[name](ids, new)["decode"]
            if at >= 0:
                pace[name].append(found.tokens / found.seconds)
    taken = {name: np.array(values) for name, values in pace.items()}
    return [
        {
            "behind": behind,
            "name": name,
            "tokens_per_second": round(float(np.median(values)), 1),
            "of_fp32": ratio(values, taken["optkit: fp32"]),
            "of_genai": ratio(values, taken[BORROWED if name.startswith("optkit") else YARDSTICK]),
        }
        for name, values in taken.items()
    ]


def ratio(one: np.ndarray, other: np.ndarray) -> dict[str, float]:
    """Round by round: the median and the quartiles."""
    low, median, high = np.percentile(one / other, [25, 50, 75])
    return {"ratio": round(median, 3), "low": round(low, 3), "high": round(high, 3)}


def environment(root: Path) -> Path:
    folder = root / "environments" / "genai"
    python, record = folder / "bin" / "python", folder.with_suffix(".json")
    if not record.exists() or json.loads(record.read_text()) != REQUIREMENTS:
        failure = environments.build(folder, python, REQUIREMENTS)
        if failure is not None:
            raise SystemExit(f"GenAI's environment: {failure}")
        record.write_text(json.dumps(REQUIREMENTS))
    return python


def builders(python: Path, folder: Path, root: Path) -> Path:
    out = root / "genai"
    if not (out / "genai_config.json").exists():
        command = [python, "-m", "onnxruntime_genai.models.builder", "-m", folder, "-i", folder,
                   "-o", out, "-c", root / "genai-cache", *BUILDER]  # fmt: skip
        subprocess.run(
            list(map(str, command)), check=True, capture_output=True, env=environments.variables()
        )
    return out


def circumstances(threads: int) -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return {
        "date": date.today().isoformat(),
        "processor": next(
            (line.split(": ")[1] for line in lines if "model name" in line), platform.machine()
        ),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "load": round(os.getloadavg()[0], 1),
        "versions": {name: version(name) for name in ("onnxruntime", "torch", "transformers")},
        "requirements": REQUIREMENTS,
    }


if __name__ == "__main__":
    main()

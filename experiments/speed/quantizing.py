"""How long does optkit take to quantize, beside ONNX Runtime's own quantizers?

    python experiments/speed/quantizing.py SCRATCH [NAME ...] [--rounds 5]

Run it with an interpreter that has optkit with its `cpu` and `hf` extras. Models in the shapes that
people deploy, with random weights; the same samples for all tools. Each tool is a process of its
own: its CPU seconds count, its children included, because other work on the machine changes them
least; and its seconds. All tools run in turn in each round, optkit with an empty store. Writes
quantizing.json and quantizing.md beside itself: medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from onnxruntime.quantization import quantize_dynamic as dynamic
from onnxruntime.quantization.shape_inference import quant_pre_process
from run import BUILD, instruction_set

from optkit.ground.devices import target

HERE = Path(__file__).resolve().parent
SMALL = {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}
MODELS: dict[str, tuple[str, dict[str, int], int]] = {  # transformers' kind, sizes, samples
    "MiniLM-L6, 64 samples": ("bert", SMALL, 64),
    "MiniLM-L6, 512 samples": ("bert", SMALL, 512),
    "BERT-base, 64 samples": ("bert", {}, 64),
    "ResNet-50, 64 samples": ("resnet", {}, 64),
}
TOOLS = {
    "optkit, balanced": "balanced",
    "optkit, fast": "fast",
    "ONNX Runtime, static": "static",
    "ONNX Runtime, dynamic": "dynamic",
    "the forward passes alone": "forward",
}
TOKENS, PIXELS = 128, 224


def make(folder: Path, kind: str, sizes: dict[str, int], samples: int) -> None:
    """Write model.onnx and samples.npz."""
    import torch
    import transformers as hf

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    folder.mkdir(parents=True)
    if kind == "resnet":
        model = hf.ResNetForImageClassification(hf.ResNetConfig(return_dict=False)).eval()
        feed = {"pixel_values": rng.standard_normal((samples, 3, PIXELS, PIXELS), np.float32)}
    else:
        config = hf.BertConfig(**sizes, return_dict=False)
        model = hf.BertModel(config, add_pooling_layer=False).eval()
        ids = rng.integers(0, config.vocab_size, (samples, TOKENS))
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    given = {name: torch.from_numpy(value[:2]) for name, value in feed.items()}
    shapes = {name: batch if name in feed else None for name in feed}
    torch.onnx.export(
        model, kwargs=given, f=str(folder / "model.onnx"), dynamic_shapes=shapes, dynamo=True,
        external_data=False, opset_version=21, verbose=False,
    )  # fmt: skip
    np.savez(folder / "samples.npz", **feed)


class Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, place: Path) -> None:
        self._rows = rows(place)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._rows, None)


def rows(place: Path) -> Any:
    feed = dict(np.load(place))
    for at in range(len(next(iter(feed.values())))):
        yield {name: value[at : at + 1] for name, value in feed.items()}


def peer(tool: str, folder: Path) -> None:
    """The work of a tool other than optkit."""
    model, samples, made = folder / "model.onnx", folder / "samples.npz", folder / "peer.onnx"
    if tool == "forward":
        session = onnxruntime.InferenceSession(model)
        for row in rows(samples):
            session.run(None, row)
    elif tool == "dynamic":
        dynamic(model, made, weight_type=QuantType.QInt8, per_channel=True)
    else:
        ready = folder / "ready.onnx"
        quant_pre_process(str(model), str(ready), skip_symbolic_shape=True)
        quantize_static(
            ready, made, Reader(samples), per_channel=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        )  # fmt: skip


def timed(tool: str, folder: Path) -> tuple[float, float]:
    """CPU seconds and seconds of a process and its children."""
    out, store = folder / "out", folder / "store"
    for place in (out, store):
        shutil.rmtree(place, ignore_errors=True)
    if tool in ("balanced", "fast"):
        command = [
            "-c", BUILD, "quantize", folder / "model.onnx", "-t", "cpu", "-p", "int8", "-q",
            "--calibration", folder / "samples.npz", "--set", f"quantization.effort={tool}",
            "--cache", store, "-o", out,
        ]  # fmt: skip
    else:
        command = [str(Path(__file__).resolve()), folder, "--peer", tool]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run([sys.executable, *map(str, command)], check=True, capture_output=True)
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - start
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, seconds


def machine() -> str:
    return f"{target('cpu').title}, {os.cpu_count()} cores, {instruction_set()}"


def page(kept: dict[str, Any]) -> str:
    lines = [
        "# How long quantization takes",
        "",
        f"`quantizing.py` beside it wrote this on {kept['date']} ({kept['machine']}, ONNX Runtime",
        f"{kept['onnxruntime']}); do not edit it. CPU seconds, in brackets seconds: medians of",
        f"{kept['rounds']} rounds in which all tools ran in turn. ×: CPU seconds over those of",
        "ONNX Runtime's static quantization.",
        "",
        f"| | {' | '.join(kept['models'])} |",
        f"|---|{'---|' * len(kept['models'])}",
    ]
    for tool in TOOLS:
        cells = []
        for found in kept["models"].values():
            if tool not in found:
                cells.append("")
                continue
            cpu, wall = found[tool]
            ratio = cpu / found["ONNX Runtime, static"][0]
            cells.append(f"{cpu:.1f} ({wall:.1f}) {ratio:.2f}×")
        lines.append(f"| {tool} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scratch", type=Path)
    parser.add_argument("names", nargs="*", help="models; without any, all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.peer:
        peer(asked.peer, asked.scratch)
        return
    path = HERE / "quantizing.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    for name, (kind, sizes, samples) in MODELS.items():
        if asked.names and name not in asked.names:
            continue
        folder = asked.scratch.absolute() / name.replace(",", "").replace(" ", "-")
        if not folder.exists():
            make(folder, kind, sizes, samples)
        tools = {
            told: tool for told, tool in TOOLS.items() if (kind, tool) != ("resnet", "dynamic")
        }
        found: dict[str, list[tuple[float, float]]] = {told: [] for told in tools}
        for _ in range(asked.rounds):
            for told, tool in tools.items():
                found[told].append(timed(tool, folder))
                print(name, told, *(f"{number:.1f}" for number in found[told][-1]), flush=True)
        medians = {
            told: [median(column) for column in zip(*times, strict=True)]
            for told, times in found.items()
        }
        kept.setdefault("models", {})[name] = medians
        kept |= {
            "date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine(),
            "onnxruntime": onnxruntime.__version__, "rounds": asked.rounds,
        }  # fmt: skip
        path.write_text(f"{json.dumps(kept, indent=1)}\n")
        path.with_suffix(".md").write_text(page(kept))


if __name__ == "__main__":
    main()

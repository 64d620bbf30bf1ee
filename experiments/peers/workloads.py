"""Trains and exports the workloads of the comparison, once, into the cache.

    python experiments/peers/workloads.py [--root DIR] [w1 w2 w3 w4 w5 w6]

Each becomes `models/<name>.onnx` (torch's dynamo exporter, opset 20, batch dynamic) and
`models/<name>.npz`: `calibration.<input>`, `test.<input>`, and `labels` where the task has them.
Run in the environment `onnxruntime` (environments.py), which has torch and transformers; `run.py`
does all of this. A name that is there is not made again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import corpus
import networks
import numpy as np
import torch
import torch.nn.functional as F
from recipes.topics import prototypes
from torch import Tensor, nn
from training import Schedule, train

THREADS = 2
BATCH = torch.export.Dim("batch", min=1, max=4096)


def w1(folder: Path) -> None:
    """Residual CNN on digits: 10 classes."""
    _images(networks.CNN(), Schedule(steps=144, rate=4e-3, decay=0.02), "w1", folder)


def w2(folder: Path) -> None:
    """Vision transformer on digits: 10 classes."""
    _images(networks.ViT(), Schedule(steps=600, rate=8e-4, decay=0.02), "w2", folder)


def w3(folder: Path) -> None:
    """Masked encoder on source text: which package a piece is from, and masked tokens."""
    arrays = corpus.texts()
    model, topics = networks.Encoder(), torch.from_numpy(prototypes())
    ids, mask, labels = (
        torch.from_numpy(arrays.pop(name))
        for name in ("train.input_ids", "train.attention_mask", "train_labels")
    )

    by_length = mask.sum(1).argsort(stable=True)

    def loss(model: nn.Module, seed: torch.Generator) -> Tensor:
        first = int(torch.randint(0, len(ids) - 24, (1,), generator=seed))
        rows = by_length[first : first + 24]  # of nearly one length: no padding to pay for
        longest = int(mask[rows].sum(1).max())
        clean, real = ids[rows, :longest], mask[rows, :longest]
        hidden = (torch.rand(clean.shape, generator=seed) < 0.15) & (real > 0)
        with torch.autocast("cpu", torch.bfloat16):
            tokens = model(torch.where(hidden, corpus.MASK, clean), real)
            guesses = model.unmask(tokens[hidden])
        masked = F.cross_entropy(guesses.float(), clean[hidden])
        weight = real[..., None].float()
        mean = (tokens.float() * weight).sum(1) / weight.sum(1)  # [24, 384], of real tokens
        return masked + F.cross_entropy(mean @ topics.T, labels[rows])

    train(model, loss, Schedule(steps=900, rate=3e-4, warm_up=150), folder / "w3.safetensors")
    example = tuple(
        torch.from_numpy(arrays[name][:2]) for name in ("test.input_ids", "test.attention_mask")
    )
    write(model, example, ["input_ids", "attention_mask"], "embeddings", arrays, "w3", folder)


def w4(folder: Path) -> None:
    """Decoder on source text: the next token."""
    arrays = corpus.stream()
    stream = torch.from_numpy(arrays.pop("train"))
    window = torch.arange(networks.SEQUENCE + 1)

    def loss(model: nn.Module, seed: torch.Generator) -> Tensor:
        starts = torch.randint(0, len(stream) - len(window), (12, 1), generator=seed)
        tokens = stream[starts + window]  # [12, 129]
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(tokens[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())

    model = networks.Decoder()
    train(model, loss, Schedule(steps=600, rate=2e-3), folder / "w4.safetensors")
    example = (torch.from_numpy(arrays["test.input_ids"][:2]),)
    write(model, example, ["input_ids"], "logits", arrays, "w4", folder)


def w5(folder: Path) -> None:
    """ResNet-50 with random weights, on digits at 224×224."""
    digits = corpus.digits()
    arrays = {}
    for name in ("calibration.input", "test.input"):
        images = torch.from_numpy(digits[name][:64])
        arrays[name] = F.interpolate(images, size=224, mode="bilinear").numpy()
    example = (torch.from_numpy(arrays["test.input"][:2]),)
    write(networks.ResNet50(), example, ["input"], "logits", arrays, "w5", folder)


def w6(folder: Path) -> None:
    """BERT-base with random weights, on the texts of W3."""
    texts = corpus.texts()
    names = ["input_ids", "attention_mask"]
    arrays = {
        f"{part}.{name}": texts[f"{part}.{name}"][:count]
        for part, count in (("calibration", 128), ("test", 64))
        for name in names
    }
    example = tuple(torch.from_numpy(arrays[f"test.{name}"][:2]) for name in names)
    write(networks.BertBase(), example, names, "embeddings", arrays, "w6", folder)


def _images(model: nn.Module, schedule: Schedule, name: str, folder: Path) -> None:
    arrays = corpus.digits()
    images = torch.from_numpy(arrays["calibration.input"])
    labels = torch.from_numpy(arrays.pop("calibration_labels"))

    def loss(model: nn.Module, seed: torch.Generator) -> Tensor:
        rows = torch.randint(0, len(images), (64,), generator=seed)
        down, right = torch.randint(-2, 3, (2,), generator=seed).tolist()
        shifted = torch.roll(images[rows], (down, right), (2, 3))
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "w2"):
            logits = model(shifted)
        return F.cross_entropy(logits.float(), labels[rows])

    train(model, loss, schedule, folder / f"{name}.safetensors")
    example = (torch.from_numpy(arrays["test.input"][:2]),)
    write(model, example, ["input"], "logits", arrays, name, folder)


def write(
    model: nn.Module,
    example: tuple[Tensor, ...],
    inputs: list[str],
    output: str,
    arrays: corpus.Arrays,
    name: str,
    folder: Path,
) -> None:
    """Export, then rename: `<name>.onnx` is there only when its arrays are."""
    model.eval()
    unfinished = folder / f"{name}.unfinished.onnx"
    torch.onnx.export(
        model,
        example,
        str(unfinished),
        input_names=inputs,
        output_names=[output],
        dynamic_shapes=tuple({0: BATCH} for _ in example),
        dynamo=True,
        opset_version=20,
        external_data=False,
    )
    np.savez(folder / f"{name}.npz", **arrays)
    unfinished.rename(folder / f"{name}.onnx")


WORKLOADS: dict[str, Callable[[Path], None]] = {
    "w1": w1, "w2": w2, "w3": w3, "w4": w4, "w5": w5, "w6": w6,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("names", nargs="*", choices=[[], *WORKLOADS])
    options = parser.parse_args()
    folder = options.root / "models"
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(THREADS)
    for name in options.names or WORKLOADS:
        if (folder / f"{name}.onnx").exists():
            continue
        begun = time.monotonic()
        torch.manual_seed(0)
        WORKLOADS[name](folder)
        print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()

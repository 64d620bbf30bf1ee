"""Build the decoder in INT4 for this CPU, win back what it loses with adapters, and compare.

    python heal.py [--out DIR]             some minutes on two cores; two artifacts, into DIR
    python heal.py --quick [--out DIR]     a few steps; into DIR or nowhere

The adapters learn from the float decoder, on random windows of its training text. Perplexities are
those of the artifacts on held-out text. A loss is that to FP32, with its paired 95 % interval.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import decoder
import numpy as np
import torch
from torch import nn

import optkit
from optkit import qat
from optkit.benchmarking.intervals import bootstrap

RANK, STEPS, BATCHES = 8, 300, 128
RECIPE = {
    "axes": {"batch": {"min": 1, "opt": 8, "max": 32}},
    "quantization": {"block_size": 128, "weights": "rtn"},
}


def heal(out: Path, *, quick: bool) -> None:
    torch.manual_seed(0)
    net, text = decoder.trained(), decoder.training_bytes()
    samples = decoder.calibration(32 if quick else 256)
    batches = [decoder.random_windows(text) for _ in range(4 if quick else BATCHES)]

    student = qat.prepare_adapters(
        net, samples[0][:4], target="cpu", rank=RANK, recipe=RECIPE, calibration=samples
    )
    loss = qat.Distillation(student, loss="kl")
    print(qat.distill(student, batches, loss=loss, steps=4 if quick else STEPS))

    windows = [ids.numpy() for ids in decoder.held_out(32 if quick else 512).split(32)]
    with torch.no_grad():
        nats = [decoder.losses(net(torch.from_numpy(ids)).numpy(), ids) for ids in windows]
    fp32 = np.concatenate(nats)
    print(f"perplexity per held-out byte, fp32: {np.exp(fp32.mean()):.4f}")
    for name, each in (("decoder", net), ("healed", qat.finalize(student))):
        artifact = built(each, name, samples, out)
        show(f"{name} in int4", of(artifact, windows), fp32)


def built(net: nn.Module, name: str, samples: list[torch.Tensor], out: Path) -> optkit.Artifact:
    return optkit.build(
        net, samples[0][:4], target="cpu", precision="int4", recipe=RECIPE, calibration=samples,
        name=name, out=out,
    )  # fmt: skip


def of(artifact: optkit.Artifact, windows: list[np.ndarray]) -> np.ndarray:
    """Mean nats per byte of each window."""
    found = []
    for ids in windows:
        (logits,) = artifact.run({decoder.INPUT: ids}).values()
        found.append(decoder.losses(logits, ids))
    return np.concatenate(found)


def show(name: str, nats: np.ndarray, fp32: np.ndarray) -> None:
    def loss(chosen: np.ndarray) -> float:
        return float(np.exp(nats[chosen].mean()) - np.exp(fp32[chosen].mean()))

    interval = bootstrap(len(nats), loss)
    print(f"{name}: {np.exp(nats.mean()):.4f}, loss {loss(np.arange(len(nats))):.4f} "
          f"[{interval.low:.4f}, {interval.high:.4f}]")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Heal the decoder in INT4.")
    parser.add_argument("--quick", action="store_true", help="a few steps")
    parser.add_argument("--out", type=Path, help="the folder of the artifacts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = options.out or Path(folder if options.quick else "artifacts")
        heal(out, quick=options.quick)


if __name__ == "__main__":
    main()

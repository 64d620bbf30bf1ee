"""A narrow vision transformer in INT4: the build, and the build after a training.

    python quantize.py                     a few minutes; writes the two artifacts into artifacts/
    python quantize.py --out FOLDER

The network is that of examples/00_digits_vit with 32 channels and three blocks.
`weights.safetensors` has its weights: 200 epochs of that example's `train`. Even digits calibrate
and train, odd digits are held out.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import Tensor, nn

import optkit
from optkit import qat

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "00_digits_vit"))
from model import create  # noqa: E402
from train import augment  # noqa: E402

SIZES = (32, 3, 2)  # channels, blocks, heads
RECIPE = {
    "axes": {"batch": {"min": 1, "opt": 8, "max": 32}},
    "quantization": {"block_size": 128},  # one scale for each row of a weight
    "eval": {"task": "digits_top1"},
    "gates": {"max_drop": "2%"},
    "bench": {"seconds": 0.5},
}


def digits() -> tuple[Tensor, Tensor, np.ndarray]:
    """The even digits, [899, 1, 8, 8] in [0, 1]; the odd ones, and their labels."""
    found = load_digits()
    images = torch.tensor(found.images / 16, dtype=torch.float32)[:, None]
    return images[0::2], images[1::2], found.target[1::2]


def trained_in_float() -> nn.Module:
    net = create(*SIZES)
    net.load_state_dict(load_file(HERE / "weights.safetensors"))
    return net.eval()


def logits_of(artifact: optkit.Artifact, images: Tensor) -> np.ndarray:
    with optkit.load(artifact.path) as session:
        parts = [session.run({"image": batch.numpy()}) for batch in images.split(32)]
    return np.concatenate([next(iter(part.values())) for part in parts])


def sqnr(expected: np.ndarray, logits: np.ndarray) -> float:
    """In dB."""
    return float(10 * np.log10(np.square(expected).sum() / np.square(logits - expected).sum()))


def main() -> None:
    parser = argparse.ArgumentParser(description="A narrow ViT in INT4, by PTQ and by QAT.")
    parser.add_argument("--out", type=Path, default=Path("artifacts"))
    parser.add_argument("--steps", type=int, default=200, help="of the distillation")
    options = parser.parse_args()
    torch.manual_seed(0)
    net, (images, held_out, labels) = trained_in_float(), digits()
    example, calibration = images[:8], list(images[:256].split(8))
    loader = [augment(batch) for _ in range(4) for batch in images.split(64)]

    def build(model: nn.Module, name: str) -> optkit.Artifact:
        return optkit.build(
            model, example, target="cpu", precision="int4", recipe=RECIPE,
            calibration=calibration, name=name, out=options.out,
        )  # fmt: skip

    ptq = build(net, "vit-ptq")
    trained = qat.prepare(  # 1
        net, example, target="cpu", precision="int4", recipe=RECIPE, calibration=calibration
    )
    gained = qat.distill(trained, loader, steps=options.steps)  # 2
    after = build(qat.finalize(trained), "vit-qat")  # 3

    with torch.no_grad():
        expected = net(held_out).numpy()
    print(f"FP32: top-1 {(expected.argmax(1) == labels).mean():.2%}")
    for name, artifact in (("PTQ", ptq), ("QAT", after)):
        logits = logits_of(artifact, held_out)
        top1, verdict = (logits.argmax(1) == labels).mean(), artifact.result["gate"]["verdict"]
        print(f"{name}: top-1 {top1:.2%}, {sqnr(expected, logits):.1f} dB, gate: {verdict}")
    print(f"{gained.steps} steps in {gained.seconds:.0f} s; loss on held-out batches "
          f"{gained.loss_before:.4f} before, {gained.loss_after:.4f} after")  # fmt: skip


if __name__ == "__main__":
    main()

"""Train the digits CNN on scikit-learn's digits and write its weights (fp16 safetensors).

    python train.py            about three minutes on two cores; replaces weights.safetensors
    python train.py --quick    a few seconds, writes nothing

Even indices train, odd indices are held out: calibration/digits.py and eval/digits_top1.py keep to
the same rule. What is printed at the end is the top-1 of the weights as they are written, in fp16.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from model import create
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import Tensor, nn

BATCH = 64


def augment(images: Tensor) -> Tensor:
    """Each image rotated by up to 12°, scaled by up to 12 % and shifted by up to four pixels."""
    n = len(images)
    angle = (torch.rand(n) * 2 - 1) * math.radians(12)
    zoom = 1 + (torch.rand(n) * 2 - 1) * 0.12
    theta = torch.zeros(n, 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = zoom * angle.cos()
    theta[:, 0, 1] = zoom * -angle.sin()
    theta[:, 1, 0] = zoom * angle.sin()
    theta[:, :, 2] = (torch.rand(n, 2) * 2 - 1) * 2 / 8  # the image spans [-1, 1]
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def train(model: nn.Module, images: Tensor, labels: Tensor, epochs: int) -> None:
    """AdamW with a one-cycle schedule."""
    steps = epochs * (len(images) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(images))
        for batch in order.split(BATCH)[: len(images) // BATCH]:
            logits = model(augment(images[batch]))
            loss = F.cross_entropy(logits, labels[batch], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


@torch.no_grad()
def top1(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    return (model(images).argmax(dim=1) == labels).double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the digits CNN.")
    parser.add_argument("--quick", action="store_true", help="a few epochs; writes nothing")
    quick = parser.parse_args().quick

    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    images = F.interpolate(images, size=32, mode="bilinear")  # [1797, 1, 32, 32]
    labels = torch.tensor(digits.target)
    model = create()
    train(model, images[0::2], labels[0::2], epochs=1 if quick else 40)

    weights = {k: v.half() if v.is_floating_point() else v for k, v in model.state_dict().items()}
    model.load_state_dict(weights)  # copied into float32: evaluate what is written
    if not quick:
        save_file(weights, Path(__file__).with_name("weights.safetensors"))
    print(f"held-out top-1: {top1(model, images[1::2], labels[1::2]):.4f}")


if __name__ == "__main__":
    main()

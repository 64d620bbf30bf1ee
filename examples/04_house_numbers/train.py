"""Train the CNN on pictures of house numbers and write its weights (fp16 safetensors).

    python train.py            about ten minutes on two cores; replaces weights.safetensors
    python train.py --quick    under a minute, writes nothing

Every epoch draws new pictures of the training digits (even indices). Pictures of the odd ones are
held out: task.py draws them. What is printed at the end is the top-1 of the weights as they are
written, in fp16.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import task
import torch
import torch.nn.functional as F
from model import create
from safetensors.torch import save_file
from scenes import digits, draw
from torch import nn

BATCH = 32
SEEDS = 10_000  # beyond those of samples.py and task.py


def train(model: nn.Module, epochs: int, most: int | None = None) -> None:
    """AdamW with a one-cycle schedule. `most`: digits of an epoch; None: all."""
    images, labels = (array[:most] for array in digits(0))
    batches = len(images) // BATCH
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=3e-3, total_steps=epochs * batches
    )
    model.train()
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(images))
        for batch in range(batches):
            chosen = order[batch * BATCH : (batch + 1) * BATCH]
            pictures = draw(images[chosen], SEEDS + epoch * batches + batch)
            logits = model(torch.from_numpy(pictures))
            target = torch.from_numpy(labels[chosen])
            loss = F.cross_entropy(logits, target, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


@torch.no_grad()
def top1(model: nn.Module, batches: int | None = None) -> float:
    """On the held-out pictures, or the first `batches` of them."""
    model.eval()
    right: list[np.ndarray] = []
    for number, (feed, labels) in enumerate(task.samples()):
        if number == batches:
            break
        outputs = {"logits": model(torch.from_numpy(feed["image"])).numpy()}
        right.append(task.score(outputs, labels))
    return float(np.concatenate(right).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the CNN on pictures of house numbers.")
    parser.add_argument("--quick", action="store_true", help="a few steps; writes nothing")
    quick = parser.parse_args().quick

    torch.manual_seed(0)
    model = create()
    train(model, epochs=1 if quick else 20, most=64 if quick else None)
    weights = {k: v.half() if v.is_floating_point() else v for k, v in model.state_dict().items()}
    model.load_state_dict(weights)  # copied into float32: evaluate what is written
    if not quick:
        save_file(weights, Path(__file__).with_name("weights.safetensors"))
    print(f"held-out top-1: {top1(model, 2 if quick else None):.4f}")


if __name__ == "__main__":
    main()

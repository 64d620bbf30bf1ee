"""Train the detector on drawn scenes and write its weights (fp16 safetensors).

    python train.py            about half an hour on one core; replaces weights.safetensors
    python train.py --quick    a few seconds, writes nothing

Each step draws new scenes with digits of the training part. What is printed at the end is the mean
average precision of the weights as they are written, in fp16, on scenes with digits of the
validation part. The test part is for task.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import task
import torch
from digit_scenes import feed, scene
from losses import loss
from model import STRIDE, DigitDetector, create, middles
from safetensors.torch import save_file
from torch import nn

BATCH = 16
STEPS = 2400
RADIUS = 1.5 * STRIDE  # pixels


def train(model: DigitDetector, steps: int) -> Iterator[float]:
    """AdamW with a one-cycle schedule; yields the loss of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    model.train()
    for step in range(steps):
        scenes = [scene("train", step * BATCH + one) for one in range(BATCH)]
        sides, logits = model.maps(torch.from_numpy(feed(scenes)["image"]))
        value = loss(sides, logits, middles(*logits.shape[2:]), scenes, RADIUS)
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10)
        optimizer.step()
        schedule.step()
        yield float(value.detach())


@torch.no_grad()
def precision(model: DigitDetector, scenes: int) -> tuple[float, float]:
    """mAP@.5:.95 and mAP@.5 on scenes with digits of the validation part."""
    model.eval()
    rows = []
    for batch, labels in task.samples("validation", scenes):
        outputs = {"detections": model(torch.from_numpy(batch["image"])).numpy()}
        rows.append(task.score(outputs, labels))
    whole = task.combine(np.concatenate(rows))
    ones = np.ones(len(whole))
    return task.weighted(whole)(ones), task.weighted(whole, overlap="50")(ones)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the detector on drawn scenes.")
    parser.add_argument("--quick", action="store_true", help="a few steps; writes nothing")
    quick = parser.parse_args().quick

    torch.manual_seed(0)
    model = create()
    for step, value in enumerate(train(model, 3 if quick else STEPS), 1):
        if step % 100 == 0:
            print(f"step {step}: loss {value:.3f}", flush=True)
    weights = {k: v.half() if v.is_floating_point() else v for k, v in model.state_dict().items()}
    model.load_state_dict(weights)  # copied into float32: evaluate what is written
    if not quick:
        save_file(weights, Path(__file__).with_name("weights.safetensors"))
    whole, half = precision(model, 16 if quick else 256)
    print(f"validation mAP@.5:.95: {whole:.4f}, mAP@.5: {half:.4f}")


if __name__ == "__main__":
    main()

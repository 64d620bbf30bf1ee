"""FP32, PTQ and QAT of the digits CNN (examples/01_digits_cnn), in INT8.

    python experiments/qat/digits.py l4 learned 60      target, kind of scales, steps

Prints a row of docs/benchmarks.md: top-1 on the 898 held-out digits (FP32; then the simulation of
the PTQ graph and of the QAT graph), the SQNR of both graphs to FP32, that of the QAT graph to the
module that was trained, landed and planned nodes, and the
bytes that the engine moves.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import Tensor, nn

from optkit import pipeline, qat
from optkit.api import jobs
from optkit.qat.agreement import sqnr
from optkit.runtimes import SessionOptions, simulator
from optkit.workspace import Workspace

EXAMPLE = Path(__file__).parents[2] / "examples" / "01_digits_cnn"
sys.path.insert(0, str(EXAMPLE))
from model import create  # noqa: E402
from train import augment  # noqa: E402

RECIPE = {"axes": {"batch": {"min": 1, "opt": 8, "max": 32}}}


def digits() -> tuple[Tensor, Tensor]:
    found = load_digits()
    images = torch.tensor(found.images / 16, dtype=torch.float32)[:, None]
    return F.interpolate(images, size=32, mode="bilinear"), torch.tensor(found.target)


def train(net: nn.Module, images: Tensor, labels: Tensor, steps: int) -> None:
    net.train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        chosen = torch.randint(len(images), (64,))
        loss = F.cross_entropy(net(augment(images[chosen])), labels[chosen], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    net.eval()


@dataclass
class Outcome:
    """`logits` of the simulation on the held-out digits."""

    logits: np.ndarray
    landing: str
    layers: int
    megabytes: float


def build(net: nn.Module, images: Tensor, calibration: list[Tensor], target: str) -> Outcome:
    runner = Workspace(listener=None).runner()
    job = jobs.job_of(
        net, images[:4], jobs.pair(target, "int8"), recipe=RECIPE, calibration=calibration,
        name="digits", runner=runner,
    )  # fmt: skip
    found = pipeline.run(job, runner, pipeline.COMPILE)
    assert found.quantized is not None and found.engine is not None
    file = found.quantized.path / found.quantized.simulation
    with simulator().session(file, SessionOptions(1, level="none")) as session:
        (logits,) = session.run({"image": images.numpy()}).values()
    engine = found.engine.engine
    landing = f"{engine.landing.landed}/{engine.landing.planned}"
    return Outcome(logits, landing, len(engine.layers), (engine.bytes_moved or 0) / 2**20)


def main() -> None:
    target, scales, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.manual_seed(0)
    images, labels = digits()
    held_out, truth = images[1::2], labels[1::2].numpy()
    calibration = list(images[0::2][:256].split(8))
    net = create()
    net.load_state_dict(load_file(EXAMPLE / "weights.safetensors"))
    net.eval()
    trained = qat.prepare(
        net, images[:4], target=target, recipe=RECIPE, calibration=calibration,
        scales="learned" if scales == "learned" else "fixed",
        workspace=Workspace(listener=None),
    )  # fmt: skip
    started = time.process_time()
    train(trained, images[0::2], labels[0::2], steps)
    seconds = time.process_time() - started
    with torch.no_grad():
        float_logits, module = net(held_out).numpy(), trained(held_out).numpy()
    without = build(net, held_out, calibration, target)
    after = build(qat.finalize(trained), held_out, calibration, target)

    def top1(logits: np.ndarray) -> str:
        return f"{(logits.argmax(1) == truth).mean():.2%}"

    print(f"{target}, {scales} scales, {steps} steps in {seconds:.0f} s of CPU")
    print(f"top-1: FP32 {top1(float_logits)}, PTQ {top1(without.logits)}, QAT {top1(after.logits)}"
          f" (module {top1(module)})")  # fmt: skip
    print(f"SQNR: PTQ to FP32 {sqnr(float_logits, without.logits):.1f} dB, "
          f"QAT graph to the trained module {sqnr(module, after.logits):.1f} dB")  # fmt: skip
    print(f"landed: PTQ {without.landing}, QAT {after.landing}; layers {without.layers}, "
          f"{after.layers}; MiB moved {without.megabytes:.3f}, {after.megabytes:.3f}")  # fmt: skip


if __name__ == "__main__":
    main()

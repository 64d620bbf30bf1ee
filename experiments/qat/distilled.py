"""PTQ and QAT by distillation, without labels: SQNR to FP32 and top-1 on held-out digits.

    python experiments/qat/distilled.py             writes distilled.json beside itself

The model is a small MobileNetV2 with Hardswish, trained here on half of scikit-learn's digits. Its
build (PTQ, with all that a build does) and its distilled build get the same 448 unlabelled digits.
Both graphs are run by the simulator on the other half of the digits. One thread.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from optkit import pipeline, qat
from optkit.api import jobs
from optkit.qat.agreement import sqnr
from optkit.runtimes import SessionOptions, simulator
from optkit.workspace import Workspace

RECIPE: dict[str, Any] = {"axes": {"batch": {"min": 1, "opt": 16, "max": 32}}}
QUIET = Workspace(listener=None)
CASES = (("l4", "fp8"), ("l4", "int8"), ("cpu", "int8"), ("l4", "int4"), ("cpu", "int4"))
BLOCKS = ((16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 24, 1), (24, 40, 2), (40, 40, 1))


def layer(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list:  # type: ignore[type-arg]
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class Block(nn.Module):
    """Four times the channels, a depthwise convolution, and fewer channels again; with a shortcut
    if the shape stays."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        wide, self.shortcut = 4 * inputs, inputs == outputs and stride == 1
        self.layers = nn.Sequential(
            *layer(inputs, wide, 1), nn.Hardswish(),
            *layer(wide, wide, 3, stride, wide), nn.Hardswish(), *layer(wide, outputs, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.shortcut else y


class Network(nn.Module):
    """image [B, 1, 32, 32] → logits [B, 10]"""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*layer(1, 16, 3, 2), nn.Hardswish())
        self.blocks = nn.Sequential(*[Block(*sizes) for sizes in BLOCKS])
        self.last = nn.Sequential(*layer(40, 128, 1), nn.Hardswish())
        self.head = nn.Linear(128, 10)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.last(self.blocks(self.stem(image))).mean(dim=(2, 3)))


def trained(images: Tensor, labels: Tensor, steps: int = 350) -> nn.Module:
    net = Network()
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, steps)
    for _ in range(steps):
        chosen = torch.randint(len(images), (64,))
        moved = torch.roll(images[chosen], tuple(torch.randint(-3, 4, (2,)).tolist()), (2, 3))
        loss = F.cross_entropy(net(moved), labels[chosen], label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return net.eval()


def graph_logits(
    net: nn.Module,
    batches: list[Tensor],
    target: str,
    precision: str,
    held: Tensor,
    recipe: dict[str, Any] = RECIPE,
    workspace: Workspace = QUIET,
) -> np.ndarray:
    """What the simulation of the built graph returns for the held-out digits: [samples, 10]."""
    runner = workspace.runner()
    job = jobs.job_of(
        net, batches[0], jobs.pair(target, precision), recipe=recipe, calibration=batches,
        name="digits", runner=runner,
    )  # fmt: skip
    quantized = pipeline.run(job, runner, pipeline.QUANTIZE).quantized
    assert quantized is not None
    file = quantized.path / quantized.simulation
    with simulator().session(file, SessionOptions(1, level="none")) as session:
        (name,) = (given.name for given in session.inputs)
        parts = [next(iter(session.run({name: x.numpy()}).values())) for x in held.split(32)]
    return np.concatenate(parts)


@dataclass(frozen=True)
class Case:
    """`start_db`: of the prepared module, before the distillation. `seconds`: of the distillation,
    `prepare_seconds`: of `prepare`, by the clock."""

    target: str
    precision: str
    fp32_top1: float
    ptq_db: float
    ptq_top1: float
    start_db: float
    distilled_db: float
    distilled_top1: float
    steps: int
    best_step: int
    seconds: float
    prepare_seconds: float


def measure(
    net: nn.Module, batches: list[Tensor], held: Tensor, truth: np.ndarray,
    target: str, precision: str,
) -> Case:  # fmt: skip
    started = time.monotonic()
    student = qat.prepare(
        net, batches[0], target=target, precision=precision, recipe=RECIPE, calibration=batches,
        workspace=QUIET,
    )  # fmt: skip
    prepared = time.monotonic() - started
    with torch.no_grad():
        expected, start = net(held).numpy(), student.eval()(held).numpy()
    found = qat.distill(student, batches, workspace=QUIET)
    ptq = graph_logits(net, batches, target, precision, held)
    distilled = graph_logits(qat.finalize(student), batches, target, precision, held)

    def top1(logits: np.ndarray) -> float:
        return float((logits.argmax(1) == truth).mean())

    return Case(
        target, precision, top1(expected), sqnr(expected, ptq), top1(ptq), sqnr(expected, start),
        sqnr(expected, distilled), top1(distilled), found.steps, found.best_step, found.seconds,
        prepared,
    )  # fmt: skip


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    found = load_digits()
    digits = torch.tensor(found.images / 16, dtype=torch.float32)[:, None]
    images = F.interpolate(digits, size=32, mode="bilinear")
    labels = torch.tensor(found.target)
    net = trained(images[0::2], labels[0::2])
    batches, held = list(images[0::2][:448].split(16)), images[1::2]
    cases = []
    for target, precision in CASES:
        case = measure(net, batches, held, labels[1::2].numpy(), target, precision)
        print(case, flush=True)
        cases.append(asdict(case))
    text = json.dumps({"evidence": "simulated", "cases": cases}, indent=1)
    Path(__file__).with_suffix(".json").write_text(text + "\n")


if __name__ == "__main__":
    main()

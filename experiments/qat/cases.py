"""Trained models that lose something in few bits, and how each one is trained for them.

Held-out digits are moved as the float training moves its digits (rotated, scaled, shifted), 16
times each, because 898 digits alone do not show a loss of some tenths of a point. All moves of a
digit are one sample of the intervals.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import distilled
import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, load_model, save_model
from sklearn.datasets import load_digits
from torch import Tensor, nn

from optkit import qat
from optkit.placement import PlacementRules
from optkit.precisions import NumberFormat
from optkit.workspace import Workspace

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path += [str(EXAMPLES / "07_healed_decoder"), str(EXAMPLES.parent / "experiments/fourbit")]
import decoder  # noqa: E402  (of these folders)
from cpu_rules import changed_rules  # noqa: E402

AXES = {"batch": {"min": 1, "opt": 8, "max": 64}}
QUIET = Workspace(listener=None)
MOVES = 16
PERPLEXITY = "perplexity of a byte"
SCENES, DETECTOR_STEPS, LABELLED_STEPS = 1024, 200, 400
TOP1, NATS = "top-1, %", "cross-entropy, nats"
DIVERGENCE = "divergence from FP32, nats"
MAP = "mAP@.5:.95, %"

Run = Callable[[np.ndarray], np.ndarray]
"""A batch of inputs → the output."""
Metric = Callable[[np.ndarray], float]
"""The indices of samples → the metric of these samples."""
Augment = Callable[[Tensor], Tensor]
Rules = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Case:
    """A trained model, its training, and what it is quantized to. `precision`: with the
    quantization that a recipe asks for. `score`: a model → for each of `metrics` the metric of
    chosen samples, of which there are `samples`. `metrics`: a name → whether more is better.
    `labels`: whether `train` reads them; otherwise it distils the float model. `rules`: of the
    build, where they are not the product's."""

    net: nn.Module
    input: str
    calibration: list[Tensor]
    train: Callable[[nn.Module], None]
    metrics: dict[str, bool]
    samples: int
    score: Callable[[Run], dict[str, Metric]]
    target: str
    precision: str
    quantization: dict[str, Any]
    labels: bool = True
    rules: Rules = nullcontext

    @property
    def recipe(self) -> dict[str, Any]:
        return {"axes": AXES, "quantization": self.quantization}

    def feeds(self) -> list[dict[str, Tensor]]:
        return [{self.input: batch} for batch in self.calibration]


@dataclass(frozen=True)
class Moved:
    """Images in batches of 64, moved anew in each pass."""

    images: Tensor
    augment: Augment

    def __len__(self) -> int:
        return math.ceil(len(self.images) / 64)

    def __iter__(self) -> Iterator[Tensor]:
        for chosen in torch.randperm(len(self.images)).split(64):
            yield self.augment(self.images[chosen])


@dataclass(frozen=True)
class Drawn:
    """So many batches, each drawn when it is read."""

    draw: Callable[[int], Tensor]
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Tensor]:
        return map(self.draw, range(self.count))


def trained_once(
    scratch: Path, name: str, create: Callable[[], nn.Module], train: Callable[[nn.Module], None]
) -> nn.Module:
    """The model of the file in `scratch`, or a new one after its float training."""
    torch.manual_seed(0)
    net, file = create(), scratch / f"{name}.safetensors"
    if not file.exists():
        train(net)
        save_model(net, str(file))
    load_model(net, str(file))
    return net.eval()


def module_in(example: str, name: str) -> Any:
    """A module of an example, by its path: two examples have a `model.py`."""
    place = str(EXAMPLES / example)
    sys.path.insert(0, place)
    try:
        for other in ("model", "train"):
            sys.modules.pop(other, None)
        return importlib.import_module(name)
    finally:
        sys.path.remove(place)


def digits(side: int) -> tuple[Tensor, Tensor]:
    """Images float32 [1797, 1, side, side] in [0, 1], and labels. Even ones are for training."""
    found = load_digits()
    images = torch.tensor(found.images / 16, dtype=torch.float32)[:, None]
    if side != images.shape[-1]:
        images = F.interpolate(images, size=side, mode="bilinear")
    return images, torch.tensor(found.target)


def of_digits(
    net: nn.Module, side: int, augment: Augment, target: str, precision: str,
    quantization: dict[str, Any], steps: int, rules: Rules = nullcontext,
) -> Case:  # fmt: skip
    """Distilled without labels, on moved digits of the training part. An eighth of them is not
    trained, for the checks."""
    images, labels = digits(side)
    seen = images[0::2]
    checked = torch.arange(len(seen)) % 8 == 0
    with torch.random.fork_rng():
        torch.manual_seed(7)
        calibration, checks = augment(seen[:256]), augment(seen[checked].repeat(4, 1, 1, 1))
        held = augment(images[1::2].repeat(MOVES, 1, 1, 1))
    truth = labels[1::2].repeat(MOVES)
    with torch.no_grad():
        of_float = torch.cat([net(x).double() for x in held.split(64)]).log_softmax(1)

    def train(net: nn.Module) -> None:
        qat.distill(
            net, Moved(seen[~checked], augment), loss=qat.Distillation(net, loss="kl"),
            steps=steps, held_out=checks.split(64), workspace=QUIET,
        )  # fmt: skip

    def score(run: Run) -> dict[str, Metric]:
        logits = torch.from_numpy(np.concatenate([run(x.numpy()) for x in held.split(64)])).double()
        return {
            TOP1: mean_of(100 * (logits.argmax(1) == truth).double()),
            NATS: mean_of(F.cross_entropy(logits, truth, reduction="none")),
            DIVERGENCE: mean_of((of_float.exp() * (of_float - logits.log_softmax(1))).sum(1)),
        }

    return Case(
        net, "image", list(calibration.split(8)), train,
        {TOP1: True, NATS: False, DIVERGENCE: False}, len(truth) // MOVES, score, target,
        precision, quantization, labels=False, rules=rules,
    )  # fmt: skip


def mean_of(scores: Tensor) -> Metric:
    """Of the scores of all moves of the digits, [MOVES · digits]."""
    of_digit = scores.view(MOVES, -1).mean(0).numpy()
    return lambda indices: float(of_digit[indices].mean())


def vit(
    scratch: Path, target: str, precision: str, quantization: dict[str, Any], steps: int = 1600
) -> Case:
    """The digits ViT of examples/00_digits_vit, but of width 32: of width 64 PTQ in 4 bits loses
    nothing."""
    training = module_in("00_digits_vit", "train")
    create = module_in("00_digits_vit", "model").create
    images, labels = digits(8)
    net = trained_once(
        scratch, "vit", partial(create, 32, 3, 2),
        lambda net: training.train(net, images[0::2], labels[0::2], 200),
    )  # fmt: skip
    return of_digits(net, 8, training.augment, target, precision, quantization, steps)


def convolutions(scratch: Path, bits: int) -> Case:
    """The small MobileNetV2 of distilled.py in W4A8 or W3A8, `narrowed`."""
    images, labels = digits(32)

    def train(net: nn.Module) -> None:
        net.load_state_dict(distilled.trained(images[0::2], labels[0::2]).state_dict())

    net = trained_once(scratch, "mobilenet", distilled.Network, train)
    augment = module_in("01_digits_cnn", "train").augment
    return of_digits(net, 32, augment, "cpu", "int8", {}, 200, partial(narrowed, bits))


def narrowed(bits: int) -> AbstractContextManager[object]:
    """Meanwhile INT8 on a CPU has weights of so many bits per channel, of depthwise convolutions
    too. No kernel reads such convolutions (experiments/fourbit/convolutions.py)."""

    def everywhere(rules: PlacementRules) -> PlacementRules:
        weight = NumberFormat("int8", "channel", symmetric=True, limit_bits=bits)
        return replace(rules, weight=weight, depthwise_conv="anywhere", kernels=None)

    return changed_rules("int8", everywhere)


def bytes_decoder(
    scratch: Path, target: str, quantization: Any, count: int = 512, precision: str = "int4"
) -> Case:
    """The decoder of examples/07_healed_decoder."""
    net = trained_once(
        scratch, "decoder", decoder.Decoder,
        lambda net: decoder.train(net, decoder.FLOAT_STEPS, decoder.FLOAT_RATE),
    )  # fmt: skip
    windows = decoder.held_out(count)

    def score(run: Run) -> dict[str, Metric]:
        batches = [batch.numpy() for batch in windows.split(32)]
        losses = np.concatenate([decoder.losses(run(ids), ids) for ids in batches])
        return {PERPLEXITY: lambda indices: float(np.exp(losses[indices].mean()))}

    return Case(
        net, "ids", decoder.calibration(), lambda net: decoder.train(net, 300, 3e-4),
        {PERPLEXITY: False}, len(windows), score, target, precision, quantization,
    )  # fmt: skip


def detector(target: str, precision: str, bits: int | None = None, *, labels: bool = False) -> Case:
    """The digit detector of examples/05_digit_detector, on scenes of its test part. `bits`: of all
    weights, `narrowed`. Trained on new scenes: with their boxes and its own losses if `labels`,
    or else distilled: the divergence of the probabilities, and the distance of the boxes in cells,
    weighted by the largest probability of the float model."""
    training = module_in("05_digit_detector", "train")
    task, scene, feed = training.task, training.scene, training.feed
    samples = module_in("05_digit_detector", "samples").samples
    net = training.create()
    net.load_state_dict(load_file(EXAMPLES / "05_digit_detector" / "weights.safetensors"))

    def unlike(found: Tensor, expected: Tensor) -> Tensor:
        """Of outputs [B, 4 + classes, cells]."""
        p, q = (y[:, 4:].clamp(1e-6, 1 - 1e-6) for y in (found, expected))
        divergence = q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log()
        weight = q.amax(1)
        away = (found[:, :4] - expected[:, :4]).abs().sum(1) / training.STRIDE
        return (divergence.sum() + (weight * away).sum()) / weight.sum()

    def scenes(at: int) -> list[Any]:
        return [scene("train", n) for n in range(2_000_000 + 16 * at, 2_000_016 + 16 * at)]

    def with_labels(net: Any) -> None:
        prepared = hasattr(net, "qat_plan")
        groups = qat.parameter_groups(net, 3e-4) if prepared else [{"params": net.parameters()}]
        optimizer = torch.optim.AdamW(groups, lr=3e-4, weight_decay=0)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=[group["lr"] for group in optimizer.param_groups],
            total_steps=LABELLED_STEPS, pct_start=0.1,
        )  # fmt: skip
        for step in range(LABELLED_STEPS):
            drawn = scenes(step)
            sides, logits = net.maps(torch.from_numpy(feed(drawn)["image"]))
            middle = training.middles(*logits.shape[2:])
            loss = training.loss(sides, logits, middle, drawn, training.RADIUS)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 10)
            optimizer.step()
            schedule.step()

    def distil(net: nn.Module) -> None:
        def drawn(at: int) -> Tensor:
            image: Tensor = torch.from_numpy(feed(scenes(at))["image"])
            return image

        qat.distill(
            net, Drawn(drawn, DETECTOR_STEPS), loss=qat.Distillation(net, loss=unlike),
            steps=DETECTOR_STEPS, workspace=QUIET,
        )  # fmt: skip

    def score(run: Run) -> dict[str, Metric]:
        rows = [task.score({"detections": run(feed["image"])}, labels)
                for feed, labels in task.samples(scenes=SCENES)]  # fmt: skip
        precision = task.weighted(task.combine(np.concatenate(rows)))
        return {MAP: lambda chosen: float(100 * precision(np.bincount(chosen, minlength=SCENES)))}

    return Case(
        net.eval(), "image", [torch.from_numpy(each["image"]) for each in samples()],
        with_labels if labels else distil,
        {MAP: True}, SCENES, score, target, precision, {}, labels=labels,
        rules=nullcontext if bits is None else partial(narrowed, bits),
    )  # fmt: skip

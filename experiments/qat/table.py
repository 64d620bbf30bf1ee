"""FP32, PTQ and QAT, with intervals, where 4 bits or FP8 cost accuracy.

    python experiments/qat/table.py SCRATCH [--case NAME] [--threads 2]

Each case is a trained model, a target and a precision with the recipe that a user would write. The
rows are FP32, FP32 trained as long as QAT, PTQ (the build's default) and QAT (`optkit.qat`, learned
scales), each as the simulation of its graph on held-out samples. Intervals are paired bootstraps
over samples, in the unit of the metric: what PTQ and QAT lose, what QAT gains from PTQ, and what it
loses to FP32 trained as long.

Writes a line per case into table.json beside this file; trained float models are kept in SCRATCH.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, load_model, save_model
from sklearn.datasets import load_digits
from torch import Tensor, nn

from optkit import pipeline, qat
from optkit.api import jobs
from optkit.benchmarking.intervals import bootstrap
from optkit.runtimes import SessionOptions, simulator
from optkit.workspace import Workspace

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.append(str(EXAMPLES / "07_healed_decoder"))
import decoder  # noqa: E402  (of that folder)

AXES = {"batch": {"min": 1, "opt": 8, "max": 64}}

Run = Callable[[np.ndarray], np.ndarray]
"""A batch of inputs → the output."""
Metric = Callable[[np.ndarray], float]
"""The indices of samples → the metric of these samples."""


@dataclass(frozen=True)
class Case:
    """A trained model, its training, and what it is quantized to. `precision`: with the
    quantization that a recipe asks for. `score`: a model → the metric of chosen samples, of which
    there are `samples`. `larger`: whether more is better."""

    net: nn.Module
    input: str
    calibration: list[Tensor]
    train: Callable[[nn.Module], None]
    metric: str
    larger: bool
    samples: int
    score: Callable[[Run], Metric]
    target: str
    precision: str
    quantization: dict[str, Any]

    @property
    def recipe(self) -> dict[str, Any]:
        return {"axes": AXES, "quantization": self.quantization}

    def feeds(self) -> list[dict[str, Tensor]]:
        return [{self.input: batch} for batch in self.calibration]


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


def vit(scratch: Path, target: str, precision: str, quantization: Any) -> Case:
    """The digits ViT of examples/00_digits_vit, but of width 32: of width 64 PTQ loses nothing."""
    training = module_in("00_digits_vit", "train")
    create = module_in("00_digits_vit", "model").create
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    labels = torch.tensor(digits.target)
    net = trained_once(
        scratch, "vit", partial(create, 32, 3, 2),
        lambda net: training.train(net, images[0::2], labels[0::2], 200),
    )  # fmt: skip

    def train(net: nn.Module) -> None:
        optimizer = torch.optim.AdamW(net.parameters(), lr=2e-4, weight_decay=0)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
        net.train()
        for _ in range(400):
            chosen = 2 * torch.randint(len(images) // 2, (64,))
            optimizer.zero_grad()
            F.cross_entropy(net(training.augment(images[chosen])), labels[chosen]).backward()
            optimizer.step()
            schedule.step()
        net.eval()

    def score(run: Run) -> Metric:
        right = run(images[1::2].numpy()).argmax(1) == labels[1::2].numpy()
        return lambda indices: float(100 * right[indices].mean())

    return Case(
        net.eval(), "image", list(images[0::2][:256].split(8)), train, "top-1, %", True, 898,
        score, target, precision, quantization,
    )  # fmt: skip


def bytes_decoder(
    scratch: Path, target: str, quantization: Any, count: int = 512, precision: str = "int4"
) -> Case:
    """The decoder of examples/07_healed_decoder."""
    net = trained_once(
        scratch, "decoder", decoder.Decoder,
        lambda net: decoder.train(net, decoder.FLOAT_STEPS, decoder.FLOAT_RATE),
    )  # fmt: skip
    windows = decoder.held_out(count)

    def score(run: Run) -> Metric:
        batches = [batch.numpy() for batch in windows.split(32)]
        losses = np.concatenate([decoder.losses(run(ids), ids) for ids in batches])
        return lambda indices: float(np.exp(losses[indices].mean()))

    return Case(
        net, "ids", decoder.calibration(), lambda net: decoder.train(net, 300, 3e-4),
        "perplexity of a byte", False, len(windows), score, target, precision, quantization,
    )  # fmt: skip


def detector() -> Case:
    """The digit detector of examples/05_digit_detector, on scenes of its test part."""
    training = module_in("05_digit_detector", "train")
    task, scenes, losses = training.task, training, module_in("05_digit_detector", "losses")
    samples = module_in("05_digit_detector", "samples").samples
    net = training.create()
    net.load_state_dict(load_file(EXAMPLES / "05_digit_detector" / "weights.safetensors"))

    def train(net: Any) -> None:
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 120)
        net.train()
        for step in range(120):
            drawn = [scenes.scene("train", 2_000_000 + 16 * step + one) for one in range(16)]
            sides, logits = net.maps(torch.from_numpy(scenes.feed(drawn)["image"]))
            middle = training.middles(*logits.shape[2:])
            optimizer.zero_grad()
            losses.loss(sides, logits, middle, drawn, training.RADIUS).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 10)
            optimizer.step()
            schedule.step()
        net.eval()

    def score(run: Run) -> Metric:
        rows = [task.score({"detections": run(feed["image"])}, labels)
                for feed, labels in task.samples()]  # fmt: skip
        precision = task.weighted(task.combine(np.concatenate(rows)))
        return lambda chosen: float(100 * precision(np.bincount(chosen, minlength=512)))

    calibration = [torch.from_numpy(feed["image"]) for feed in samples()]
    return Case(
        net.eval(), "image", calibration, train, "mAP@.5:.95, %", True, 512, score, "l4", "fp8", {}
    )


CASES: dict[str, Callable[[Path], Case]] = {
    "ViT of width 32, INT4, l4": lambda place: vit(place, "l4", "int4", {}),
    "ViT of width 32, W4A8 in blocks of 128, cpu": lambda place: vit(
        place, "cpu", "w4a8", {"block_size": 128}
    ),
    "decoder of bytes, INT4, l4": lambda place: bytes_decoder(place, "l4", {}),
    "decoder of bytes, INT2, cpu": lambda place: bytes_decoder(place, "cpu", {}, precision="int2"),
    "digit detector, FP8, l4": lambda _: detector(),
}


def in_torch(net: nn.Module) -> Run:
    def run(batch: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            found: np.ndarray = net(torch.from_numpy(batch)).numpy()
        return found

    return run


def graph_score(case: Case, net: nn.Module) -> Metric:
    """Of the simulation of the graph that a build writes."""
    runner = Workspace(listener=None).runner()
    job = jobs.job_of(
        net, {case.input: case.calibration[0][:4]}, jobs.pair(case.target, case.precision),
        recipe=case.recipe, calibration=case.feeds(), name="table", runner=runner,
    )  # fmt: skip
    found = pipeline.run(job, runner, pipeline.QUANTIZE).quantized
    assert found is not None
    options = SessionOptions(torch.get_num_threads(), level="none")
    with simulator().session(found.path / found.simulation, options) as session:
        return case.score(lambda batch: next(iter(session.run({case.input: batch}).values())))


def row(case: Case) -> dict[str, object]:
    """Losses and gains are positive where the first of the two models is better."""
    torch.manual_seed(1)
    started = time.monotonic()
    prepared = qat.prepare(
        case.net, {case.input: case.calibration[0][:4]}, target=case.target,
        precision=case.precision, recipe=case.recipe, calibration=case.feeds(),
        workspace=Workspace(listener=None),
    )  # fmt: skip
    case.train(prepared)
    minutes = (time.monotonic() - started) / 60
    longer = copy.deepcopy(case.net)
    torch.manual_seed(1)
    case.train(longer)
    fp32, fp32_longer = (case.score(in_torch(net)) for net in (case.net, longer))
    ptq, trained = (graph_score(case, net) for net in (case.net, qat.finalize(prepared)))
    sign = 1 if case.larger else -1

    def lead(first: Metric, second: Metric) -> list[float]:
        def difference(indices: np.ndarray) -> float:
            return sign * (first(indices) - second(indices))

        found = bootstrap(case.samples, difference)
        return [difference(np.arange(case.samples)), found.low, found.high]

    everything = np.arange(case.samples)
    return {
        "target": case.target, "precision": case.precision, "quantization": case.quantization,
        "metric": case.metric, "samples": case.samples,
        "fp32": fp32(everything), "fp32_trained_longer": fp32_longer(everything),
        "ptq": ptq(everything), "qat": trained(everything),
        "ptq_loss": lead(fp32, ptq), "qat_loss": lead(fp32, trained),
        "qat_gain": lead(trained, ptq), "qat_loss_of_longer": lead(fp32_longer, trained),
        "minutes": minutes, "threads": torch.get_num_threads(),
    }  # fmt: skip


def command_line(description: str, cases: Iterable[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("scratch", type=Path, help="the folder for trained float models")
    parser.add_argument("--case", action="append", choices=list(cases), help="default: all")
    parser.add_argument("--threads", type=int, default=2)
    return parser


def write_rows(
    options: argparse.Namespace,
    cases: Iterable[str],
    row_of: Callable[[str], dict[str, object]],
    place: Path,
) -> None:
    """Measure the chosen cases, and write each row into `place`, which keeps those of others."""
    options.scratch.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    for name in options.case or cases:
        found = row_of(name)
        rows = json.loads(place.read_text()) if place.exists() else {}
        place.write_text(json.dumps(rows | {name: found}, indent=1) + "\n")
        print(name, json.dumps(found), flush=True)


def main() -> None:
    options = command_line("FP32, PTQ and QAT, with intervals.", CASES).parse_args()
    place = Path(__file__).with_suffix(".json")
    write_rows(options, CASES, lambda name: row(CASES[name](options.scratch)), place)


if __name__ == "__main__":
    main()

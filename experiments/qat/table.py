"""FP32, PTQ and QAT, with intervals, where few bits cost accuracy.

    python experiments/qat/table.py SCRATCH [--case NAME] [--threads 2]

Each case is a trained model, a target and a precision with the recipe that a user would write
(`cases.py`). The rows are FP32, PTQ (the build's default) and QAT (`optkit.qat`, learned scales),
each as the simulation of its graph on held-out samples; where the training reads labels, also FP32
trained as long. Intervals are paired bootstraps over samples, in the unit of the metric: what PTQ
and QAT lose, what QAT gains from PTQ, and what it loses to FP32 trained as long.

Writes a line per case into table.json beside this file; trained float models are kept in SCRATCH.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from cases import Case, Metric, Run, bytes_decoder, convolutions, detector, vit
from torch import nn

from optkit import pipeline, qat
from optkit.api import jobs
from optkit.benchmarking.intervals import bootstrap
from optkit.runtimes import SessionOptions, simulator
from optkit.workspace import Workspace

CASES: dict[str, Callable[[Path], Case]] = {
    "ViT of width 32, INT4, l4": lambda place: vit(place, "l4", "int4", {}),
    "ViT of width 32, INT2, cpu": lambda place: vit(place, "cpu", "int2", {}, 2000),
    "MobileNetV2, W4A8, simulated": lambda place: convolutions(place, 4),
    "decoder of bytes, INT4, l4": lambda place: bytes_decoder(place, "l4", {}),
    "decoder of bytes, INT2, cpu": lambda place: bytes_decoder(place, "cpu", {}, precision="int2"),
    "digit detector, FP8, l4": lambda _: detector("l4", "fp8"),
    "digit detector, W4A8, simulated": lambda _: detector("cpu", "int8", bits=4),
    "digit detector, W4A8, with labels": lambda _: detector("cpu", "int8", bits=4, labels=True),
}


def in_torch(net: nn.Module) -> Run:
    def run(batch: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            found: np.ndarray = net(torch.from_numpy(batch)).numpy()
        return found

    return run


def graph_score(case: Case, net: nn.Module) -> dict[str, Metric]:
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


def trained(case: Case) -> nn.Module:
    """Prepared and trained, in float again."""
    prepared = qat.prepare(
        case.net, {case.input: case.calibration[0][:4]}, target=case.target,
        precision=case.precision, recipe=case.recipe, calibration=case.feeds(),
        workspace=Workspace(listener=None),
    )  # fmt: skip
    case.train(prepared)
    return qat.finalize(prepared)


def row(case: Case) -> dict[str, object]:
    """Losses and gains are positive where the first of the two models is better."""
    torch.manual_seed(1)
    started = time.monotonic()
    with case.rules():
        finished = trained(case)
        minutes = (time.monotonic() - started) / 60
        scores = {
            "fp32": case.score(in_torch(case.net)),
            "ptq": graph_score(case, case.net),
            "qat": graph_score(case, finished),
        }
    if case.labels:
        longer = copy.deepcopy(case.net)
        torch.manual_seed(1)
        case.train(longer)
        scores["fp32_trained_longer"] = case.score(in_torch(longer))
    metric, *others = case.metrics
    return {
        "target": case.target, "precision": case.precision, "quantization": case.quantization,
        "training": "labels" if case.labels else "distillation",
        "metric": metric, "samples": case.samples, **compared(case, scores, metric),
        "other_metrics": {name: compared(case, scores, name) for name in others},
        "minutes": minutes, "threads": torch.get_num_threads(),
    }  # fmt: skip


def compared(case: Case, scores: dict[str, dict[str, Metric]], name: str) -> dict[str, object]:
    """The metric of each model, and differences with their intervals."""
    of = {model: found[name] for model, found in scores.items()}
    sign, everything = 1 if case.metrics[name] else -1, np.arange(case.samples)

    def lead(first: str, second: str) -> list[float]:
        def difference(indices: np.ndarray) -> float:
            return sign * (of[first](indices) - of[second](indices))

        found = bootstrap(case.samples, difference)
        return [difference(everything), found.low, found.high]

    pairs = {"ptq_loss": ("fp32", "ptq"), "qat_loss": ("fp32", "qat"), "qat_gain": ("qat", "ptq")}
    if case.labels:
        pairs["qat_loss_of_longer"] = "fp32_trained_longer", "qat"
    return {model: metric(everything) for model, metric in of.items()} | {
        told: lead(*pair) for told, pair in pairs.items()
    }


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

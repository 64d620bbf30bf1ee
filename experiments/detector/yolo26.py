"""A small YOLO26, trained on drawn scenes: INT8 by every calibration method beside FP32.

    python experiments/detector/yolo26.py train FOLDER     25 minutes of one core; needs ultralytics
    python experiments/detector/yolo26.py judge FOLDER     quantizes, and writes yolo26.json

`train` writes the exported graphs into FOLDER: `raw` (boxes and scores of all places, NMS is left
to the caller) and `chosen` (`end2end`: the best places of a picture, by TopK). Both have the same
weights. The scenes are those of examples/05_digit_detector. Each figure is of ONNX Runtime on this
CPU: measured for `cpu`, simulated for `l4`.

    SQNR    of boxes (4 channels) and of scores (10 channels) apart
    F1      detections of INT8 (score of .25 or more) beside those of FP32 as the truth: same class,
            IoU of .5 or more
    mAP     .5:.95, as the task `detection` computes it
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import date
from pathlib import Path

import numpy as np

from optkit.benchmarking.detection import combine, score, weighted
from optkit.data import frames
from optkit.runtimes import backend

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "05_digit_detector"))
from digit_scenes import MOST, SIZE, Scene, feed, scene

STEPS, BATCH, SCENES, WIDTH = 1200, 16, 6000, 0.125
METHODS = ("auto", "minmax", "mse", "percentile", "entropy")
VARIANTS = {
    "cpu": ["--target", "cpu"],
    "cpu all": ["--target", "cpu", "--set", 'quantization.nodes={"*": int8}'],  # whatever it costs
    "l4": ["--target", "l4"],
    "l4 head in fp16": ["--target", "l4", "--set", 'quantization.nodes={"model.23.*": fp16}'],
}
COMPARED = ("cpu all", "l4")  # by all methods
SURE, SAME = 0.25, 0.5
TESTED, CALIBRATED = 192, 96
_MODEL = """import torch
from pathlib import Path


def create(end2end=False):
    model = torch.load(Path(__file__).parent / "yolo26.pt", weights_only=False)
    model.end2end = end2end
    return model
"""


def train(folder: Path) -> None:
    """Train the shape of yolo26n with half its width, and export both heads."""
    import torch
    from ultralytics.cfg import get_cfg
    from ultralytics.nn.tasks import DetectionModel, yaml_model_load

    torch.manual_seed(0)
    shape = yaml_model_load("yolo26n.yaml")
    shape |= {"nc": 10, "scales": {"n": [0.5, WIDTH, 1024]}}
    model = DetectionModel(shape, ch=3, nc=10, verbose=False)
    model.args = get_cfg(overrides={"epochs": 100})
    scenes = [scene("train", number) for number in range(SCENES)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=STEPS)
    mean = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.995), use_buffers=True
    )
    rng = np.random.default_rng(0)
    model.train()
    for step in range(STEPS):
        loss, _ = model.loss(_batch([scenes[n] for n in rng.integers(0, SCENES, BATCH)]))
        optimizer.zero_grad()
        loss.sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10)
        optimizer.step()
        schedule.step()
        mean.update_parameters(model)
        if step % (STEPS // 100) == 0:
            model.criterion.update()  # one2many gives way to one2one, as over epochs
    trained = mean.module.eval()
    del trained.criterion
    folder.mkdir(parents=True)
    torch.save(trained, folder / "yolo26.pt")
    (folder / "model.py").write_text(_MODEL)
    for head, end2end in (("raw", "false"), ("chosen", "true")):
        size = f"inputs.x={{dtype: float32, shape: [batch, 3, {SIZE}, {SIZE}]}}"
        options = ["--set", size, "--set", f"model.args.end2end={end2end}"]
        _optkit("export", f"{folder / 'model.py'}:create", *options, "--out", str(folder / head))


def _batch(scenes: list[Scene]) -> dict[str, object]:
    """What the loss of Ultralytics takes: boxes are centres and sides as shares of the picture."""
    import torch

    corners = np.concatenate([one.corners for one in scenes]) / SIZE
    boxes = np.concatenate([corners[:, :2] + corners[:, 2:], 2 * (corners[:, 2:] - corners[:, :2])])
    boxes = np.concatenate(np.split(boxes, 2), 1) / 2
    labels = np.concatenate([one.labels for one in scenes])
    of = np.repeat(np.arange(len(scenes)), [len(one.labels) for one in scenes])
    return {
        "img": torch.from_numpy(feed(scenes)["image"]),
        "batch_idx": torch.from_numpy(of).float(),
        "cls": torch.from_numpy(labels).float()[:, None],
        "bboxes": torch.from_numpy(boxes).float(),
    }


def judge(folder: Path) -> None:
    """Quantize both graphs, and write what they keep to yolo26.json."""
    samples = folder / "samples.npz"
    np.savez(samples, x=feed([scene("train", n) for n in range(CALIBRATED)])["image"])
    tests = [scene("test", number) for number in range(TESTED)]
    rows = {}
    for head in ("raw", "chosen"):
        source = folder / head / "model.onnx"
        exact = _outputs(source, tests)
        rows[f"{head}, FP32"] = {"map": _map(exact, tests)}
        for variant, options in VARIANTS.items():
            for method in METHODS if head == "raw" and variant in COMPARED else METHODS[:1]:
                out = folder / f"{head}-{variant}-{method}".replace(" ", "-")
                asked = [*options, "--precision", "int8", "--calibration", str(samples)]
                asked += ["--set", f"calibration.method={method}", "--out", str(out)]
                if not out.exists():
                    _optkit("quantize", str(source), *asked)
                simulation = out / "simulation.onnx"  # of a graph that no CPU runs
                graph = simulation if simulation.exists() else out / "model.onnx"
                row = _figures(exact, _outputs(graph, tests), tests)
                row["int8"] = _coded(out)
                rows[f"{head}, {variant}, {method}"] = row
                print(head, variant, method, row, flush=True)
    machine = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    name = next(line for line in machine.splitlines() if line.startswith("Model name"))
    results = {
        "date": str(date.today()),
        "machine": f"two shared cores, {name.partition(':')[2].strip()}",
        "scenes": TESTED,
        "rows": rows,
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")


def _optkit(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "optkit", *arguments], check=True)


def _coded(out: Path) -> int:
    """How many products are in INT8."""
    details = json.loads((out / "details.json").read_text())
    return sum(each == "int8" for each in details["assignment"]["nodes"].values())


def _outputs(graph: Path, tests: list[Scene]) -> np.ndarray:
    with backend("onnxruntime").session(graph) as session:
        parts = [
            session.run({"x": feed(tests[start : start + 32])["image"]})
            for start in range(0, len(tests), 32)
        ]
    return np.concatenate([next(iter(part.values())) for part in parts]).astype(np.float64)


def _figures(exact: np.ndarray, found: np.ndarray, tests: list[Scene]) -> dict[str, object]:
    row: dict[str, object] = {"map": _map(found, tests), "f1": _f1(exact, found)}
    if exact.shape[1] < exact.shape[2]:  # all places, in one order
        row["boxes_db"] = _decibels(exact[:, :4], found[:, :4])
        row["scores_db"] = _decibels(exact[:, 4:], found[:, 4:])
        sure = exact[:, 4:].max(1) > SURE
        row["sure_boxes_db"] = _decibels(
            exact[:, :4].transpose(0, 2, 1)[sure], found[:, :4].transpose(0, 2, 1)[sure]
        )
    return row


def _decibels(exact: np.ndarray, found: np.ndarray) -> float:
    return float(10 * np.log10(np.square(exact).sum() / np.square(exact - found).sum()))


def _map(outputs: np.ndarray, tests: list[Scene]) -> float:
    labels = frames.labels(
        [one.corners for one in tests], [one.labels for one in tests], (SIZE, SIZE), MOST
    )
    whole = combine(score({"detections": outputs.astype(np.float32)}, labels))
    return float(weighted(whole)(np.ones(len(whole))))


def _f1(exact: np.ndarray, found: np.ndarray) -> float:
    from optkit.craft.benchmarking.detector_heads import DetectionLimits, detections

    limits = DetectionLimits(SURE, 0.7, 300)
    size = np.full((len(exact), 2), SIZE)
    both = [detections({"o": each}, size, "auto", limits) for each in (exact, found)]
    hits = counted = 0
    for truth, ours in zip(*both, strict=True):
        free = np.ones(len(truth.scores), bool)
        for corners, kind in zip(ours.corners, ours.classes, strict=True):
            low = np.maximum(corners[:2], truth.corners[:, :2])
            inside = np.maximum(np.minimum(corners[2:], truth.corners[:, 2:]) - low, 0).prod(1)
            areas = (truth.corners[:, 2:] - truth.corners[:, :2]).prod(1)
            union = areas + (corners[2:] - corners[:2]).prod() - inside
            overlap = np.where(free & (truth.classes == kind), inside / union, 0)
            if overlap.size and overlap.max() >= SAME:
                free[overlap.argmax()] = False
                hits += 1
        counted += len(truth.scores) + len(ours.scores)
    return 2 * hits / counted if counted else 1.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="INT8 of a YOLO26 by every calibration method.")
    parser.add_argument("verb", choices=["train", "judge"])
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    {"train": train, "judge": judge}[asked.verb](asked.folder)

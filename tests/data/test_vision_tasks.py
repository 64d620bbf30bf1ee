"""The shipped tasks `detection` and `segmentation` on small data sets, with models that see."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from optkit.craft.benchmarking.accuracy import EvaluationTask, from_samples
from optkit.craft.benchmarking.paired_drop import drop
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Score
from optkit.facts.tensors import Feed, TensorInfo
from optkit.ground import places, user_code
from tests.scoring import score

INPUTS = {"images": TensorInfo("images", "float32", ("batch", 3, 64, 64))}
BOXES = [(20, 10, 60, 40), (5, 5, 25, 45), (40, 2, 98, 48), (30, 20, 44, 34)]


class Model:
    """A session that is a function of the feed."""

    inputs = outputs = ()

    def __init__(self, run: Callable[[Feed], Feed]) -> None:
        self.run = run


def result(name: str, run: Callable[[Feed], Feed], **args: Any) -> Score:
    path = places.find_task(name, Path()).path
    module = user_code.load_module(path)
    hooks = {key: user_code.hook(module, key, args) for key in ("score", "combine", "weighted")}
    task = EvaluationTask(user_code.metric(module, path, args), **hooks)  # type: ignore[arg-type]
    taken = user_code.taken(module.samples, args)
    samples = module.samples(**taken, inputs=INPUTS)
    return score(Model(run), samples, task, evidence=Evidence.MEASURED)  # type: ignore[arg-type]


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    """Black pictures with a white box each, of two sizes."""
    images, annotated = [], []
    for number in range(24):
        x1, y1, x2, y2 = BOXES[number % len(BOXES)]
        pixels = np.zeros((50, 100, 3), np.uint8)
        pixels[y1:y2, x1:x2] = 255
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png"})
        annotated.append({"image_id": number, "category_id": 1, "bbox": [x1, y1, x2 - x1, y2 - y1]})
    categories = [{"id": 1, "name": "box"}]
    file = tmp_path / "all.json"
    file.write_text(
        json.dumps({"images": images, "annotations": annotated, "categories": categories})
    )
    return file


def seeing(feed: Feed, shift: float = 0.0) -> Feed:
    """YOLO's output for the white box of each picture, moved by a number of pixels."""
    found = np.zeros((len(feed["images"]), 5, 7), np.float32)
    for row, picture in zip(found, feed["images"], strict=True):
        rows, columns = np.nonzero(picture[0] > 0.7)
        left, right = columns.min() + shift, columns.max() + 1 + shift
        top, bottom = rows.min(), rows.max() + 1
        row[:, 0] = (left + right) / 2, (top + bottom) / 2, right - left, bottom - top, 0.9
    return {"output0": found}


def test_a_detector_that_sees_everything(coco: Path) -> None:
    found = result("detection", seeing, path=coco, preprocessing="letterbox", overlap="50")
    assert found.metric == "map50" and found.value == 1.0 and found.samples == 24
    assert found.ci95.high <= 1.0 and len(found.replicates) == 2000


def test_a_detector_that_is_beside_loses_at_the_high_overlaps(coco: Path) -> None:
    args = {"path": coco, "preprocessing": "letterbox"}
    good = result("detection", seeing, **args)
    off = result("detection", lambda feed: seeing(feed, 3.0), **args)
    assert good.metric == off.metric == "map" and good.value > 0.8 > off.value > 0.1
    lost = drop(good, off)
    assert lost.value == pytest.approx((good.value - off.value) / good.value)
    assert lost.ci95 is not None and 0 < lost.ci95.low < lost.value < lost.ci95.high


def test_boxes_of_other_sizes_do_not_count(coco: Path) -> None:
    args = {"path": coco, "preprocessing": "letterbox", "overlap": "50"}
    small = result("detection", seeing, area="small", **args)
    assert small.metric == "map50_small" and small.value == 1.0
    # no box is larger than 96² pixels, so the metric is not defined
    with pytest.raises(Exception, match="nan"):
        result("detection", seeing, area="large", **args)


def test_a_segmentation(tmp_path: Path) -> None:
    for number in range(4):
        mask = np.zeros((32, 64), np.uint8)
        mask[9:23, 8 * number + 1 : 8 * number + 17] = 1
        for name, pixels in (("images", mask * 255), ("masks", mask)):
            (tmp_path / name).mkdir(exist_ok=True)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")

    def run(feed: Feed) -> Feed:
        white = feed["images"][:, 0, ::4, ::4] - 0.5  # a quarter of the size, as many heads return
        return {"logits": np.stack([-white, white], axis=1)}

    found = result("segmentation", run, path=tmp_path, preprocessing="letterbox")
    assert found.metric == "miou" and 0.7 < found.value < 1
    dice = result("segmentation", run, path=tmp_path, preprocessing="letterbox", measure="dice")
    assert dice.metric == "dice" and found.value < dice.value < 1


def test_weights_give_the_interval_of_an_aggregate() -> None:
    """A mean by `weighted` has the resamples of a mean by `aggregate`."""
    rows = np.random.default_rng(0).normal(size=(60, 2))
    by_rows = from_samples(
        rows, metric="m", evidence=Evidence.MEASURED, aggregate=lambda rows: float(rows.mean())
    )
    by_counts = from_samples(
        rows, metric="m", evidence=Evidence.MEASURED,
        weighted=lambda rows: lambda counts: float(counts @ rows.mean(1) / counts.sum()),
    )  # fmt: skip
    np.testing.assert_allclose(by_counts.replicates, by_rows.replicates, atol=1e-12)
    np.testing.assert_allclose(by_counts.ci95, by_rows.ci95, atol=1e-9)

"""The step that runs the pictures again on which a candidate loses most."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from safetensors.numpy import load_file

from optkit.facts.documents.pictures import WorstPictures
from optkit.facts.tensors import TensorInfo
from optkit.ground import graph, places
from optkit.ground.data import spool_writer, thumbnails
from optkit.ground.data.frames import Boxes, Frame, written
from optkit.road.steps.file_names import EACH, SCORES
from tests.benchmarking.test_shards import BATCH, GRAPH, MODEL, SAMPLES, TASKS, prepared, quiet, run

__all__ = ["prepared"]  # a fixture

Show = Callable[..., tuple[WorstPictures, np.ndarray]]


@pytest.fixture
def batch() -> str:
    """Axis 0 of the detector."""
    return "N"


@pytest.fixture
def boxes(tmp_path: Path, batch: str) -> dict[str, Path]:
    """A model that finds the box of each picture, and one that moves the boxes a little, which
    small ones do not stand, and finds some that are not there."""
    paths = {name: tmp_path / name for name in ("graph", "reference", "samples")}
    random, anchors = np.random.default_rng(0), 8
    for name, scale in (("graph", 0.3), ("reference", 0.0)):
        paths[name].mkdir()
        weights = ", ".join(f"{scale * w}" for w in (1, 1, *[-1] * (anchors - 2)))
        text = MODEL.replace("N", batch) % (f"6,{anchors}", f"6,{anchors}", anchors, weights)
        graph.save(ir.from_onnx_text(text), paths[name] / GRAPH)
    sides, kinds = random.uniform(0.5, 4, SAMPLES), random.integers(0, 2, SAMPLES)
    x = np.zeros((SAMPLES, 6, anchors), np.float32)
    x[:, :4, 0] = np.stack([4 + sides, 4 + sides, sides, sides], axis=1)
    x[range(SAMPLES), 4 + kinds, 0] = 0.6
    frame = Frame(8, 8, 1, 1, 0, 0, 8, 8)
    labels = [
        written(frame, Boxes(np.asarray([kind]), 4 + side * np.asarray([[0.5, 0.5, 1.5, 1.5]]),
                             np.asarray([side**2]), np.zeros(1, bool)), 2)
        for side, kind in zip(sides, kinds, strict=True)
    ]  # fmt: skip
    axis = int(batch) if batch.isdecimal() else batch
    batches = ({"x": x[i : i + BATCH]} for i in range(0, SAMPLES, BATCH))
    spool_writer.write(
        ((feed, np.stack(labels[i : i + BATCH])) for feed, i in
         zip(batches, range(0, SAMPLES, BATCH), strict=True)),
        paths["samples"], (TensorInfo("x", "float32", (axis, 6, anchors)),),
        limit_samples=None, memory_bytes=1 << 20, progress=quiet, fill=True,
    )  # fmt: skip
    return paths


@pytest.fixture
def pixels(prepared: Callable[..., dict[str, Path]], tmp_path: Path) -> dict[str, Path]:
    """A model that returns its input as logits, and one that prefers the first class."""
    found = prepared(*TASKS["segmentation"])
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,3,4,5] x) => (float[N,3,4,5] y) <float[3,1,1] w = {1, 0, 0}> { y = Add(x, w) }"""
    (tmp_path / "first").mkdir()
    graph.save(ir.from_onnx_text(text), tmp_path / "first" / GRAPH)
    return {**found, "graph": tmp_path / "first"}


@pytest.fixture
def show(pixels: dict[str, Path], boxes: dict[str, Path], tmp_path: Path) -> Show:
    """The pictures of a task, and the drop of every picture."""

    def make(task: str, **params: Any) -> tuple[WorstPictures, np.ndarray]:
        found = boxes if task == "detection" else pixels
        path = {"path": str(places.find_task(task, Path()).path)}
        sides, each = {}, []
        for name, model in (("baseline", "reference"), ("candidate", "graph")):
            place = tmp_path / f"{task}-{name}"
            inputs = {"samples": found["samples"], "graph": found[model]}
            if not place.exists():
                assert run("evaluate", inputs, place, **path)[0]["drawn"]
            sides[f"{name}_score"] = place
            each.append(load_file(place / SCORES)[EACH])
        models = {"graph": found["graph"], "baseline": found["reference"]}
        inputs = {"samples": found["samples"], **models, **sides}
        out = tmp_path / f"{task}-{len(list(tmp_path.iterdir()))}"
        meta, _ = run("show_worst", inputs, out, **path, baseline_file=GRAPH, **params)
        return WorstPictures.from_json(meta["worst"]), each[0] - each[1]

    return make


@pytest.mark.parametrize(("task", "unit"), [("detection", "objects"), ("segmentation", "pixels")])
def test_the_pictures_are_those_with_the_largest_drop(show: Show, task: str, unit: str) -> None:
    worst, drops = show(task)
    assert worst.samples == SAMPLES and not worst.embedded and worst.unit == unit
    assert (worst.worse, worst.better) == ((drops > 0).sum(), (drops < 0).sum())
    assert worst.worse > len(worst.pictures) == 6
    shown = [one.baseline - one.candidate for one in worst.pictures]
    assert shown == pytest.approx(np.sort(drops)[::-1][:6].tolist())
    assert [drops[one.sample] for one in worst.pictures] == pytest.approx(shown)
    assert any(one.lost for one in worst.pictures)
    assert all(one.drawing is None for one in worst.pictures)  # no part of a sample


@pytest.mark.parametrize("batch", [str(BATCH)])
def test_a_model_of_one_batch_size_gets_whole_batches(show: Show) -> None:
    worst, drops = show("detection")
    assert [one.sample for one in worst.pictures] == np.argsort(-drops, kind="stable")[:6].tolist()
    assert len(worst.pictures) % BATCH and any(one.lost for one in worst.pictures)


def test_objects_are_embedded_only_if_that_was_asked_for(show: Show) -> None:
    figures, _ = show("detection")
    worst, _ = show("detection", embedded=True)
    assert worst.embedded
    for one, other in zip(worst.pictures, figures.pictures, strict=True):
        drawing = one.drawing
        assert one.model_copy(update={"drawing": None}) == other
        assert drawing is not None and drawing.picture is None  # its input is no picture
        before, after = ([getattr(box, side) for box in drawing.annotated]
                         for side in ("baseline", "candidate"))  # fmt: skip
        assert one.lost == sum(a and not b for a, b in zip(before, after, strict=True))
        for hits, side in ((before, drawing.baseline), (after, drawing.candidate)):
            assert sum(found.right for found in side) == sum(hits)


def test_masks_are_embedded_over_the_picture(show: Show) -> None:
    image = pytest.importorskip("PIL.Image")
    worst, _ = show("segmentation", embedded=True)
    for one in worst.pictures:
        drawing = one.drawing
        assert drawing is not None and drawing.mask is not None and drawing.picture is not None
        assert (drawing.width, drawing.height) == (5, 4)
        mask = image.open(io.BytesIO(base64.b64decode(drawing.mask.partition(",")[2])))
        codes = np.asarray(mask)
        assert [(codes == 1).sum(), (codes == 2).sum()] == [one.lost, one.gained]
        assert mask.convert("RGBA").getpixel((0, 0))[3] == (255 if codes[0, 0] else 0)


def test_without_a_drop_there_is_no_picture(show: Show, tmp_path: Path) -> None:
    first, _ = show("detection")
    assert first.pictures
    same = tmp_path / "detection-baseline" / SCORES
    (tmp_path / "detection-candidate" / SCORES).write_bytes(same.read_bytes())
    worst, _ = show("detection")
    assert (worst.pictures, worst.worse, worst.better) == ((), 0, 0)
    assert worst.unit is None


@pytest.mark.parametrize(("height", "width"), [(2000, 1500), (3, 700), (8, 8)])
def test_a_picture_has_a_bounded_number_of_bytes(height: int, width: int) -> None:
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    noise = random.random((height, width, 3))
    codes = random.integers(0, 4, (height, width))
    for uri in (thumbnails.jpeg(noise), thumbnails.png(codes, ((255, 0, 0),) * 3)):
        data = base64.b64decode(uri.partition(",")[2])
        assert len(data) <= thumbnails.MOST_BYTES
        assert max(image.open(io.BytesIO(data)).size) <= thumbnails.SIDE


def test_pixels_are_those_of_the_input_from_black_to_white() -> None:
    random = np.random.default_rng(0)
    planes = random.normal(3, 2, (2, 3, 4, 5)).astype(np.float32)
    pixels = thumbnails.pixels_of({"ids": np.zeros((2, 7)), "x": planes}, 1)
    assert pixels is not None and pixels.shape == (4, 5, 3)
    assert (pixels.min(), pixels.max()) == (0, 1)
    wanted = (planes[1] - planes[1].min()) / np.ptp(planes[1])
    np.testing.assert_allclose(pixels, wanted.transpose(1, 2, 0), atol=1e-6)
    last = thumbnails.pixels_of({"x": planes.transpose(0, 2, 3, 1)}, 1)
    assert np.array_equal(last, pixels)
    gray = thumbnails.pixels_of({"x": planes[:, :1]}, 0)
    assert gray is not None and gray.shape == (4, 5)
    assert thumbnails.pixels_of({"x": planes[:, :2, :, :2]}, 0) is None
    flat = thumbnails.pixels_of({"x": np.ones((1, 1, 2, 2))}, 0)
    assert flat is not None and not flat.any()

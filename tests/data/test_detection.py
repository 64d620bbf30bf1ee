from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from optkit.facts.errors import InputRefused, UnknownName
from optkit.facts.tensors import TensorInfo
from optkit.ground.data import box_annotations, detection
from optkit.ground.data.frames import Boxes, Frame, labels, written
from optkit.ground.data.preprocessing import Preprocessing

PIXELS = {"images": TensorInfo("images", "float32", ("batch", 3, 64, 64))}


def draw(path: Path, size: tuple[int, int], box: tuple[int, int, int, int]) -> None:
    """A black picture with a white box (x1, y1, x2, y2)."""
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    pixels[box[1] : box[3], box[0] : box[2]] = 255
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    """Two pictures; the categories have ids with gaps."""
    draw(tmp_path / "images" / "a.png", (100, 50), (20, 10, 60, 40))
    draw(tmp_path / "images" / "b.png", (32, 64), (4, 8, 20, 60))
    file = tmp_path / "instances.json"
    file.write_text(json.dumps({
        "images": [{"id": 7, "file_name": "a.png"}, {"id": 9, "file_name": "b.png"}],
        "annotations": [
            {"image_id": 7, "category_id": 30, "bbox": [20, 10, 40, 30], "area": 900},
            {"image_id": 9, "category_id": 4, "bbox": [4, 8, 16, 52], "iscrowd": 1},
            {"image_id": 9, "category_id": 30, "bbox": [4, 8, 16, 52]},
        ],
        "categories": [{"id": 30, "name": "dog"}, {"id": 4, "name": "cat"}],
    }))  # fmt: skip
    return file


@pytest.fixture
def yolo(tmp_path: Path) -> Path:
    draw(tmp_path / "data" / "images" / "val" / "a.png", (100, 50), (20, 10, 60, 40))
    draw(tmp_path / "data" / "images" / "val" / "b.png", (32, 64), (4, 8, 20, 60))
    labels = tmp_path / "data" / "labels" / "val"
    labels.mkdir(parents=True)
    (labels / "a.txt").write_text("1 0.4 0.5 0.4 0.6\n\n")
    file = tmp_path / "data.yaml"
    file.write_text("path: data\nval: images/val\nnames: {0: cat, 1: dog}\n")
    return file


def where_white(pixels: np.ndarray) -> np.ndarray:
    """The corners of the white box in the pixels of the input."""
    rows, columns = np.nonzero(pixels[0] > 0.5)
    rest = pixels[0] == np.float32(114 / 255)  # the frame of a letterbox
    assert not (rest & (pixels[0] > 0.5)).any()
    return np.asarray([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])


def read(path: Path, **args: object) -> tuple[np.ndarray, np.ndarray]:
    """Pixels and labels of all samples."""
    feeds, labels = zip(*detection.samples(path, inputs=PIXELS, **args), strict=True)
    return np.concatenate([feed["images"] for feed in feeds]), np.concatenate(labels)


@pytest.mark.parametrize("preprocessing", ["letterbox", "unit", "imagenet"])
def test_boxes_of_the_input_lie_where_they_are_annotated(coco: Path, preprocessing: str) -> None:
    pixels, labels = read(coco, preprocessing=preprocessing, mean=0, std=1)
    assert labels.shape == (2, 3, 8)
    for picture, sample in zip(pixels, labels, strict=True):
        corners = Frame.read(sample).to_picture(where_white(picture)[None].astype(float))
        np.testing.assert_allclose(corners[0], Boxes.read(sample).corners[0], atol=1.6)


def test_coco_counts_categories_in_the_order_of_their_ids(coco: Path) -> None:
    _, labels = read(coco, preprocessing="letterbox")
    first, second = map(Boxes.read, labels)
    assert first.classes.tolist() == [1] and first.areas.tolist() == [900]
    assert second.classes.tolist() == [0, 1] and second.crowd.tolist() == [True, False]
    assert second.areas.tolist() == [16 * 52] * 2
    assert Frame.read(labels[0]).width == 100


def test_classes_are_matched_by_name(coco: Path) -> None:
    _, labels = read(coco, preprocessing="letterbox", classes=["Dog", "bird", "cat"])
    assert Boxes.read(labels[1]).classes.tolist() == [2, 0]
    with pytest.raises(InputRefused, match="the model has no class 'cat'"):
        read(coco, preprocessing="letterbox", classes=["dog", "bird"])


def test_yolo_gives_the_same_as_coco(coco: Path, yolo: Path) -> None:
    _, of_coco = read(coco, preprocessing="letterbox")
    for path in (yolo, yolo.parent / "data"):
        pixels, labels = read(path, preprocessing="letterbox")
        assert len(pixels) == 2
        np.testing.assert_allclose(labels[0, :2, :5], of_coco[0, :2, :5], atol=1e-9)
        assert not Boxes.read(labels[1]).classes.size


def test_an_outline_of_yolo_counts_as_its_bounding_box(yolo: Path) -> None:
    labels = yolo.parent / "data" / "labels" / "val" / "a.txt"
    labels.write_text("0 0.1 0.2 0.5 0.1 0.3 0.9\n")
    (one, _) = box_annotations.read(
        yolo, pictures=None, split="val", classes=None, model=None
    ).pictures
    np.testing.assert_allclose(one.of_size(100, 50).corners, [[10, 5, 50, 45]])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1 0.4 0.5 0.4", r"a\.txt:1: 4 numbers"),
        ("0 0.4 0.5 0.4 0.6\nx 1 1 1 1", r"a\.txt:2: not numbers: x 1 1 1 1"),
        ("1 40 20 30 10", r"a\.txt:1: a coordinate is not between 0 and 1"),
        ("0.5 0.4 0.5 0.4 0.6", r"a\.txt:1: the class is 0\.5"),
        ("5 0.4 0.5 0.4 0.6", r"a\.txt, box 1: no class has the number 5"),
        ("", "no picture has a line in a file of labels"),
    ],
)
def test_a_line_of_yolo_that_is_wrong_is_named(yolo: Path, text: str, told: str) -> None:
    (yolo.parent / "data" / "labels" / "val" / "a.txt").write_text(text)
    with pytest.raises(InputRefused, match=told):
        read(yolo, preprocessing="letterbox")


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("annotations", [{"image_id": 8, "category_id": 4, "bbox": [0, 0, 1, 1]}],
         r"annotations\.0: no image has the id 8"),
        ("annotations", [{"image_id": 7, "category_id": 5, "bbox": [0, 0, 1, 1]}],
         r"annotations\.0: no category has the id 5"),
        ("annotations", [{"image_id": 7, "category_id": 4, "bbox": [0, 1]}],
         r"annotations\.0\.bbox"),
        ("images", [], "it lists no pictures"),
        ("images", [{"id": 7, "file_name": "c.png"}, {"id": 9, "file_name": "b.png"}],
         r"the picture 'c\.png' of instances\.json is not there"),
        ("categories", {}, "categories: Input should be a valid array"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_coco_file_is_named(
    coco: Path, key: str, value: object, told: str
) -> None:
    coco.write_text(json.dumps(json.loads(coco.read_text()) | {key: value}))
    with pytest.raises(InputRefused, match=told):
        read(coco, preprocessing="letterbox")


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="no such file or folder"):
        read(tmp_path / "none.xml")
    (tmp_path / "a.yaml").write_text("train: images\nnames: [a]\n")
    with pytest.raises(InputRefused, match="it has no 'val'"):
        read(tmp_path / "a.yaml")


def test_labels_survive_their_array() -> None:
    frame = Frame(100, 50, 0.5, 0.25, 3, 4, 64, 32)
    boxes = Boxes(
        np.asarray([2]), np.asarray([[1.0, 2, 3, 4]]), np.asarray([4.0]), np.ones(1, bool)
    )
    rows = written(frame, boxes, 3)
    assert rows.shape == (4, 8) and Frame.read(rows) == frame
    assert Boxes.read(rows).corners.tolist() == [[1, 2, 3, 4]] and Boxes.read(rows).crowd.all()


def test_an_unknown_preprocessing_is_named(coco: Path) -> None:
    with pytest.raises(UnknownName, match="unknown preprocessing 'letterbx'"):
        read(coco, preprocessing="letterbx")
    with pytest.raises(InputRefused, match=r"args\.preprocessing letterbox is given, args\.size"):
        Preprocessing.of(name="letterbox", size=None, resize=None, mean=None, std=None, info=None)


def test_labels_of_pictures_that_fill_the_input() -> None:
    corners = [np.asarray([[1.0, 2.0, 5.0, 10.0]]), np.zeros((0, 4))]
    rows = labels(corners, [np.asarray([3]), np.zeros(0, np.int64)], (32, 16), most=2)
    assert rows.shape == (2, 3, 8)
    assert labels(corners, [np.asarray([3]), np.zeros(0, np.int64)], (32, 16)).shape == (2, 2, 8)
    frame, boxes = Frame.read(rows[0]), Boxes.read(rows[0])
    np.testing.assert_array_equal(frame.to_picture(corners[0]), corners[0])
    assert (frame.input_width, frame.input_height) == (32, 16)
    assert boxes.classes.tolist() == [3] and boxes.areas.tolist() == [32.0]
    assert not boxes.crowd.any() and not len(Boxes.read(rows[1]).classes)


def test_labels_have_room_for_every_box() -> None:
    with pytest.raises(ValueError, match="a picture has 2 boxes, and most is 1"):
        labels([np.zeros((2, 4))], [np.zeros(2, np.int64)], (8, 8), most=1)

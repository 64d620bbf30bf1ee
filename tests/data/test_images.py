from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import TensorInfo
from optkit.ground.data import images, labelled

PIXELS = {"image": TensorInfo("image", "float32", ("batch", 3, 12, 16))}
TOLD = {"mean": [0.5, 0.4, 0.3], "std": [0.1, 0.2, 0.3]}


def picture(path: Path, seed: int, size: tuple[int, int] = (16, 12)) -> np.ndarray:
    """Random pixels [height, width, 3], saved."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for index in range(10):
        picture(tmp_path / "pictures" / "cat" / f"{index}.png", index)
    for index in range(3):
        picture(tmp_path / "pictures" / "ant" / "deep" / f"{index}.bmp", 100 + index)
    (tmp_path / "pictures" / "readme.txt").write_text("no picture")
    return tmp_path / "pictures"


def test_values_are_scaled_as_told(tmp_path: Path) -> None:
    pixels = picture(tmp_path / "one.png", 1)
    (feed,) = images.samples(tmp_path, inputs=PIXELS, **TOLD)
    mean, std = (np.asarray(TOLD[name]) for name in ("mean", "std"))
    wanted = ((pixels / 255 - mean) / std).transpose(2, 0, 1)
    np.testing.assert_allclose(feed["image"][0], wanted, rtol=1e-5, atol=1e-6)
    assert feed["image"].dtype == np.float32


def test_the_middle_is_cut_out_of_a_resized_picture(tmp_path: Path) -> None:
    pixels = picture(tmp_path / "one.png", 1, (30, 20))
    (feed,) = images.samples(tmp_path, size=[6, 8], resize=20, mean=0, std=1)
    wanted = pixels[7:13, 11:19].transpose(2, 0, 1) / 255
    np.testing.assert_allclose(feed["pixel_values"][0], wanted, rtol=1e-6)


def test_one_channel_is_gray(tmp_path: Path) -> None:
    picture(tmp_path / "one.png", 1)
    gray = {"x": TensorInfo("x", "float16", (1, 1, 12, 16))}
    (feed,) = images.samples(tmp_path, mean=0, std=1, inputs=gray)
    wanted = np.asarray(Image.open(tmp_path / "one.png").convert("L")) / 255
    np.testing.assert_allclose(feed["x"][0, 0], wanted, atol=1e-3)
    assert feed["x"].dtype == np.float16


def test_a_picture_is_turned_as_its_exif_says(tmp_path: Path) -> None:
    pixels = picture(tmp_path / "one.png", 1)
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 270 degrees
    Image.fromarray(pixels).save(tmp_path / "one.png", exif=exif)
    (feed,) = images.samples(tmp_path, size=[16, 12], mean=0, std=1)
    wanted = np.rot90(pixels, -1).transpose(2, 0, 1) / 255
    np.testing.assert_allclose(feed["pixel_values"][0], wanted, rtol=1e-6)


def test_the_first_few_are_spread_over_the_classes(pictures: Path) -> None:
    found = images.pictures(pictures)
    assert len(found) == len(set(found)) == 13
    assert {name for _, name in found[:4]} == {"cat", "ant"}


def test_a_processor_prepares_as_it_does_alone(pictures: Path, tmp_path: Path) -> None:
    from transformers import AutoImageProcessor, CLIPImageProcessor

    folder = tmp_path / "processor"
    CLIPImageProcessor(
        size={"shortest_edge": 24}, crop_size={"height": 20, "width": 20}
    ).save_pretrained(folder)
    inputs = {"pixel_values": TensorInfo("pixel_values", "float32", ("batch", 3, 20, 20))}
    feeds = list(images.samples(pictures, model=str(folder), inputs=inputs))
    theirs = AutoImageProcessor.from_pretrained(folder, backend="pil")
    opened = [Image.open(path).convert("RGB") for path, _ in images.pictures(pictures)]
    wanted = theirs(images=opened, return_tensors="np")["pixel_values"]
    np.testing.assert_array_equal(np.concatenate([f["pixel_values"] for f in feeds]), wanted)


def test_labels_are_the_sorted_folders_or_the_given_classes(pictures: Path) -> None:
    by_name = np.concatenate([one for _, one in labelled.samples(pictures, inputs=PIXELS, **TOLD)])
    names = [name for _, name in images.pictures(pictures)]
    assert by_name.tolist() == [["ant", "cat"].index(name) for name in names]
    given = labelled.samples(pictures, classes=["dog", "cat", "ant"], inputs=PIXELS, **TOLD)
    assert np.concatenate([one for _, one in given]).tolist() == [3 - 1 - n for n in by_name]
    with pytest.raises(InputRefused, match="'cat' is not a known class") as caught:
        list(labelled.samples(pictures, classes=["ant", "dog"], inputs=PIXELS, **TOLD))
    assert "cat" in (caught.value.where or "")


def test_folders_are_the_models_classes(pictures: Path, tmp_path: Path) -> None:
    """By their names; folders of other names are counted only where there are as many."""
    model = tmp_path / "model"
    model.mkdir()

    def labels(names: list[str]) -> list[int]:
        stored = {str(number): name for number, name in enumerate(names)}
        (model / "config.json").write_text(json.dumps({"id2label": stored}))
        found = labelled.samples(pictures, model=str(model), inputs=PIXELS, **TOLD)
        return [int(one) for _, batch in found for one in batch]

    order = [["ant", "cat"].index(name) for _, name in images.pictures(pictures)]
    assert labels(["dog", "cat", "ant"]) == [2 - one for one in order]
    assert labels(["LABEL_0", "LABEL_1"]) == order
    with pytest.raises(InputRefused, match="2 class folders, but the model has 3") as caught:
        labels(["dog", "katze", "ant"])
    assert caught.value.where == str(pictures) and "dog, katze, ant" in str(caught.value.hint)


def test_hidden_folders_are_no_classes_and_empty_ones_are_reported(pictures: Path) -> None:
    picture(pictures / ".ipynb_checkpoints" / "0.png", 7)
    picture(pictures / "cat" / "._0.png", 8)
    found = images.pictures(pictures)
    assert {name for _, name in found} == {"ant", "cat"} and len(found) == 13
    batches = labelled.samples(pictures, inputs=PIXELS, **TOLD)
    labels = np.concatenate([one for _, one in batches])
    assert labels.tolist() == [["ant", "cat"].index(name) for _, name in found]
    (pictures / "bee").mkdir()
    with pytest.raises(InputRefused, match="the class folder has no pictures") as caught:
        list(labelled.samples(pictures, inputs=PIXELS, **TOLD))
    assert caught.value.where == str(pictures / "bee")
    given = labelled.samples(pictures, classes=["ant", "bee", "cat"], inputs=PIXELS, **TOLD)
    assert set(np.concatenate([one for _, one in given]).tolist()) == {0, 2}


def test_a_damaged_picture_is_named(pictures: Path) -> None:
    damaged = pictures / "cat" / "4.png"
    damaged.write_bytes(damaged.read_bytes()[:200])
    with pytest.raises(InputRefused, match="not a picture") as caught:
        list(images.samples(pictures, inputs=PIXELS, **TOLD))
    assert caught.value.where == str(damaged)


def test_what_is_missing_is_reported(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        ({"path": tmp_path / "empty", **TOLD}, "no pictures"),
        ({"path": tmp_path / "gone", **TOLD}, "no such folder"),
        ({"path": pictures, "inputs": PIXELS}, "the model has no image processor"),
        ({"path": pictures, "processor": tmp_path}, "no preprocessor_config.json"),
        ({"path": pictures, "mean": 0.5, "inputs": PIXELS}, "args.std is not"),
        ({"path": pictures, **TOLD}, "args.size is not"),
    ):
        with pytest.raises(InputRefused, match=message):
            list(images.samples(**arguments))  # type: ignore[arg-type]
    shutil.copy(pictures / "cat" / "1.png", pictures / "1.png")
    with pytest.raises(InputRefused, match="in no class folder"):
        list(labelled.samples(pictures, inputs=PIXELS, **TOLD))
    two = {name: TensorInfo(name, "float32", (1, 3, 4, 4)) for name in "ab"}
    with pytest.raises(InputRefused, match="2 inputs that could take pictures"):
        list(images.samples(pictures, inputs=two, **TOLD))


MODES = {
    "1": np.array([[False, True]]),
    "L": np.array([[7, 200]], np.uint8),
    "LA": np.array([[[7, 0], [200, 255]]], np.uint8),
    "RGB": np.array([[[1, 2, 3], [250, 0, 9]]], np.uint8),
    "RGBA": np.array([[[1, 2, 3, 0], [250, 0, 9, 128]]], np.uint8),
}


@pytest.mark.parametrize("mode", MODES)
def test_a_picture_of_any_mode_is_read_in_colour(mode: str, tmp_path: Path) -> None:
    """Gray in all three channels; what is transparent keeps its colour."""
    values = MODES[mode]
    Image.fromarray(values).save(tmp_path / "a.png")
    colours = values * 255 if mode == "1" else values
    if mode in ("1", "L"):
        colours = np.stack([colours] * 3, -1)
    elif mode == "LA":
        colours = np.stack([colours[..., 0]] * 3, -1)
    np.testing.assert_array_equal(decoded(tmp_path), colours[..., :3])


def decoded(folder: Path) -> np.ndarray:
    """The only picture of a folder, [height, width, 3] in 0 to 255."""
    (feed,) = images.samples(folder, size=[1, 2], mean=0.0, std=1 / 255)
    return np.asarray(feed["pixel_values"][0].transpose(1, 2, 0).round())


def test_palettes_and_inks_are_colours(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 100, 0])
    palette.putdata([1, 0])
    palette.save(tmp_path / "p" / "a.png", transparency=0)
    assert decoded(tmp_path / "p").tolist() == [[[200, 100, 0], [10, 20, 30]]]
    (tmp_path / "c").mkdir()
    Image.fromarray(np.array([[[0, 255, 255, 0], [0, 0, 0, 255]]], np.uint8), "CMYK").save(
        tmp_path / "c" / "a.tif"
    )
    assert decoded(tmp_path / "c").tolist() == [[[255, 0, 0], [0, 0, 0]]]


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
def test_gray_of_16_bits_is_as_bright_as_it_is(name: str, tmp_path: Path) -> None:
    gray = np.array([[0x1234, 0xFFFF]], np.uint16)
    if name == "a.pgm":
        (tmp_path / name).write_bytes(b"P5 2 1 65535\n" + gray.astype(">u2").tobytes())
    else:
        Image.fromarray(gray).save(tmp_path / name)
    assert decoded(tmp_path).tolist() == [[[0x12] * 3, [0xFF] * 3]]


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_numbers_without_a_white_are_refused(dtype: type, tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 1]], dtype)).save(tmp_path / "a.tif")
    with pytest.raises(InputRefused, match="32-bit") as caught:
        decoded(tmp_path)
    assert caught.value.where == str(tmp_path / "a.tif")

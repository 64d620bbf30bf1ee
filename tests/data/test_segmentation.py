from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import TensorInfo
from optkit.ground.data import segmentation

PIXELS = {"pixel_values": TensorInfo("pixel_values", "float32", ("batch", 3, 32, 32))}


def save(path: Path, pixels: np.ndarray, mode: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(pixels)
    (picture.convert(mode) if mode else picture).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures that are white where the mask is 3."""
    for number in range(3):
        mask = np.zeros((16, 32), np.uint8)
        mask[4:12, 8 * number : 8 * number + 8] = 3
        save(tmp_path / "images" / f"{number}.png", np.repeat((mask == 3)[..., None] * 255, 3, 2)
             .astype(np.uint8))  # fmt: skip
        save(tmp_path / "masks" / f"{number}.png", mask)
    return tmp_path


@pytest.mark.parametrize("preprocessing", ["unit", "letterbox"])
def test_a_mask_lies_on_its_picture(folder: Path, preprocessing: str) -> None:
    samples = segmentation.samples(folder, preprocessing=preprocessing, inputs=PIXELS)
    for feed, labels in samples:
        assert labels.shape[1:] == (32, 32) and labels.dtype == np.int32
        white = feed["pixel_values"][:, 0] > 0.5
        assert ((labels == 3) == white).mean() > 0.97
        assert (labels == 255).any() == (preprocessing == "letterbox")


def test_the_folder_of_masks_may_be_named(folder: Path) -> None:
    (folder / "masks").rename(folder / "truth")
    samples = segmentation.samples(
        folder / "images", masks=folder / "truth", preprocessing="unit", inputs=PIXELS
    )
    assert sum(len(labels) for _, labels in samples) == 3
    with pytest.raises(InputRefused, match="the folder has no images/ and masks/"):
        next(segmentation.samples(folder, preprocessing="unit", inputs=PIXELS))


def test_a_mask_of_a_palette_is_its_numbers(folder: Path) -> None:
    mask = Image.fromarray(np.full((16, 32), 2, np.uint8), "P")
    mask.putpalette([0, 0, 0, 9, 9, 9, 200, 10, 10])
    for number in range(3):
        mask.save(folder / "masks" / f"{number}.png")
    (_, labels), *_ = segmentation.samples(folder, preprocessing="unit", inputs=PIXELS)
    assert np.unique(labels).tolist() == [2]


def test_what_does_not_fit_is_named(folder: Path) -> None:
    def first() -> object:
        return next(segmentation.samples(folder, preprocessing="unit", inputs=PIXELS))

    save(folder / "masks" / "1.png", np.zeros((8, 8), np.uint8))
    with pytest.raises(InputRefused, match=r"1\.png: the mask has 8×8 pixels, the picture 32×16"):
        first()
    save(folder / "masks" / "1.png", np.zeros((16, 32, 3), np.uint8))
    with pytest.raises(InputRefused, match=r"the mask has colours \(RGB\)"):
        first()
    (folder / "masks" / "1.png").write_bytes(b"no picture")
    with pytest.raises(InputRefused, match="not a mask that can be decoded"):
        first()
    (folder / "masks" / "1.png").unlink()
    with pytest.raises(InputRefused, match=r"images/1\.png: the picture has no mask"):
        first()

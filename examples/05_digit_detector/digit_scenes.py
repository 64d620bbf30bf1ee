"""Scenes with handwritten digits of many sizes, which overlap, on cluttered grounds.

The digits are those of calibration/digits.npz (scikit-learn's). Everything else is drawn from a
seed: colours, light, bars, stains, noise. So the example needs no download, and the same number
gives the same scene. Training, validation and test never share a digit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

SIZE = 128  # pixels of a side
MOST = 8  # digits of a scene
OVERLAP = 0.35  # at most this share of the smaller of two digits' boxes lies in the other box
Part = Literal["train", "validation", "test"]
_PARTS: dict[Part, tuple[int, ...]] = {"train": (0, 2), "validation": (1,), "test": (3,)}
_FILE = Path(__file__).parents[2] / "calibration" / "digits.npz"
_INK = 0.25  # a pixel belongs to a digit from this share of ink on


@dataclass(frozen=True)
class Scene:
    """`picture`: uint8 [SIZE, SIZE, 3]. `corners`: the box of each digit's ink, float64 [n, 4]
    (x1, y1, x2, y2) in pixels. `labels`: int64 [n]."""

    picture: np.ndarray
    corners: np.ndarray
    labels: np.ndarray


@cache
def digits(part: Part) -> tuple[np.ndarray, np.ndarray]:
    """The digits of a part, float64 [n, 8, 8] in [0, 1], and their labels, int64 [n]. A digit's
    index modulo 4 decides its part."""
    with np.load(_FILE) as file:
        images, labels = file["images"], file["labels"]
    chosen = np.isin(np.arange(len(images)) % 4, _PARTS[part])
    return images[chosen] / 16, labels[chosen].astype(np.int64)


def scene(part: Part, number: int) -> Scene:
    """The scene of this number with digits of this part."""
    rng = np.random.default_rng([list(_PARTS).index(part), number])
    images, labels = digits(part)
    canvas = _ground(rng)
    _clutter(canvas, rng)
    found: list[np.ndarray] = []
    kinds: list[int] = []
    for index in rng.integers(0, len(images), rng.integers(2, MOST + 1)):
        height = np.exp(rng.uniform(np.log(16), np.log(60)))
        ink = _resized(images[index], round(height), round(height * rng.uniform(0.75, 1.1)))
        place = _place(ink, found, rng)
        if place is not None:
            _paint(canvas, ink, *place, rng)
            found.append(_box(ink, *place))
            kinds.append(int(labels[index]))
    canvas = canvas * rng.uniform(0.7, 1.1) + rng.normal(0, rng.uniform(0.01, 0.05), canvas.shape)
    pixels = np.rint(np.clip(canvas, 0, 1) * 255).astype(np.uint8)
    return Scene(pixels, np.asarray(found).reshape(-1, 4), np.asarray(kinds, np.int64))


def feed(scenes: list[Scene]) -> dict[str, np.ndarray]:
    """The input of the model: {"image": float32 [n, 3, SIZE, SIZE] in [0, 1]}."""
    pictures = np.stack([one.picture for one in scenes]).transpose(0, 3, 1, 2)
    return {"image": np.ascontiguousarray(pictures, np.float32) / np.float32(255)}


def _ground(rng: np.random.Generator) -> np.ndarray:
    """A colour that changes from corner to corner, and stains: [SIZE, SIZE, 3]."""
    corners = rng.uniform(0.15, 0.85, (3, 1, 1)) + rng.uniform(-0.12, 0.12, (3, 2, 2))
    stains = rng.normal(0, 0.06, (1, 9, 9))
    return (_resized(corners, SIZE, SIZE) + _resized(stains, SIZE, SIZE)).transpose(1, 2, 0)


def _clutter(canvas: np.ndarray, rng: np.random.Generator) -> None:
    """Bars of any direction, as thick as the strokes of digits."""
    y, x = np.mgrid[:SIZE, :SIZE]
    for _ in range(rng.integers(0, 7)):
        middle, turn = rng.uniform(0, SIZE, 2), rng.uniform(0, np.pi)
        along = (x - middle[0]) * np.cos(turn) + (y - middle[1]) * np.sin(turn)
        across = (y - middle[1]) * np.cos(turn) - (x - middle[0]) * np.sin(turn)
        length, thickness = rng.uniform(5, 40), rng.uniform(0.7, 3.5)
        inside = (np.abs(along) < length) & (np.abs(across) < thickness)
        canvas[inside] += rng.uniform(-0.4, 0.4, 3) * rng.uniform(0.3, 1)


def _resized(small: np.ndarray, height: int, width: int) -> np.ndarray:
    """[..., h, w] → [..., height, width], bilinear; the border repeats."""
    rows, columns = _weights(small.shape[-2], height), _weights(small.shape[-1], width)
    return np.asarray(rows @ small @ columns.T)


def _weights(points: int, pixels: int) -> np.ndarray:
    """The share of each point in each pixel: [pixels, points]."""
    at = np.clip((np.arange(pixels) + 0.5) * points / pixels - 0.5, 0, points - 1)
    return np.clip(1 - np.abs(at[:, None] - np.arange(points)), 0, 1)


def _box(ink: np.ndarray, top: int, left: int) -> np.ndarray:
    """x1, y1, x2, y2 of the ink at this place."""
    rows, columns = (np.flatnonzero((ink > _INK).any(axis)) for axis in (1, 0))
    return np.asarray(
        [left + columns[0], top + rows[0], left + columns[-1] + 1, top + rows[-1] + 1], np.float64
    )


def _place(
    ink: np.ndarray, found: list[np.ndarray], rng: np.random.Generator
) -> tuple[int, int] | None:
    """Top and left of a place where the digit covers little of the others; None after 20 tries."""
    for _ in range(20):
        top, left = (int(rng.integers(0, SIZE - side + 1)) for side in ink.shape)
        box = _box(ink, top, left)
        if all(_shared(box, other) <= OVERLAP for other in found):
            return top, left
    return None


def _shared(box: np.ndarray, other: np.ndarray) -> float:
    """The area that two boxes share, as a share of the smaller one."""
    sides = np.minimum(box[2:], other[2:]) - np.maximum(box[:2], other[:2])
    smaller = min((one[2:] - one[:2]).prod() for one in (box, other))
    return float(np.maximum(sides, 0).prod() / smaller)


def _paint(
    canvas: np.ndarray, ink: np.ndarray, top: int, left: int, rng: np.random.Generator
) -> None:
    """The digit in a colour that stands out from what is below it."""
    below = canvas[top : top + ink.shape[0], left : left + ink.shape[1]]
    mean = below.mean((0, 1))
    darker = mean.mean() > rng.uniform(0.35, 0.65)
    colour = mean + rng.uniform(0.25, 0.6) * (-1 if darker else 1) + rng.normal(0, 0.1, 3)
    strength = np.clip(ink * 1.3, 0, 1)[:, :, None]
    below += strength * (np.clip(colour, 0, 1) - below)

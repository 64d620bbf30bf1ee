"""Pictures of house numbers: handwritten digits in colour, on walls with light, stains and noise.

Each picture shows one digit of calibration/digits.npz in the middle, turned, scaled and shifted,
and parts of its two neighbours at the sides, as a crop of a longer number does. Everything else is
drawn from a seed, so the same seed gives the same pictures.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

SIZE = 96  # pixels of a side
_FILE = Path(__file__).parents[2] / "calibration" / "digits.npz"


def digits(part: int) -> tuple[np.ndarray, np.ndarray]:
    """The even (0: training) or odd (1: held out) digits: uint8 [N, 8, 8] from 0 to 16, and labels,
    int64 [N]."""
    with np.load(_FILE) as file:
        return file["images"][part::2], file["labels"][part::2].astype(np.int64)


def draw(images: np.ndarray, seed: int) -> np.ndarray:
    """Pictures of these digits, uint8 [N, 8, 8]: float32 [N, 3, SIZE, SIZE] in [0, 1]."""
    rng = np.random.default_rng(seed)
    count = len(images)
    wall = _walls(count, rng)
    paint = _paint(wall.mean(axis=(2, 3)), rng)[:, :, None, None]
    turn = rng.uniform(-0.25, 0.25, count)  # radians; all digits of a picture alike
    side = rng.uniform(46, 66, count)  # pixels of a digit's side
    for place in (-1, 1, 0):
        shown = images if place == 0 else images[rng.permutation(count)]
        across = place * side * rng.uniform(0.85, 1.0, count) + rng.uniform(-5, 5, count)
        ink = _placed(shown / 16, turn, side, across, rng.uniform(-6, 6, count))
        wall += ink[:, None] * (paint - wall)
    light = rng.uniform(0.75, 1.1, (count, 1, 1, 1))
    noise = rng.normal(0, 0.03, wall.shape)
    return np.clip(wall * light + noise, 0, 1).astype(np.float32)


def _walls(count: int, rng: np.random.Generator) -> np.ndarray:
    """A colour that changes from corner to corner, and stains: [count, 3, SIZE, SIZE]."""
    corners = rng.uniform(0.1, 0.9, (count, 3, 1, 1)) + rng.uniform(-0.12, 0.12, (count, 3, 2, 2))
    stains = rng.normal(0, 0.06, (count, 1, 7, 7))
    return _stretched(corners) + _stretched(stains)


def _stretched(small: np.ndarray) -> np.ndarray:
    """[..., n, n] → [..., SIZE, SIZE], bilinear from corner to corner."""
    points = small.shape[-1]
    at = np.linspace(0, points - 1, SIZE)
    weights = np.clip(1 - np.abs(at[:, None] - np.arange(points)), 0, 1)  # [SIZE, points]
    return weights @ small @ weights.T


def _paint(wall: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A colour that stands out from the wall's mean colour: [N, 3]."""
    darker = wall.mean(axis=1) > rng.uniform(0.35, 0.65, len(wall))
    distance = rng.uniform(0.3, 0.6, len(wall)) * np.where(darker, -1, 1)
    return np.clip(wall + distance[:, None] + rng.normal(0, 0.08, wall.shape), 0, 1)


def _placed(
    images: np.ndarray, turn: np.ndarray, side: np.ndarray, across: np.ndarray, down: np.ndarray
) -> np.ndarray:
    """Digits in [0, 1], turned and scaled about the centre, then shifted: [N, SIZE, SIZE]."""
    centred = np.arange(SIZE) - (SIZE - 1) / 2
    x = centred[None, None, :] - across[:, None, None]
    y = centred[None, :, None] - down[:, None, None]
    cos, sin = np.cos(turn)[:, None, None], np.sin(turn)[:, None, None]
    scale = 8 / side[:, None, None]
    column = (cos * x + sin * y) * scale + 3.5
    row = (cos * y - sin * x) * scale + 3.5
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))  # zero beyond the border
    row, column = np.clip(row + 1, 0, 8.999), np.clip(column + 1, 0, 8.999)
    top, left = row.astype(int), column.astype(int)
    below, right = row - top, column - left
    at = np.arange(len(images))[:, None, None]
    upper = padded[at, top, left] * (1 - right) + padded[at, top, left + 1] * right
    lower = padded[at, top + 1, left] * (1 - right) + padded[at, top + 1, left + 1] * right
    return upper * (1 - below) + lower * below

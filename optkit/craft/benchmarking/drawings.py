"""What a task of pictures gives the report to draw: the objects of a picture, or the pixels that
have the right class."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Shape:
    """An object of the class `kind` in the pixels of the model's input: the corners of its
    `outline` [corners, 2], and its visible `points` [points, 2], as those of a pose."""

    kind: int
    outline: np.ndarray
    points: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))


@dataclass(frozen=True)
class Objects:
    """The objects that are annotated in a picture, and those that a model found with a score of at
    least `confidence`. `partners` [found]: the number of the annotated object that each one
    matches, or -1."""

    annotated: tuple[Shape, ...]
    found: tuple[Shape, ...]
    scores: np.ndarray
    partners: np.ndarray
    confidence: float

    @property
    def right(self) -> np.ndarray:
        """Whether each annotated object is found [annotated]."""
        return np.isin(np.arange(len(self.annotated)), self.partners)


@dataclass(frozen=True)
class Regions:
    """Of each pixel of the model's input [height, width]: whether a model gives it the right class,
    and whether it counts."""

    right: np.ndarray
    counts: np.ndarray


def changed(before: Objects | Regions, after: Objects | Regions) -> tuple[int, int]:
    """How many annotated objects, or pixels that count, are (lost, gained) by the second model."""
    counts = after.counts if isinstance(after, Regions) else np.ones(len(after.annotated), bool)
    lost, gained = before.right & ~after.right, ~before.right & after.right
    return int((lost & counts).sum()), int((gained & counts).sum())

"""What readers of annotations return."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np

from optkit.facts.errors import InputRefused
from optkit.ground.data.classes import model_classes
from optkit.ground.data.frames import Boxes

Objects = Literal["boxes", "poses", "oriented"]
"""What is annotated: upright boxes; these with keypoints; oriented boxes, whose points are their
four corners."""


@dataclass(frozen=True)
class AnnotatedPicture:
    """A picture. The corners and points of its boxes are in pixels; `relative`: they are shares of
    its width and height, and the areas shares of its area."""

    picture: Path
    boxes: Boxes
    relative: bool = False

    def of_size(self, width: int, height: int) -> Boxes:
        """The boxes in pixels of a picture of this size."""
        if not self.relative:
            return self.boxes
        corners = self.boxes.corners * np.asarray([width, height] * 2)
        areas, points = self.boxes.areas * width * height, self.boxes.points
        if points is not None:
            points = points * np.asarray([width, height, 1])
        return Boxes(self.boxes.classes, corners, areas, self.boxes.crowd, points)


@dataclass(frozen=True)
class Dataset:
    """`classes`: the names by number, in the order of the model's outputs."""

    pictures: Sequence[AnnotatedPicture]
    classes: Sequence[str]

    @property
    def most(self) -> int:
        """The largest number of boxes in one picture."""
        return max((len(one.boxes.classes) for one in self.pictures), default=0)


@dataclass(frozen=True)
class Box:
    """One box as a reader found it. `number`: its class in the data set; `points`: keypoints (x, y,
    visibility), or corners."""

    number: int
    corners: tuple[float, float, float, float]
    area: float
    crowd: bool = False
    points: tuple[tuple[float, float, float], ...] = ()


@dataclass(frozen=True)
class Numbering:
    """Which class of the model each class of the data set is."""

    names: Sequence[str]
    numbers: dict[int, int]

    @classmethod
    def of(
        cls, own: dict[int, str], classes: list[str] | None, model: str | None, where: Path
    ) -> Self:
        """`own`: the names of the data set by its numbers. They are matched with `classes`, or with
        the model's, by name; without either, they count in the order of their numbers.

        Raises InputRefused for a class of the data set that the model does not have.
        """
        names = classes or model_classes(model)
        if not names:
            return cls(list(own.values()), {number: i for i, number in enumerate(own)})
        places = {name.strip().lower(): i for i, name in reversed([*enumerate(names)])}
        lacking = [name for name in own.values() if name.strip().lower() not in places]
        if lacking:
            raise InputRefused(
                f"the model has no class {lacking[0]!r}",
                where=str(where),
                hint=f"its classes are {', '.join(names[:8])}{', …' if len(names) > 8 else ''}; "
                "args.classes: the names of the data set in the order of the model's outputs",
            )
        return cls(names, {number: places[name.strip().lower()] for number, name in own.items()})

    @classmethod
    def plain(cls, count: int, classes: list[str] | None, model: str | None, where: Path) -> Self:
        """Of a data set whose `count` classes have only numbers. Raises InputRefused if the model
        has fewer."""
        names = classes or model_classes(model) or [str(number) for number in range(count)]
        if len(names) < count:
            raise InputRefused(
                f"its classes go up to {count - 1}, but the model has {len(names)}",
                where=str(where),
            )
        return cls(names, {number: number for number in range(count)})

    def boxes(self, found: Iterable[Box], points: int = 0) -> Boxes:
        """The boxes of one picture with the classes of the model. `points`: their number in each
        box."""
        kept = list(found)
        placed = np.asarray([one.points for one in kept], np.float64)
        return Boxes(
            np.asarray([self.numbers[one.number] for one in kept], np.int64),
            np.asarray([one.corners for one in kept], np.float64).reshape(-1, 4),
            np.asarray([one.area for one in kept], np.float64),
            np.asarray([one.crowd for one in kept], bool),
            placed.reshape(len(kept), points, 3) if points else None,
        )

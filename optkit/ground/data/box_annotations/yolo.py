"""Annotations of YOLO: for each picture a .txt file, with a line `class x y width height` per box.

Format: Ultralytics, "Object detection datasets". The centre and the sides are shares of the width
and the height of the picture. A line with more numbers is an outline, x y x y …, whose bounding box
counts. A picture without a file has no objects.

poses      `class x y width height`, then `x y` or `x y visibility` for each keypoint, as
           `kpt_shape` of the .yaml file says
oriented   `class x1 y1 x2 y2 x3 y3 x4 y4`, the corners in order around the box
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path

import numpy as np
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from optkit.facts.errors import InputRefused
from optkit.ground.data import reading
from optkit.ground.data.box_annotations.dataset import (
    AnnotatedPicture,
    Box,
    Dataset,
    Numbering,
    Objects,
)

_IMAGES, _LABELS = "images", "labels"
_NAMES, _KEYPOINTS = "names", "kpt_shape"
_AREA = 0.53
Corners = tuple[float, float, float, float]


def read(
    path: Path, split: str, classes: list[str] | None, model: str | None, objects: Objects = "boxes"
) -> Dataset:
    """Arguments and errors as for `box_annotations.read`."""
    data = None if path.is_dir() else _parsed(path)
    folder, own = _of_folder(path) if data is None else _of_yaml(data, path, split)
    line = _line_of(objects, data, path)
    pictures = sorted(
        file for file in reading.beneath(folder) if file.suffix.lower() in reading.PICTURES
    )
    if not pictures:
        raise InputRefused("the folder has no pictures", where=str(folder))
    reading.check_names(pictures)
    found = {picture: list(_boxes(_labels(picture, folder), line)) for picture in pictures}
    if not any(found.values()):
        raise InputRefused(
            "no picture has a line in a file of labels",
            where=str(_labels(pictures[0], folder).parent),
            hint=f"the labels of …/{_IMAGES}/a.jpg are in …/{_LABELS}/a.txt",
        )
    if own:
        _check_classes(found, own, folder)
        numbering = Numbering.of(own, classes, model, path)
    else:
        used = {box.number for boxes in found.values() for box in boxes}
        numbering = Numbering.plain(max(used) + 1, classes, model, path)
    return Dataset(
        [
            AnnotatedPicture(picture, numbering.boxes(boxes, line.points), relative=True)
            for picture, boxes in found.items()
        ],
        numbering.names,
    )


def _check_classes(
    found: Mapping[Path, Iterable[Box]], own: Mapping[int, str], folder: Path
) -> None:
    """Raise InputRefused for a box of a class that the data set does not have."""
    for picture, boxes in found.items():
        for place, box in enumerate(boxes, 1):
            if box.number not in own:
                raise InputRefused(
                    f"no class has the number {box.number}",
                    where=f"{_labels(picture, folder)}, box {place}",
                    hint=f"the data set has {len(own)} classes, from 0 on",
                )


def _of_folder(path: Path) -> tuple[Path, dict[int, str]]:
    """The folder of pictures; its classes have no names."""
    folder = path / _IMAGES if (path / _IMAGES).is_dir() else path
    return folder, {}


def _parsed(path: Path) -> Mapping[str, object]:
    """The keys of a .yaml file."""
    try:
        data = YAML(typ="safe").load(path.read_bytes())
    except OSError as error:
        raise InputRefused(f"cannot be read: {error.strerror}", where=str(path)) from error
    except (YAMLError, ValueError) as error:
        raise InputRefused(f"not YAML: {error}", where=str(path)) from error
    return data if isinstance(data, Mapping) else {}


def _of_yaml(data: Mapping[str, object], path: Path, split: str) -> tuple[Path, dict[int, str]]:
    """The folder of pictures, and the names of the classes by number."""
    given, names = data.get(split), data.get(_NAMES)
    if not isinstance(given, str) or not isinstance(names, list | Mapping):
        lacking = _NAMES if isinstance(given, str) else split
        raise InputRefused(
            f"it has no {lacking!r}",
            where=str(path),
            hint="a data set of YOLO has names, and folders of pictures under train, val or test "
            "(args.split)",
        )
    listed = dict(enumerate(names)) if isinstance(names, list) else names
    try:
        own = {int(number): str(name) for number, name in sorted(listed.items())}
    except (TypeError, ValueError) as error:
        reason = f"{_NAMES}: the key {error.args[0]!r} is not a number"
        raise InputRefused(reason, where=str(path)) from error
    root = path.parent / str(data.get("path") or "")
    places = [root / given, path.parent / given]
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        raise InputRefused(f"{split}: no such folder", where=f"{path}: {given}")
    return folder, own


def _labels(picture: Path, folder: Path) -> Path:
    """The file of labels of a picture: the last folder `images` of its path becomes `labels`."""
    parts = list(picture.parts)
    if _IMAGES in parts[:-1]:
        last = len(parts) - 2 - parts[-2::-1].index(_IMAGES)
        parts[last] = _LABELS
    return Path(*parts).with_suffix(".txt")


@dataclass(frozen=True)
class _Line:
    """What a line has after its class. `read`: its box from the class, the other numbers, and the
    place of the line; `points`: the number of points that the box has."""

    read: Callable[[int, list[float], str], Box]
    points: int = 0


def _line_of(objects: Objects, data: Mapping[str, object] | None, path: Path) -> _Line:
    """Raises InputRefused for poses of a data set that does not say their keypoints."""
    if objects == "boxes":
        return _Line(_box)
    if objects == "oriented":
        return _Line(_oriented, 4)
    shape = None if data is None else data.get(_KEYPOINTS)
    whole = isinstance(shape, list) and len(shape) == 2 and all(type(n) is int for n in shape)
    if not isinstance(shape, list) or not whole or shape[0] < 1 or shape[1] not in (2, 3):
        raise InputRefused(
            "a folder does not say which keypoints it has"
            if data is None
            else f"{_KEYPOINTS} is {shape!r}",
            where=str(path),
            hint=f"a data.yaml has e.g. {_KEYPOINTS}: [17, 3], their number, and 2 for x y or 3 "
            "for x y visibility",
        )
    count, numbers = shape
    return _Line(partial(_pose, count=count, numbers=numbers), count)


def _boxes(file: Path, line: _Line) -> Iterator[Box]:
    if not file.is_file():
        return
    for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if text.strip():
            where = f"{file}:{number}"
            yield line.read(*_numbers(text.split(), where), where)


def _numbers(words: list[str], where: str) -> tuple[int, list[float]]:
    """The class of a line, and its other numbers."""
    try:
        kind, *values = map(float, words)
    except ValueError as error:
        raise InputRefused(f"not numbers: {' '.join(words)[:80]}", where=where) from error
    if not all(map(isfinite, (kind, *values))):
        raise InputRefused(f"not finite: {' '.join(words)[:80]}", where=where)
    if not kind.is_integer() or kind < 0:
        raise InputRefused(f"the class is {words[0]}", where=where, hint="classes are 0, 1, 2, …")
    return int(kind), values


def _shares(values: Iterable[float], where: str, beyond: float = 0.01) -> None:
    """Refuse coordinates that are no shares of the picture. `beyond`: how far they may lie outside
    of it."""
    if not all(-beyond <= value <= 1 + beyond for value in values):
        raise InputRefused(
            "a coordinate is not between 0 and 1",
            where=where,
            hint="divide by the width and the height of the picture",
        )


def _wrong_length(values: list[float], where: str, hint: str) -> InputRefused:
    return InputRefused(f"{1 + len(values)} numbers", where=where, hint=hint)


def _box(kind: int, values: list[float], where: str) -> Box:
    outline = len(values) >= 6 and len(values) % 2 == 0
    if len(values) != 4 and not outline:
        hint = "a line is `class x y width height`, or `class x y x y x y …` for an outline"
        raise _wrong_length(values, where, hint)
    _shares(values, where)
    if outline:
        across, down = values[::2], values[1::2]
        corners = (min(across), min(down), max(across), max(down))
    else:
        corners = _corners(values)
    return Box(kind, corners, _area(corners))


def _pose(kind: int, values: list[float], where: str, *, count: int, numbers: int) -> Box:
    """The area is the share of the box that a person fills on average, as Ultralytics' validation
    has it: YOLO's files have no area of the object, which the similarity needs."""
    if len(values) != 4 + count * numbers:
        each = "x y" if numbers == 2 else "x y visibility"
        hint = f"a line is `class x y width height` and `{each}` for each of {count} keypoints"
        raise _wrong_length(values, where, hint)
    rest = values[4:]
    seen = rest[2::3] if numbers == 3 else [1.0] * count
    across, down = rest[::numbers], rest[1::numbers]
    labelled = [place for x, y, v in zip(across, down, seen, strict=True) if v for place in (x, y)]
    _shares((*values[:4], *labelled), where)
    corners = _corners(values[:4])
    points = tuple(zip(across, down, seen, strict=True))
    return Box(kind, corners, _AREA * _area(corners), points=points)


def _oriented(kind: int, values: list[float], where: str) -> Box:
    hint = "a line is `class x1 y1 x2 y2 x3 y3 x4 y4`, the corners in order around the box"
    if len(values) != 8:
        raise _wrong_length(values, where, hint)
    _shares(values, where, beyond=0.5)  # a box at the border may reach far beyond the picture
    points = np.asarray(values).reshape(4, 2)
    sides = np.roll(points, -1, axis=0) - points
    turns, doubled = (
        a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]
        for a, b in ((sides, np.roll(sides, -1, axis=0)), (points, np.roll(points, -1, axis=0)))
    )
    area = abs(float(doubled.sum())) / 2
    if not area or turns.min() < 0 < turns.max():
        raise InputRefused("the corners are in no order around a box", where=where, hint=hint)
    (left, top), (right, bottom) = points.min(0).tolist(), points.max(0).tolist()
    corners = tuple((x, y, 1.0) for x, y in points.tolist())
    return Box(kind, (left, top, right, bottom), area, points=corners)


def _corners(centred: list[float]) -> Corners:
    x, y, width, height = centred
    return (x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def _area(corners: Corners) -> float:
    return (corners[2] - corners[0]) * (corners[3] - corners[1])

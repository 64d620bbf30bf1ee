"""Annotations of YOLO: for each picture a .txt file, with a line `class x y width height` per box.

Format: Ultralytics, "Object detection datasets". The centre and the sides are shares of the width
and the height of the picture. A line with more numbers is an outline, x y x y …, whose bounding box
counts. A picture without a file has no objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from optkit.data import reading
from optkit.data.box_annotations.dataset import Annotated, Box, Dataset, Numbering
from optkit.errors import InputRefused

_IMAGES, _LABELS = "images", "labels"
_NAMES = "names"


def read(path: Path, split: str, classes: list[str] | None, model: str | None) -> Dataset:
    """Arguments and errors as for `box_annotations.read`."""
    folder, own = _of_folder(path) if path.is_dir() else _of_yaml(path, split)
    pictures = sorted(
        file for file in reading.beneath(folder) if file.suffix.lower() in reading.PICTURES
    )
    if not pictures:
        raise InputRefused("the folder has no pictures", where=str(folder))
    found = {picture: list(_boxes(_labels(picture, folder))) for picture in pictures}
    if not any(found.values()):
        raise InputRefused(
            "no picture has a line in a file of labels",
            where=str(_labels(pictures[0], folder).parent),
            hint=f"the labels of …/{_IMAGES}/a.jpg are in …/{_LABELS}/a.txt",
        )
    used = {box.number for boxes in found.values() for box in boxes}
    for picture, boxes in found.items():
        for line, box in enumerate(boxes, 1):
            if own and box.number not in own:
                raise InputRefused(
                    f"no class has the number {box.number}",
                    where=f"{_labels(picture, folder)}, box {line}",
                    hint=f"the data set has {len(own)} classes, from 0 on",
                )
    numbering = (
        Numbering.of(own, classes, model, path)
        if own
        else Numbering.plain(max(used) + 1, classes, model, path)
    )
    return Dataset(
        [
            Annotated(picture, numbering.boxes(boxes), relative=True)
            for picture, boxes in found.items()
        ],
        numbering.names,
    )


def _of_folder(path: Path) -> tuple[Path, dict[int, str]]:
    """The folder of pictures; its classes have no names."""
    folder = path / _IMAGES if (path / _IMAGES).is_dir() else path
    return folder, {}


def _of_yaml(path: Path, split: str) -> tuple[Path, dict[int, str]]:
    """The folder of pictures, and the names of the classes by number."""
    try:
        data = YAML(typ="safe").load(path.read_bytes())
    except OSError as error:
        raise InputRefused(f"cannot be read: {error.strerror}", where=str(path)) from error
    except (YAMLError, ValueError) as error:
        raise InputRefused(f"not YAML: {error}", where=str(path)) from error
    given = data.get(split) if isinstance(data, Mapping) else None
    names = data.get(_NAMES) if isinstance(data, Mapping) else None
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


def _boxes(file: Path) -> Iterator[Box]:
    if not file.is_file():
        return
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            yield _box(line.split(), f"{file}:{number}")


def _box(words: list[str], where: str) -> Box:
    try:
        kind, *values = map(float, words)
    except ValueError as error:
        raise InputRefused(f"not numbers: {' '.join(words)[:80]}", where=where) from error
    sides = len(values) == 4
    if not (sides or (len(values) >= 6 and len(values) % 2 == 0)) or not all(map(isfinite, values)):
        raise InputRefused(
            f"{len(words)} numbers",
            where=where,
            hint="a line is `class x y width height`, or `class x y x y x y …` for an outline",
        )
    if not kind.is_integer() or kind < 0:
        raise InputRefused(f"the class is {words[0]}", where=where, hint="classes are 0, 1, 2, …")
    if not all(-0.01 <= value <= 1.01 for value in values):
        raise InputRefused(
            "a coordinate is not between 0 and 1",
            where=where,
            hint="divide by the width and the height of the picture",
        )
    if not sides:
        across, down = values[::2], values[1::2]
        corners = (min(across), min(down), max(across), max(down))
    else:
        x, y, width, height = values
        corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    area = (corners[2] - corners[0]) * (corners[3] - corners[1])
    return Box(int(kind), corners, area)

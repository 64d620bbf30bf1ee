"""Annotations of COCO: one JSON file with images, annotations and categories.

Format: cocodataset.org, "Data format", object and keypoint detection. A box is [x, y, width,
height] in pixels, keypoints are [x1, y1, v1, x2, …]; v is 0 for a keypoint that is not labelled.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Annotated as Having

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from optkit.facts.errors import InputRefused
from optkit.ground.data.box_annotations.dataset import AnnotatedPicture, Box, Dataset, Numbering

_Finite = Having[float, Field(allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Image(_Part):
    id: int
    file_name: str


class _Annotation(_Part):
    image_id: int
    category_id: int
    bbox: tuple[_Finite, _Finite, _Finite, _Finite]
    area: _Finite | None = None
    iscrowd: int = 0
    keypoints: list[_Finite] | None = None


class _Category(_Part):
    id: int
    name: str


class _File(_Part):
    images: list[_Image]
    annotations: list[_Annotation]
    categories: list[_Category]


def read(
    path: Path,
    pictures: Path | None,
    classes: list[str] | None,
    model: str | None,
    *,
    posed: bool = False,
) -> Dataset:
    """Arguments and errors as for `box_annotations.read`. `posed`: whether each annotation must
    have keypoints."""
    file = _parsed(path)
    if not file.images:
        raise InputRefused("it lists no pictures", where=str(path))
    own = {one.id: one.name for one in sorted(file.categories, key=lambda one: one.id)}
    numbering = Numbering.of(own, classes, model, path)
    points = _number_of_keypoints(file, path) if posed else 0
    known = {one.id for one in file.images}
    boxes: dict[int, list[Box]] = defaultdict(list)
    for number, one in enumerate(file.annotations):
        for what, given, among in (
            ("image", one.image_id, known),
            ("category", one.category_id, own),
        ):
            if given not in among:
                raise InputRefused(f"no {what} has the id {given}", where=_place(path, number))
        boxes[one.image_id].append(_box(one))
    folder = _folder(path, pictures, file.images[0].file_name)
    return Dataset(
        [
            AnnotatedPicture(folder / image.file_name, numbering.boxes(boxes[image.id], points))
            for image in file.images
        ],
        numbering.names,
    )


def _parsed(path: Path) -> _File:
    try:
        return _File.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputRefused(f"cannot be read: {error.strerror}", where=str(path)) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise InputRefused(
            f"{place}: {first['msg']}" if place else first["msg"],
            where=str(path),
            hint="a COCO file of detections has images, annotations (with bbox) and categories",
        ) from error


def _box(one: _Annotation) -> Box:
    x, y, width, height = one.bbox
    area = width * height if one.area is None else one.area
    numbers = one.keypoints or []
    points = tuple(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=False))
    return Box(one.category_id, (x, y, x + width, y + height), area, bool(one.iscrowd), points)


def _number_of_keypoints(file: _File, path: Path) -> int:
    """That of the first annotation, which all others must have. Raises InputRefused."""
    count = 0
    for number, one in enumerate(file.annotations):
        found = len(one.keypoints or [])
        if found == 0 or found % 3 or (count and found != 3 * count):
            what = f"{found} numbers" if found else "none"
            raise InputRefused(
                f"keypoints: {what}, and not {f'3 for each of {count}' if count else 'x, y, v'}",
                where=_place(path, number),
                hint="each annotation has keypoints: [x1, y1, v1, x2, …], with v = 0 for one that "
                "is not labelled; for boxes without keypoints the task is detection",
            )
        count = count or found // 3
    return count


def _place(path: Path, number: int) -> str:
    return f"{path}, annotations.{number}"


def _folder(path: Path, named: Path | None, first: str) -> Path:
    """The folder of the pictures: `named`, or the one of the usual places with the first one."""
    beside = path.parent
    usual = [beside, beside / "images", beside / path.stem, beside / "images" / path.stem]
    # annotations/instances_val2017.json is beside val2017/
    usual += [beside.parent / path.stem.partition("_")[2], beside.parent / "images"]
    for folder in [named] if named else usual:
        if (folder / first).is_file():
            return folder
    where = named or beside
    raise InputRefused(
        f"the picture {first!r} of {path.name} is not there",
        where=str(where),
        hint="args.pictures: the folder of the pictures",
    )

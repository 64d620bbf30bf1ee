"""Pictures with annotated boxes, from files of COCO or YOLO.

coco    a .json file with the keys images, annotations and categories
yolo    a .yaml file that names folders of pictures, or a folder with images/ and labels/; for
        each picture a .txt file with one line per box
"""

from __future__ import annotations

from pathlib import Path

from optkit.facts.errors import InputRefused
from optkit.ground.data.box_annotations import coco, yolo
from optkit.ground.data.box_annotations.dataset import AnnotatedPicture, Dataset, Objects

__all__ = ["AnnotatedPicture", "Dataset", "Objects", "read"]


def read(
    path: Path,
    *,
    objects: Objects = "boxes",
    pictures: Path | None,
    split: str,
    classes: list[str] | None,
    model: str | None,
) -> Dataset:
    """The pictures with their boxes.

    objects: what the lines or annotations describe; oriented boxes are those of YOLO only.
    pictures: the folder to which a COCO file's names are relative; None: beside the file, or a
    folder `images`, or one of the file's own name there. split: the key of the folder in a YOLO
    .yaml file (val, test, train). classes: the names in the order of the model's outputs; None:
    those in the config.json of folder `model`, otherwise the order of the data set.

    Raises InputRefused with the file, and the line or the number of the annotation.
    """
    if path.suffix.lower() == ".json":
        if objects == "oriented":
            raise InputRefused(
                "a COCO file has no oriented boxes",
                where=str(path),
                hint="oriented boxes are read from YOLO's files: class x1 y1 x2 y2 x3 y3 x4 y4",
            )
        return coco.read(path, pictures, classes, model, posed=objects == "poses")
    if path.suffix.lower() in (".yaml", ".yml") or path.is_dir():
        return yolo.read(path, split, classes, model, objects)
    raise InputRefused(
        "optkit has no reader for annotations in this kind of file"
        if path.exists()
        else "no such file or folder",
        where=str(path),
        hint="supported: COCO (.json), YOLO (data.yaml, or a folder with images/ and labels/)",
    )

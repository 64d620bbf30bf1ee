"""Samples with one class each, from any file or folder, for the evaluation of classifiers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from optkit.facts.errors import InputRefused
from optkit.ground.data import arrays, audio, images, reading, text
from optkit.ground.data.checking import Item
from optkit.ground.data.preprocessing import Numbers, Size
from optkit.ground.data.reading import Inputs
from optkit.ground.data.tokens import Side


def samples(
    path: Path,
    label: str = "label",
    slice: str | None = None,
    group: str | None = None,
    classes: list[str] | None = None,
    field: str | list[str] = "text",
    length: int | None = None,
    padding_side: Side | None = None,
    tokenizer: Path | None = None,
    preprocessing: str | None = None,
    size: Size = None,
    resize: int | None = None,
    mean: Numbers | None = None,
    std: Numbers | None = None,
    processor: Path | None = None,
    extractor: Path | None = None,
    model: str | None = None,
    inputs: Inputs | None = None,
) -> Iterator[Item]:
    """Batches of (feed, classes int64 [batch]) from a folder of pictures or recordings in class
    subfolders, from rows of text (column `label`), or from arrays (array `label`).

    slice: the column or array with the slice of each sample (default: its class). group: the one
    with what each sample belongs to, such as its clip (of a folder: its subfolder within the class
    folder, if there are several in a class). classes: their
    names in the order of the model's outputs, if labels are names (default: those in its
    config.json; for a folder, else the sorted subfolders). The other arguments are those of the
    reader: see `samples` in text.py, images.py and audio.py.

    Raises InputRefused.
    """
    reader = reading.reader_of(path)
    if reader in ("images", "audio"):
        _check_no_columns(path, slice=slice, group=group)
    if reader == "images":
        yield from images.labelled(
            path, classes=classes, preprocessing=preprocessing, size=size, resize=resize,
            mean=mean, std=std, processor=processor, model=model, inputs=inputs,
        )  # fmt: skip
    elif reader == "audio":
        yield from audio.labelled(
            path, classes=classes, extractor=extractor, model=model, inputs=inputs
        )
    elif reader == "text":
        yield from text.labelled(
            path, field=field, label=label, slice=slice, group=group, classes=classes,
            length=length, padding_side=padding_side, tokenizer=tokenizer, model=model,
            inputs=inputs,
        )  # fmt: skip
    elif reader == "arrays":
        yield from arrays.labelled(path, label=label, slice=slice, group=group, inputs=inputs)
    else:
        raise InputRefused(
            "optkit has no reader for this kind of file"
            if Path(path).exists()
            else "no such file or folder",
            where=str(path),
            hint=f"supported: {'; '.join(reading.READ.values())}",
        )


def _check_no_columns(folder: Path, **named: str | None) -> None:
    """Raises InputRefused for a column of a folder."""
    hint = "the classes are the slices, and subfolders of a class folder the groups"
    for arg, column in named.items():
        if column is not None:
            raise InputRefused(
                "a folder has no columns", where=str(folder), hint=f"leave out args.{arg}: {hint}"
            )

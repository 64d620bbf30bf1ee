"""Files of one kind in a folder, directly or in a subfolder per class. They are ordered so that the
first few always come from different classes; calibration can stop at any place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import gcd
from pathlib import Path

from optkit.facts.errors import InputRefused
from optkit.ground.data import reading
from optkit.ground.data.classes import model_classes
from optkit.ground.data.reading import Reader

_GOLDEN = (5**0.5 - 1) / 2

ClassFiles = list[tuple[Path, str]]
"""Each file and its subfolder ("" for none)."""


def spread(folder: Path, reader: Reader, suffixes: Sequence[str], what: str) -> ClassFiles:
    """The files below `folder` with these suffixes, in steps of the golden ratio. Hidden folders
    (".ipynb_checkpoints") are ignored. `what`: the plural of the files' kind, for errors.

    Raises InputRefused for a folder without such files.
    """
    folder = reading.existing(folder, reader)
    paths = [path for path in reading.beneath(folder) if path.suffix.lower() in suffixes]
    reading.check_names(paths)
    parted = (path.relative_to(folder).parts for path in paths)
    names = sorted(parts for parts in parted if not any(part[0] == "." for part in parts))
    if not names:
        more = ", …" if len(suffixes) > 4 else ""
        hint = (
            f"give a folder of {', '.join(suffixes[:4])}{more}, in class subfolders or all in one"
        )
        raise InputRefused(f"the folder has no {what}", where=str(folder), hint=hint)
    step = round(len(names) * _GOLDEN) or 1
    while gcd(step, len(names)) > 1:
        step += 1
    order = (names[i * step % len(names)] for i in range(len(names)))
    return [(folder.joinpath(*parts), parts[0] if len(parts) > 1 else "") for parts in order]


def classes(
    folder: Path, files: ClassFiles, named: list[str] | None, model: str | None, what: str
) -> list[str]:
    """The classes in the order of their numbers: those of `named`; by default those of the model if
    the subfolders have their names, otherwise the sorted names of the subfolders.

    Raises InputRefused for one of the `files` that is in none of them, and if the number of
    subfolders is not the number of the model's classes.
    """
    of_model, used = model_classes(model), {name for _, name in files}
    names = named or (of_model if used <= {*of_model} else _subfolders(folder, used, what))
    if not named and of_model and len(names) != len(of_model):
        raise InputRefused(
            f"{len(names)} class folders, but the model has {len(of_model)} classes of other names",
            where=str(folder),
            hint=f"name the folders like the model's classes ({', '.join(of_model[:4])}, …), or "
            "name all classes in args.classes",
        )
    for file, name in files:
        if name not in names or not name:
            reason = (
                f"its folder {name!r} is not a known class" if name else "it is in no class folder"
            )
            hint = f"the classes are {', '.join(names) or 'unknown'}: one subfolder each"
            raise InputRefused(reason, where=str(file), hint=hint)
    return names


def groups(files: ClassFiles) -> Callable[[ClassFiles], list[str] | None]:
    """A function that returns the group of each of some files: its folder, such as that of a clip
    (class/clip/frame.png). None if folders do not divide the classes further."""
    parents = {file.parent for file, _ in files}
    if len(parents) <= len({name for _, name in files}):
        return lambda _: None
    # a file directly in the class folder belongs to no other
    alone = {file.parent for file, name in files if file.parent.name == name}
    return lambda some: [str(f if f.parent in alone else f.parent) for f, _ in some]


def _subfolders(folder: Path, used: Collection[str], what: str) -> list[str]:
    """The sorted names. Raises InputRefused for a subfolder without files. If it is no class,
    counting it would shift all classes after it; if it is a class, leaving it out would."""
    names = sorted(
        entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != "."
    )
    empty = [name for name in names if name not in used]
    if empty:
        where, hint = str(folder / empty[0]), "remove it, or name all classes in args.classes"
        raise InputRefused(f"the class folder has no {what}", where=where, hint=hint)
    return names

"""Classes by name: the number of a label among the outputs of a model."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan
from pathlib import Path

from optkit.facts.errors import InputRefused
from optkit.ground.data.packing import IGNORED
from optkit.ground.decoder import CONFIG, read_json


def model_classes(model: str | Path | None) -> list[str]:
    """The names in `id2label` in the config.json of folder `model`, in the order of the outputs.
    Empty if there are none, or if they are numbers that differ from those of the classes."""
    file = Path(model or "") / CONFIG
    said = read_json(file.read_bytes(), str(file)) if model and file.is_file() else {}
    stored = said.get("id2label")
    names = stored if isinstance(stored, dict) else {}
    ordered = [str(names.get(str(number))) for number in range(len(names))]
    counted = [str(number) for number in range(len(names))]
    if {*names} != {*counted} or (ordered != counted and any(name.isdecimal() for name in ordered)):
        return []
    return ordered


def class_number(label: object, names: Sequence[str] | None, where: str) -> int:
    """The number of a class: the index of its name in `names` (names may be digits, "1" to "5"),
    otherwise a whole number from 0, unchanged; −100 is also unchanged. Raises InputRefused."""
    known = [str(name) for name in names or ()]
    if str(label) in known:
        return known.index(str(label))
    try:
        number = float(label)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = nan
    sound = 0 <= number < (len(known) or inf) or number == IGNORED
    if not sound or not number.is_integer():
        raise InputRefused(
            f"the label {label!r} is not {'a known class' if known else 'the number of a class'}",
            where=where,
            hint="args.classes: the names in the order of the model's outputs",
        )
    return int(number)

"""The kernels that were timed on a card, in the user's configuration: one file for each target,
`cards/l4.json` in $OPTKIT_CONFIG or in the user's configuration folder.

The file may come from another machine: predictions for a target use it wherever they are made.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from optkit.facts.documents.measured_card import CARD, MeasuredCard
from optkit.facts.errors import InputRefused
from optkit.ground.devices import driver_version, gpus, has_driver
from optkit.ground.store import make_folder, storage_errors, write_durably
from optkit.ground.store.disk import open_regular

_OPTION = "OPTKIT_CONFIG"
_LARGEST = 4 * 2**20  # bytes: a file of 120 kernels has 20 KiB


class CardFile(NamedTuple):
    card: MeasuredCard
    digest: str
    """sha256 of the bytes."""


def folder() -> Path:
    """$OPTKIT_CONFIG, or the user's configuration folder."""
    if named := os.environ.get(_OPTION):
        return Path(named).expanduser()
    import platformdirs

    return Path(platformdirs.user_config_dir("optkit", appauthor=False))


def path_of(target: str) -> Path:
    return folder() / "cards" / f"{target}.json"


def read(target: str) -> CardFile | None:
    """The kernels that were timed on this target; None if there are none. Raises InputRefused for a
    file that cannot be used."""
    path = path_of(target)
    try:
        with open_regular(path) as file:
            content = file.read(_LARGEST + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if not os.access(path.parent, os.X_OK):  # the home of another user
            return None
        raise _refused(path, f"it cannot be read: {error.strerror}") from error
    if len(content) > _LARGEST:
        raise _refused(path, f"it is larger than {_LARGEST} bytes")
    try:
        card = MeasuredCard.model_validate_json(content)
    except ValidationError as error:
        raise _refused(path, _problem(error)) from error
    if card.target != target:
        raise _refused(path, f"it has the kernels of {card.target}, not of {target}")
    return CardFile(card, sha256(content).hexdigest())


def keep(card: MeasuredCard) -> MeasuredCard:
    """Write the file of its target, and return what it says with its path. Readers see the old file
    or the new one."""
    path = path_of(card.target)
    write(card, path, _OPTION)
    return card.model_copy(update={"path": str(path)})


def write(card: MeasuredCard, path: Path, option: str) -> None:
    """Write a file without its path. `option`: what chooses the place."""
    content = card.model_copy(update={"path": None}).model_dump_json(indent=1)
    with storage_errors(path, option):
        make_folder(path.parent)
        write_durably(path, f"{content}\n".encode())


def difference(card: MeasuredCard) -> str | None:
    """What this machine has in place of what was measured, in words; None if that is the same, or
    if it has no such card."""
    if not has_driver():
        return None
    same = [gpu for gpu in gpus().devices if gpu.target == card.target]
    if not same:
        return None
    if card.device not in {gpu.name for gpu in same}:
        return f"this machine has an {same[0].name}, and a {card.device} was measured"
    here = driver_version()
    if here is not None and card.driver is not None and here != card.driver:
        return f"this machine has driver {here}: `optkit devices --measure` measures again"
    return None


def _problem(error: ValidationError) -> str:
    first = error.errors()[0]
    if first["loc"] == ("schema",) and first["type"] == "literal_error":
        return f"it is outdated, or of a newer optkit: it is not {CARD}"
    place = ".".join(map(str, first["loc"]))
    return f"it is no {CARD}: {place + ': ' if place else ''}{first['msg']}"


def _refused(path: Path, problem: str) -> InputRefused:
    return InputRefused(
        problem,
        where=str(path),
        hint="measure again on the card (`optkit devices --measure`), or remove the file: then "
        "predictions come from the fit to published measurements",
    )

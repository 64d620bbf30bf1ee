"""A recipe with the changes that findings ask for."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from optkit import shipped
from optkit.explanation.finding import Finding
from optkit.recipe import Calibration, Eval, Model

_SECTIONS: Mapping[str, type[BaseModel]] = {
    "model": Model,
    "calibration": Calibration,
    "eval": Eval,
}
_FILES = {"model": ("factory", "path", "weights", "adapter"), "calibration": ("source",),
          "eval": ("task",)}  # fmt: skip
_OPTIONAL = ("weights", "adapter")  # a section is valid without them
_CONTENT, _OWN, _GIVEN = "content:", "recipe:", "given:"


def applied(
    record: Mapping[str, Any], findings: Iterable[Finding], folder: Path
) -> tuple[dict[str, Any], list[str]]:
    """The recipe that an artifact was built from (its `record`) with the settings of the findings,
    as it is written into `folder`; and as KEY=VALUE what the command line has to give again,
    because the record does not say where it lies. Of two settings of one key the first counts.

    Files of optkit's own content are found from the folder; those of the recipe's project keep
    their names, so the new recipe belongs beside the old one.
    """
    data = {key: value for key, value in copy.deepcopy(dict(record)).items() if value is not None}
    for finding in reversed(list(findings)):
        for path, value in finding.change.settings.items():
            section = data
            for key in path[:-1]:
                if not isinstance(section.get(key), dict):
                    section[key] = {}
                section = section[key]
            section.pop(path[-1], None)  # the last pattern that matches a node counts
            section[path[-1]] = value
    data.get("model", {}).pop("trust_remote_code", None)  # no recipe may ask for it
    missing = [one for section in _FILES if section in data for one in _lost(data, section, folder)]
    return data, missing


def _lost(data: dict[str, Any], section: str, folder: Path) -> list[str]:
    """Name a section's files as the folder sees them. What stood on the command line is taken out
    and told: with the whole section, where that is no section without it."""
    own = data[section]
    named = {key: own[key] for key in _FILES[section] if own.get(key) is not None}
    lost = [key for key, name in named.items() if _is_given(key, name)]
    whole = any(key not in _OPTIONAL for key in lost)
    own |= {key: _name(name, None if whole else folder) for key, name in named.items()}
    if whole:
        found = _SECTIONS[section].model_validate(data.pop(section))
        return _told(section, found.model_dump(mode="json", exclude_defaults=True))
    told = _told(section, {key: own.pop(key) for key in lost})
    path = own.get("args", {}).get("path")  # as --calibration and --eval-data give it
    if section != "model" and isinstance(path, str) and not (folder / path).exists():
        del own["args"]["path"]
        told += _told(section, {"args.path": path})
    return told


def _is_given(key: str, name: str) -> bool:
    """Whether only the command line may name it so: a file anywhere, or an installed module."""
    return name.startswith(_GIVEN) or (key == "factory" and not name.startswith((_CONTENT, _OWN)))


def _told(section: str, settings: Mapping[str, Any]) -> list[str]:
    return [
        f"{section}.{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in settings.items()
    ]


def _name(named: str, folder: Path | None) -> str:
    """A recorded name as the folder's recipe writes it; None: as the command line does."""
    if not named.startswith(_CONTENT):
        return named.removeprefix(_OWN).removeprefix(_GIVEN)
    path, colon, attribute = named.removeprefix(_CONTENT).partition(":")
    place = shipped.root() / path
    if folder is not None:
        place = Path(os.path.relpath(place, folder.resolve()))
    return f"{place.as_posix()}{colon}{attribute}"

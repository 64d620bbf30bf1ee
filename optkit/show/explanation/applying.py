"""A recipe with the settings of the findings."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from optkit.facts.documents.explanation import ExplainFinding
from optkit.ground import shipped
from optkit.ground.recipe import Calibration, Eval, Model

_SECTIONS: Mapping[str, type[BaseModel]] = {
    "model": Model,
    "calibration": Calibration,
    "eval": Eval,
}
_FILES = {
    "model": ("factory", "path", "weights", "adapter"),
    "calibration": ("source",),
    "eval": ("task",),
}
_OPTIONAL = ("weights", "adapter")  # a section is valid without them
_CONTENT, _OWN, _GIVEN = "content:", "recipe:", "given:"


def applied(
    record: Mapping[str, Any], findings: Iterable[ExplainFinding], folder: Path
) -> tuple[dict[str, Any], list[str]]:
    """The recipe of an artifact (its `record`) with the settings of the findings, for a file in
    `folder`; and, as KEY=VALUE, the settings that the command line must give again because the
    record does not contain their paths. If two findings set one key, the first counts.

    Files that optkit ships get a path relative to the folder. Files of the recipe's project keep
    their names, so the new recipe must be next to the old one.
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
    data.get("model", {}).pop("trust_remote_code", None)  # a recipe may not set it
    missing = [
        setting
        for section in _FILES
        if section in data
        for setting in _without_files_of_command(data, section, folder)
    ]
    return data, missing


def _without_files_of_command(data: dict[str, Any], section: str, folder: Path) -> list[str]:
    """Write the file names of a section relative to the folder. Files from the command line are
    removed and returned as KEY=VALUE; if the section is not valid without them, all of it is."""
    values = data[section]
    files = {key: values[key] for key in _FILES[section] if values.get(key) is not None}
    removed = [key for key, name in files.items() if _is_given(key, name)]
    whole = any(key not in _OPTIONAL for key in removed)
    values |= {key: _name(name, None if whole else folder) for key, name in files.items()}
    if whole:
        valid = _SECTIONS[section].model_validate(data.pop(section))
        return _key_values(section, valid.model_dump(mode="json", exclude_defaults=True))
    settings = _key_values(section, {key: values.pop(key) for key in removed})
    path = values.get("args", {}).get("path")  # from --calibration or --eval-data
    if section != "model" and isinstance(path, str) and not (folder / path).exists():
        del values["args"]["path"]
        settings += _key_values(section, {"args.path": path})
    return settings


def _is_given(key: str, name: str) -> bool:
    """Whether only the command line may give this name: a file anywhere, an installed module."""
    return name.startswith(_GIVEN) or (key == "factory" and not name.startswith((_CONTENT, _OWN)))


def _key_values(section: str, settings: Mapping[str, Any]) -> list[str]:
    return [
        f"{section}.{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in settings.items()
    ]


def _name(named: str, folder: Path | None) -> str:
    """A recorded name as a recipe in `folder` writes it; None: as the command line writes it."""
    if not named.startswith(_CONTENT):
        return named.removeprefix(_OWN).removeprefix(_GIVEN)
    path, colon, attribute = named.removeprefix(_CONTENT).partition(":")
    place = shipped.root() / path
    if folder is not None:
        place = Path(os.path.relpath(place, folder.resolve()))
    return f"{place.as_posix()}{colon}{attribute}"

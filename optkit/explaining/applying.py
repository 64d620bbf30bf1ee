"""A recipe with the changes that findings ask for."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from optkit import content
from optkit.explaining.finding import Finding

_FILES = {"model": ("factory", "path", "weights", "adapter"), "calibration": ("source",),
          "eval": ("task",)}  # fmt: skip
_CONTENT, _OWN, _GIVEN = "content:", "recipe:", "given:"


def applied(
    record: Mapping[str, Any], findings: Iterable[Finding], folder: Path
) -> tuple[dict[str, Any], list[str]]:
    """The recipe that an artifact was built from (its `record`) with the settings of the findings,
    as it is written into `folder`; and what the command line has to give again, because the record
    does not say where it lies. Of two settings of one key the first counts.

    Files of optkit's own content are found from the folder; those of the recipe's own folder keep
    their names, so the new recipe belongs beside the old one.
    """
    data, missing = _located(record, folder)
    for finding in reversed(list(findings)):
        for path, value in finding.change.settings.items():
            section = data
            for key in path[:-1]:
                if not isinstance(section.get(key), dict):
                    section[key] = {}
                section = section[key]
            section.pop(path[-1], None)  # the last pattern that matches a node counts
            section[path[-1]] = value
    return data, missing


def _located(record: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], list[str]]:
    data = _without_nulls(copy.deepcopy(dict(record)))
    data.get("model", {}).pop("trust_remote_code", None)  # no recipe may ask for it
    missing = []
    for section, keys in _FILES.items():
        for key in keys:
            named = data.get(section, {}).get(key)
            if named is None:
                continue
            if named.startswith(_GIVEN):
                missing.append(f"{section}.{key}={named.removeprefix(_GIVEN)}")
                del data[section]
                break
            data[section][key] = _name(named, folder)
    return data, missing


def _name(named: str, folder: Path) -> str:
    if not named.startswith(_CONTENT):
        return named.removeprefix(_OWN)
    path, colon, attribute = named.removeprefix(_CONTENT).partition(":")
    place = os.path.relpath(content.root() / path, folder.resolve())
    return f"{Path(place).as_posix()}{colon}{attribute}"


def _without_nulls(data: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_nulls(value) if isinstance(value, dict) else value
        for key, value in data.items()
        if value is not None
    }

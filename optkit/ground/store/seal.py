"""A checksum inside a JSON object shows whether the object is complete and unchanged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

_CHECK = "check"


def sealed(body: Mapping[str, object]) -> dict[str, object]:
    """The object with its checksum."""
    return {**body, _CHECK: _digest(body)}


def is_sealed(body: Mapping[str, object]) -> bool:
    """Whether the object has the checksum of its other fields."""
    return body.get(_CHECK) == _digest({k: v for k, v in body.items() if k != _CHECK})


def _digest(body: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

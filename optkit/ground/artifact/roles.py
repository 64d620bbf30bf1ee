"""What a file of an artifact is for.

serves   what runs: graphs with their weights, engines, and files that libraries read beside them,
         such as a tokenizer
proves   what shows how the figures were obtained, and what `finish`, `explain` and `diff` read:
         the baseline, the simulation, samples, reports, the record of the recipe
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal

Role = Literal["serves", "proves"]

_PROVES = re.compile(r"baseline/.*|simulation\.onnx.*|eval\.safetensors|report\.\w+|recipe\.yaml")


def role_of(name: str, parts: Collection[str] = ()) -> Role:
    """The role of a file, by its relative name. `parts`: the folders that are artifacts."""
    folder, _, inner = name.partition("/")
    return "proves" if _PROVES.fullmatch(inner if folder in parts else name) else "serves"

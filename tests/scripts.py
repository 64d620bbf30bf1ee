"""Scripts of experiments/, which are no package, as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def script(path: str) -> Any:
    """The module in a file of the project, such as `experiments/gates/calibration.py`."""
    name = path.removesuffix(".py").replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where its dataclasses look their annotations up
    spec.loader.exec_module(module)
    return module

"""What `optkit doctor` reports: each library's presence, and whether it really imports."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

from optkit.devices import gpus
from optkit.execute.reads import installed
from optkit.runtimes import ONNXRUNTIME_WHEELS

# distribution, what it is for, the extra, import that must succeed
_LIBRARIES = (
    ("onnxruntime", "CPU target, simulation", "cpu", "onnxruntime"),
    ("onnxruntime-gpu", "the same, with CUDA", "gpu", "onnxruntime"),
    ("tensorrt-rtx", "engines without the GPU", "rtx", "tensorrt_rtx"),
    ("tensorrt", "engines on the device itself", "tensorrt", "tensorrt"),
    ("torch", "PyTorch models", "torch", "torch"),
    ("onnxscript", "export of PyTorch models", "torch", "onnxscript"),
    ("scikit-learn", "training of the examples", "examples", "sklearn"),
    ("nvidia-ml-py", "GPU telemetry", "gpu", "pynvml"),
)


@dataclass(frozen=True)
class Check:
    """A library, or another thing that builds depend on. `needed`: no build works without it."""

    what: str
    state: Literal["ok", "missing", "broken"]
    version: str | None
    needed: bool
    note: str


def diagnose() -> list[Check]:
    """Every library of optkit, and whether there is a GPU."""
    return [*(_library(*line) for line in _LIBRARIES), _runtime(), _gpu()]


def _library(name: str, purpose: str, extra: str, module: str) -> Check:
    version = installed(name)
    if version is None:
        return Check(name, "missing", None, False, f"{purpose}; pip install 'optkit[{extra}]'")
    tried = subprocess.run(
        [sys.executable, "-c", f"import {module}"], capture_output=True, text=True, check=False
    )
    if tried.returncode == 0:
        return Check(name, "ok", version, False, purpose)
    lines = tried.stderr.strip().splitlines() or [f"exit status {tried.returncode}"]
    return Check(name, "broken", version, False, f"does not import: {lines[-1]}")


def _runtime() -> Check:
    what = "one ONNX Runtime"
    wheels = [name for name in ONNXRUNTIME_WHEELS if installed(name)]
    if len(wheels) == 1:
        return Check(what, "ok", None, True, wheels[0])
    if not wheels:
        return Check(what, "missing", None, True, "pip install 'optkit[cpu]'")
    both = "both wheels overwrite each other's files: uninstall both, install one"
    return Check(what, "broken", None, True, both)


def _gpu() -> Check:
    here = gpus()
    names = ", ".join(f"{gpu.name} ({gpu.target or 'no target'})" for gpu in here.devices)
    state: Literal["ok", "missing"] = "ok" if here.devices else "missing"
    return Check("GPU", state, None, False, names or here.reason or "none")

"""What `optkit doctor` reports: each library's presence, and whether it really imports."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from optkit.devices import gpus
from optkit.execute.reads import installed

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


def diagnose() -> list[dict[str, Any]]:
    """Rows {what, state, version, needed, note}; state is ok, missing or broken."""
    rows = [_library(*line) for line in _LIBRARIES]
    runtimes = [name for name in ("onnxruntime", "onnxruntime-gpu") if installed(name)]
    rows.append(
        {
            "what": "one ONNX Runtime",
            "state": ("missing", "ok", "broken")[len(runtimes)],
            "version": None,
            "needed": True,
            "note": (
                "pip install 'optkit[cpu]'",
                runtimes[0] if runtimes else "",
                "both wheels overwrite each other's files: uninstall both, install one",
            )[len(runtimes)],
        }
    )
    found = gpus()
    names = ", ".join(f"{gpu.name} ({gpu.target or 'no target'})" for gpu in found.devices)
    state = "ok" if found.devices else "missing"
    rows.append(_row("GPU", state, None, names or found.reason or "none"))
    return rows


def _library(name: str, purpose: str, extra: str, module: str) -> dict[str, Any]:
    version = installed(name)
    if version is None:
        return _row(name, "missing", None, f"{purpose}; pip install 'optkit[{extra}]'")
    tried = subprocess.run(
        [sys.executable, "-c", f"import {module}"], capture_output=True, text=True, check=False
    )
    if tried.returncode == 0:
        return _row(name, "ok", version, purpose)
    lines = tried.stderr.strip().splitlines() or [f"exit status {tried.returncode}"]
    return _row(name, "broken", version, f"does not import: {lines[-1]}")


def _row(what: str, state: str, version: str | None, note: str) -> dict[str, Any]:
    return {"what": what, "state": state, "version": version, "needed": False, "note": note}

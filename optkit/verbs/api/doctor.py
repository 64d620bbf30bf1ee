"""What `optkit doctor` reports: whether each library is installed, and whether it can be imported.

All imports are tried at the same time, each in a child process, so the whole takes as long as the
slowest import.
"""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from optkit.facts.documents.installation import LibraryCheck
from optkit.ground.devices import gpus
from optkit.ground.devices.gpus import torch_build
from optkit.ground.execute.installed import installed
from optkit.ground.runtimes import ONNXRUNTIME_WHEELS
from optkit.ground.store import default_root

_State = Literal["ok", "missing", "broken"]
_SECONDS = 180  # that an import may take

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


def diagnose() -> Iterator[LibraryCheck]:
    """Checks of Python, the store, every library of optkit, and the GPU. Yields each as soon as it
    is known."""
    yield _check("Python", "ok", platform.python_version(), sys.executable)
    yield _store()
    children = {line[0]: _importing(line[3]) for line in _LIBRARIES if installed(line[0])}
    try:
        for name, purpose, extra, _ in _LIBRARIES:
            yield _library(name, purpose, extra, children.get(name))
    finally:
        for child in children.values():
            child.kill()
            child.communicate()
    yield _runtime()
    yield _gpu()


def _store() -> LibraryCheck:
    """The folder of finished steps, and the free space of its disk."""
    root = default_root().absolute()
    there = next(folder for folder in (root, *root.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    return _check("store", "ok", None, f"{root}, {free / 2**30:.1f} GiB free")


def _importing(module: str) -> subprocess.Popen[str]:
    """A child process that imports the module."""
    return subprocess.Popen(
        [sys.executable, "-c", f"import {module}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _library(
    name: str, purpose: str, extra: str, importing: subprocess.Popen[str] | None
) -> LibraryCheck:
    version = installed(name)
    if importing is None:
        return _check(name, "missing", None, f"{purpose}; pip install 'optkit[{extra}]'")
    if name == "torch" and (build := _torch_build()):
        purpose = f"{purpose}; {build}"
    try:
        _, errors = importing.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return _check(name, "broken", version, f"its import takes more than {_SECONDS} s")
    if importing.returncode == 0:
        return _check(name, "ok", version, purpose)
    lines = errors.strip().splitlines() or [f"exit status {importing.returncode}"]
    return _check(name, "broken", version, f"does not import: {lines[-1]}")


def _torch_build() -> str | None:
    place = importlib.metadata.distribution("torch").locate_file("torch/version.py")
    return torch_build(Path(str(place)))


def _runtime() -> LibraryCheck:
    what = "one ONNX Runtime"
    wheels = [name for name in ONNXRUNTIME_WHEELS if installed(name)]
    if len(wheels) == 1:
        return _check(what, "ok", None, wheels[0], needed=True)
    if not wheels:
        return _check(what, "missing", None, "pip install 'optkit[cpu]'", needed=True)
    both = "both wheels overwrite each other's files: uninstall both, install one"
    return _check(what, "broken", None, both, needed=True)


def _gpu() -> LibraryCheck:
    here = gpus()
    names = ", ".join(f"{gpu.name} ({gpu.target or 'no target'})" for gpu in here.devices)
    state: _State = "ok" if here.devices else "missing"
    return _check("GPU", state, None, names or here.reason or "none")


def _check(
    what: str, state: _State, version: str | None, note: str, *, needed: bool = False
) -> LibraryCheck:
    return LibraryCheck(what=what, state=state, version=version, needed=needed, note=note)

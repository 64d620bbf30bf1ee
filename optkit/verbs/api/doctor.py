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
from optkit.facts.errors import ToolchainMissing
from optkit.ground import runtimes
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

# A plugin may load and still have no driver or device, which is no broken installation.
_PLUGIN = "onnxruntime-tensorrt-rtx"
_ASK_PLUGIN = f"""
import sys
from optkit.errors import ToolchainMissing
from optkit.runtimes import backend
try:
    backend({_PLUGIN!r}).check()
except ToolchainMissing as error:
    print(error.message, file=sys.stderr)
    sys.exit(error.exit_code)
"""


def diagnose() -> Iterator[LibraryCheck]:
    """Checks of Python, the store, every library of optkit, and the GPU. Yields each as soon as it
    is known."""
    yield _check("Python", "ok", platform.python_version(), sys.executable)
    yield _store()
    children = {line[0]: _child(f"import {line[3]}") for line in _LIBRARIES if installed(line[0])}
    plugin = runtimes.backend(_PLUGIN).versions().keys() - set(ONNXRUNTIME_WHEELS)
    if plugin:
        children[_PLUGIN] = _child(_ASK_PLUGIN)
    try:
        for name, purpose, extra, _ in _LIBRARIES:
            yield _library(name, purpose, extra, children.get(name))
        if plugin:
            yield _plugin(installed(min(plugin)), children[_PLUGIN])
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


def _child(code: str) -> subprocess.Popen[str]:
    """A child process that runs the code."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
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
    told = _told(importing)
    if importing.returncode == 0:
        return _check(name, "ok", version, purpose)
    return _check(name, "broken", version, f"does not import: {told}")


def _plugin(version: str | None, asking: subprocess.Popen[str]) -> LibraryCheck:
    """ONNX Runtime's provider for TensorRT-RTX, if its wheel is installed."""
    told, code = _told(asking), asking.returncode
    states: dict[int, _State] = {0: "ok", ToolchainMissing.exit_code: "missing"}
    purpose = "graphs on the GPU, in ONNX Runtime" if code == 0 else told
    return _check("RTX provider", states.get(code, "broken"), version, purpose)


def _told(child: subprocess.Popen[str]) -> str:
    """The last line of what a child that failed says."""
    try:
        _, errors = child.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return f"it takes more than {_SECONDS} s"
    return (errors.strip().splitlines() or [f"exit status {child.returncode}"])[-1]


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

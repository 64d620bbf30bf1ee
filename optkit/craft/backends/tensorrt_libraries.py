"""Loads the TensorRT with which ONNX Runtime's provider was built, before the provider needs it.

The library of the provider names the libraries that it needs (libnvinfer.so.10). pip puts them into
the folder of a wheel (`tensorrt_libs`), where no loader looks. If the process has already loaded a
library of the same name, the loader uses it. Another major version of TensorRT does not work.
Unverified on a card.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from pathlib import Path

from optkit.facts.errors import ToolchainMissing
from optkit.ground.execute.installed import installed

_PROVIDER = "capi/libonnxruntime_providers_tensorrt.so"
_NEEDED = re.compile(rb"libnvinfer\.so\.(\d+)")
_NAMES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")  # each needs the ones before it
_OPTIONAL = frozenset({"nvinfer_plugin"})  # the provider loads it if it exists


def preload(runtime: Path) -> None:
    """Load the libraries for the ONNX Runtime in folder `runtime`. Raises ToolchainMissing if this
    machine does not have them in the major version that it needs."""
    major = needed(runtime / _PROVIDER)
    if major is None:  # another system, whose loader finds them
        return
    for name in _NAMES:
        file = f"lib{name}.so.{major}"
        try:
            ctypes.CDLL(_path(file), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            if name in _OPTIONAL:
                continue
            raise ToolchainMissing(
                f"ONNX Runtime's TensorRT provider needs {file}, which does not load "
                f"({_installed()}): {error}",
                hint="pip install 'optkit[tensorrt]' on the host with the GPU",
            ) from error


def needed(provider: Path) -> int | None:
    """The major version that a provider's library names; None if there is no such file."""
    if not provider.exists():
        return None
    found = _NEEDED.search(provider.read_bytes())
    return int(found[1]) if found else None


def _path(file: str) -> str:
    """The path in the wheel, otherwise the name, for the search of the loader."""
    spec = importlib.util.find_spec("tensorrt_libs")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return next((str(path) for f in folders if (path := Path(f) / file).exists()), file)


def _installed() -> str:
    version = installed("tensorrt")
    return "TensorRT is not installed" if version is None else f"TensorRT {version} is installed"

"""The TensorRT that ONNX Runtime's provider was built with, loaded before the provider asks for it.

The provider's library names what it needs (libnvinfer.so.10). pip puts that into the folder of a
wheel (`tensorrt_libs`), where no loader looks; a library that the process holds already is taken
for the same name. Another major version of TensorRT does not do. Unverified on a card.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from pathlib import Path

from optkit.errors import ToolchainMissing
from optkit.execute.reads import installed

_PROVIDER = "capi/libonnxruntime_providers_tensorrt.so"
_NEEDED = re.compile(rb"libnvinfer\.so\.(\d+)")
_NAMES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")  # each needs the ones before it
_OPTIONAL = frozenset({"nvinfer_plugin"})  # the provider loads it where it is there


def preload(runtime: Path) -> None:
    """Load the libraries for the ONNX Runtime in folder `runtime`. Raises ToolchainMissing where
    they are not here in the major version that it needs."""
    major = needed(runtime / _PROVIDER)
    if major is None:  # another system: its own loader finds them
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
    """The major version that a provider's library names; None where there is no such file."""
    if not provider.exists():
        return None
    found = _NEEDED.search(provider.read_bytes())
    return int(found[1]) if found else None


def _path(file: str) -> str:
    """In the wheel, else wherever the loader finds it."""
    spec = importlib.util.find_spec("tensorrt_libs")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return next((str(path) for f in folders if (path := Path(f) / file).exists()), file)


def _installed() -> str:
    version = installed("tensorrt")
    return "TensorRT is not installed" if version is None else f"TensorRT {version} is installed"

"""Adapter files of ONNX Runtime (`.onnx_adapter`): matrices that replace initializers of a graph
which are also its inputs, in one run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from optkit.craft.backends.ort_session import library
from optkit.facts.errors import InputRefused
from optkit.facts.tensors import Feed

_VERSION = 1  # of adapter and model: the format wants numbers, and nothing reads them


def write(path: Path, parameters: Mapping[str, np.ndarray]) -> None:
    """Write an adapter file with these parameters."""
    ort = library()
    adapter = ort.AdapterFormat()
    adapter.set_adapter_version(_VERSION)
    adapter.set_model_version(_VERSION)
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in parameters.items()}
    adapter.set_parameters(values)
    adapter.export_adapter(str(path))


def read(path: Path) -> Feed:
    """The parameters of an adapter file by name. Raises InputRefused for another file."""
    try:
        values = library().AdapterFormat.read_adapter(str(path)).get_parameters()
        # `numpy` is a view of the mapped file, and does not keep it alive
        return {name: value.numpy().copy() for name, value in values.items()}
    except Exception as error:  # of the library, directly derived from Exception
        raise InputRefused(f"not an adapter: {error}", where=str(path)) from error

"""ONNX's own backend tests: those of the installed onnx, and those in older wheels."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests.conformance.judging import Case, Feed

_DATA = "onnx/backend/test/data/"
_LARGE = ("real", "light")  # whole networks, fetched from elsewhere or without their weights

WHEELS = {
    "opset 13": ("1.8.1", "3.8", "manylinux2010_x86_64",
                 "cd18c7499162dd2c8c7e45669f2e7096012b9054b59670c26c5f1239b5c50ce4"),
    "opset 19": ("1.14.1", "3.11", "manylinux2014_x86_64",
                 "4b9cd91b85cfbb0d6478f4a1a0aee4d95cf8839adc48c69130a0cf8452f21db4"),
}  # fmt: skip
"""The last opset whose tests a wheel has → its version, Python, platform and sha256 (PyPI)."""


def installed() -> Iterator[Case]:
    """The node tests that the installed onnx writes anew."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    for case in cases:
        names = [value.name for value in case.model.graph.input]
        feeds = [dict(zip(names, map(_plain, given), strict=False)) for given, _ in case.data_sets]
        yield Case(f"node/{case.name}", case.model, feeds[:1])


def of_wheel(path: Path) -> Iterator[Case]:
    """The tests in a wheel's data."""
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        for name in sorted(n for n in names if n.startswith(_DATA) and n.endswith("/model.onnx")):
            kind, test = name.removeprefix(_DATA).split("/")[:2]
            if kind in _LARGE:
                continue
            model = onnx.load_from_string(wheel.read(name))
            feed = _feed(wheel, names, name.removesuffix("model.onnx"), model)
            yield Case(f"{kind}/{test}", model, [feed])


def download(part: str, folder: Path) -> Path:
    """The wheel of one of WHEELS, verified. Raises CalledProcessError without a network."""
    version, python, platform, sha256 = WHEELS[part]
    found = [*folder.glob(f"onnx-{version}-*.whl")]
    if not found:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder,
             "--only-binary", ":all:", "--python-version", python, "--platform", platform,
             f"onnx=={version}"],
            check=True, capture_output=True,
        )  # fmt: skip
        found = [*folder.glob(f"onnx-{version}-*.whl")]
    assert hashlib.sha256(found[0].read_bytes()).hexdigest() == sha256
    return found[0]


def _plain(value: Any) -> Any:
    """Tensors and scalars as arrays, sequences as lists of them; None is an optional left out."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value if value is None else np.asarray(value)


def _feed(wheel: zipfile.ZipFile, names: set[str], folder: str, model: onnx.ModelProto) -> Feed:
    feed: dict[str, Any] = {}
    for index, value in enumerate(model.graph.input):
        name = f"{folder}test_data_set_0/input_{index}.pb"
        if name in names:
            feed[value.name] = _read(wheel.read(name), value.type)
    return feed


def _read(content: bytes, kind: onnx.TypeProto) -> Any:
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
    tensor = onnx.TensorProto.FromString(content)
    tensor.data_type = kind.tensor_type.elem_type  # onnx 1.8 wrote BFLOAT16 as UINT16
    return numpy_helper.to_array(tensor)

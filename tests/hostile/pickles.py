"""Pickles that write a file when they are loaded, in the containers in which weights and arrays
come."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

from numpy.lib import format as npy


def _text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value.encode())]) + value.encode()


def _long(value: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(value)) + value


def _calls(canary: Path) -> dict[str, bytes]:
    """Each way in which a pickle calls a function, with the bytes of a whole pickle."""
    run, write = f"touch {canary}", f"open({str(canary)!r}, 'w')"
    system = b"cos\nsystem\n"
    plain = system + f"(V{run}\ntR.".encode()
    return {
        "reduce": plain,
        "exec": f"cbuiltins\nexec\n(V{write}\ntR.".encode(),
        "eval": f"c__builtin__\neval\n(V{write}\ntR.".encode(),
        "inst": f"(V{run}\nios\nsystem\n.".encode(),
        "obj": b"(csubprocess\nPopen\n(lVtouch\na" + f"V{canary}\nao.".encode(),
        "methodcaller": f"coperator\nmethodcaller\n(Vsystem\nV{run}\ntR".encode()
        + b"(cimportlib\nimport_module\n(Vos\ntRtR.",
        "stack_global": b"\x80\x04" + _text("os") + _text("system") + b"\x93" + _text(run)
        + b"\x85R.",
        "build": b"ctypes\nSimpleNamespace\n)R(V__setstate__\n" + system
        + f"dbV{run}\nb.".encode(),
        "nested": b"c_pickle\nloads\n(" + _long(plain) + b"tR.",
        "getattr": b"cbuiltins\ngetattr\n(cimportlib\nimport_module\n(Vos\ntRVsystem\ntR"
        + f"(V{run}\ntR.".encode(),
    }  # fmt: skip


def _zip(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


def _checkpoint(pickle: bytes) -> bytes:
    return _zip(("archive/data.pkl", pickle), ("archive/version", b"3\n"),
                ("archive/byteorder", b"little"))  # fmt: skip


def _array(pickle: bytes) -> bytes:
    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, {"descr": "|O", "fortran_order": False, "shape": (4,)})
    return stream.getvalue() + pickle


def _program(pickle: bytes) -> bytes:
    return _zip(
        ("m/archive_format", b"pt2"), ("m/models/model.json", b"{}"), ("m/version", b"0"),
        ("m/data/weights/model_weights_config.json", b'{"config": {}}'),
        ("m/data/constants/model_constants_config.json", b'{"config": {}}'),
        ("m/data/sample_inputs/model.pt", _checkpoint(pickle)),
    )  # fmt: skip


_CONTAINERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "checkpoint": (".pt", _checkpoint),
    "state_dict": (".pth", lambda pickle: pickle),
    "array": (".npy", _array),
    "arrays": (".npz", lambda pickle: _zip(("x.npy", _array(pickle)))),
    "as_weights": (".safetensors", lambda pickle: pickle),
    "as_graph": (".onnx", lambda pickle: pickle),
    "program": (".pt2", _program),
}


def write(folder: Path, canary: Path) -> dict[str, Path]:
    """A file of each container with each pickle. Loading one makes the file `canary`."""
    made = {}
    for how, pickle in _calls(canary).items():
        for container, (suffix, wrap) in _CONTAINERS.items():
            path = made[f"{how}_{container}"] = folder / f"{how}_{container}{suffix}"
            path.write_bytes(wrap(pickle))
    return made

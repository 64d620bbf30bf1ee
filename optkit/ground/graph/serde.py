"""Reads, writes and checks ONNX files. Only this module, `semantics` and `growth` import the `onnx`
library."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path, PurePosixPath

import onnx
import onnx.checker
import onnx.shape_inference
import onnx_ir as ir
from google.protobuf.message import DecodeError

from optkit.facts.errors import InputRefused, StorageError, UnsafeFile
from optkit.ground.graph import data_files
from optkit.ground.graph.weights import MappedTensor

_OWN = "optkit."  # the prefix of optkit's metadata
# keys of a finished file (packaging.stamp); a graph that is computed from it is another one
_STAMP = "optkit.build."
INLINE_LIMIT = 256 << 20
"""If the weights have fewer bytes in total, they are in the model file itself. A model is one file
as long as reading and writing it takes only a few times this much memory."""


def load(path: Path) -> ir.Model:
    """Read an ONNX file. Weights stay on disk until they are needed.

    Raises InputRefused for a missing or damaged file, UnsafeFile for external data that is not a
    plain file below the folder of the model, or that is shorter than the model says.
    """
    proto = _parse(path)
    for external in _external_tensors(proto):
        _check_external(external, path)
    try:
        model = ir.from_proto(proto)
    except ir.serde.SerdeError as error:
        raise InputRefused(
            f"not a valid ONNX model: {last_line(error)}", where=str(path)
        ) from error
    _check_nodes(model, path)
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = _stored(value.const_value, path)
    for node, name, tensor in _constants_on_disk(model):
        node.attributes.add(ir.AttrTensor(name, _stored(tensor, path)))
    return model


def metadata(path: Path) -> dict[str, str]:
    """What an ONNX file says about its model, by key. Raises InputRefused."""
    return {entry.key: entry.value for entry in _parse(path).metadata_props}


def _check_nodes(model: ir.Model, path: Path) -> None:
    for node in model.graph.all_nodes():
        untyped = [n for n, a in node.attributes.items() if a.type == ir.AttributeType.UNDEFINED]
        if untyped or not node.outputs:
            problem = f"its attribute {untyped[0]!r} has no type" if untyped else "it has no output"
            raise InputRefused(problem, where=f"{path}, node {node.name!r} ({node.op_type})")


def save(model: ir.Model, path: Path, *, inline_limit: int = INLINE_LIMIT) -> None:
    """Write an ONNX file: the same graph from the same data files gives the same bytes.

    What a file says besides its graph (producer, doc strings, metadata) and a stamp are left out,
    so that they change no key of a step; `sources.log.Origin` keeps them for finished files. Other
    metadata of the model and of nodes under "optkit." is written. Weights are inline if they have
    less than `inline_limit` bytes in total, otherwise in data files beside the model, with at most
    one piece of one tensor in memory. A data file of the loaded graph of which nearly all bytes are
    used is linked instead of copied, if nobody may write it (`data_files.store`).
    """
    copy = model.clone()
    _strip(copy)
    constants = [v for graph in copy.graphs() for v in graph.initializers.values()]
    if sum(_nbytes(value) for value in constants) >= inline_limit:
        data_files.store(constants, path)
    else:
        data_files.inline(constants)
    for node, name, tensor in _constants_on_disk(copy):
        node.attributes.add(ir.AttrTensor(name, ir.Tensor(tensor.numpy().copy(), tensor.dtype)))
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_bytes(ir.to_proto(copy).SerializeToString(deterministic=True))
    temporary.replace(path)


def check(path: Path) -> None:
    """Raise InputRefused unless the file is valid ONNX by the checker of the library with strict
    shape inference, and every node has a unique name."""
    model = load(path)
    try:
        with tempfile.TemporaryDirectory() as folder:
            # the library refuses hard links, which `load` has checked, and does not read weights
            onnx.checker.check_model(str(_hollow(path, Path(folder))), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        if "Unable to open proto file" in str(error):  # it has just been written
            raise StorageError(last_line(error), where=str(path)) from error
        raise InputRefused(
            f"not a valid ONNX model: {last_line(error)}", where=str(path)
        ) from error
    seen: set[str] = set()
    for node in model.graph.all_nodes():
        if not node.name or node.name in seen:
            raise InputRefused(
                f"{node.op_type} node has {'a name used twice' if node.name else 'no name'}",
                where=f"{path}: {node.name or node.outputs[0].name}",
            )
        seen.add(node.name)


def data_locations(path: Path) -> list[str]:
    """The names of the data files of a model, relative to its folder. Raises InputRefused."""
    return _locations(_parse(path))


def with_data_at(path: Path, locations: Mapping[str, str]) -> bytes:
    """The model file with other names for its data files: old name → new name. Nothing else
    changes. Raises InputRefused."""
    proto = _parse(path)
    for tensor in _external_tensors(proto):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = locations[entry.value]
    return bytes(proto.SerializeToString(deterministic=True))


def _nbytes(value: ir.Value) -> int:
    return 0 if value.const_value is None else value.const_value.nbytes


def _strip(model: ir.Model) -> None:
    model.producer_name = model.producer_version = model.domain = model.doc_string = None
    model.model_version = None
    _strip_metadata(model.metadata_props)
    for graph in model.graphs():
        graph.doc_string = None
        graph.metadata_props.clear()
        values = [*graph.inputs, *graph.initializers.values()]
        for node in graph:
            node.doc_string = None
            _strip_metadata(node.metadata_props)
            values.extend(node.outputs)
        for value in values:
            value.doc_string = None
            value.metadata_props.clear()
    model.graph.name = "graph"


def _strip_metadata(entries: MutableMapping[str, str]) -> None:
    for key in [*entries]:
        if not key.startswith(_OWN) or key.startswith(_STAMP):
            del entries[key]


def _parse(path: Path) -> onnx.ModelProto:
    if not path.is_file():
        raise InputRefused("no such file", where=str(path))
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise InputRefused("not an ONNX file (protobuf does not parse)", where=str(path)) from error
    if not proto.HasField("graph"):
        raise InputRefused("not an ONNX model: it has no graph", where=str(path))
    return proto


def _external_tensors(proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    external: list[onnx.TensorProto] = []

    def attribute(item: onnx.AttributeProto) -> None:
        external.extend(t for t in (item.t, *item.tensors) if _is_external(t))
        for inner in (item.g, *item.graphs):
            graph(inner)

    def graph(item: onnx.GraphProto) -> None:
        external.extend(t for t in item.initializer if _is_external(t))
        for node in item.node:
            for each in node.attribute:
                attribute(each)

    graph(proto.graph)
    for function in proto.functions:
        for node in function.node:
            for each in node.attribute:
                attribute(each)
    return external


def _is_external(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def _external_info(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _locations(proto: onnx.ModelProto) -> list[str]:
    infos = map(_external_info, _external_tensors(proto))
    return sorted({info.get("location", "") for info in infos})


def _hollow(path: Path, folder: Path) -> Path:
    """A copy of the model in another folder, with empty files of the same size instead of its data
    files."""
    locations = _locations(_parse(path))
    if not locations:
        return path
    for location in locations:
        hole = folder / location
        hole.parent.mkdir(parents=True, exist_ok=True)
        hole.touch()
        os.truncate(hole, (path.parent / location).stat().st_size)
    return Path(shutil.copyfile(path, folder / path.name))


def _constants_on_disk(model: ir.Model) -> Iterator[tuple[ir.Node, str, ir.ExternalTensor]]:
    """Tensors in data files that are attributes of nodes."""
    for node in model.graph.all_nodes():
        for name, attribute in list(node.attributes.items()):
            if attribute.type == ir.AttributeType.TENSOR:
                tensor = attribute.as_tensor()
                if isinstance(tensor, ir.ExternalTensor):
                    yield node, name, tensor


def _stored(tensor: ir.ExternalTensor, path: Path) -> MappedTensor:
    place = path.parent / tensor.location
    if (tensor.offset or 0) + tensor.nbytes > place.stat().st_size:
        raise UnsafeFile(
            f"external data {str(tensor.location)!r} is too short",
            where=f"{path}: tensor {tensor.name!r}",
        )
    return MappedTensor(
        tensor.location,
        tensor.offset,
        tensor.nbytes,
        tensor.dtype,
        shape=tensor.shape,
        name=tensor.name,
        base_dir=path.parent,
    )


def _check_external(tensor: onnx.TensorProto, path: Path) -> None:
    info = _external_info(tensor)
    where = f"{path}: tensor {tensor.name!r}"
    name = info.get("location", "")
    location = PurePosixPath(name)
    if location.is_absolute() or ".." in location.parts or "\\" in name:
        raise UnsafeFile(f"external data {name!r} is outside the folder", where=where)
    data = path.parent / location
    if not name or data.is_symlink() or not data.is_file():
        raise UnsafeFile(f"external data {name!r} is not a file in this folder", where=where)
    facts = data.stat()
    # the files of the store are read-only
    if facts.st_nlink > 1 and stat.S_IMODE(facts.st_mode) & 0o222:
        raise UnsafeFile(f"external data {name!r} is a hard link", where=where)
    end = int(info.get("offset", 0)) + int(info.get("length", 0))
    if end > facts.st_size:
        raise UnsafeFile(f"external data {name!r} is too short", where=where)


def last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__

"""The only place where protobuf and the `onnx` library appear.

Weights never pass through the library: shape inference and opset conversion run on a copy whose
large initializers are declared as inputs, so a model's size does not matter to them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

import numpy as np
import onnx
import onnx.checker
import onnx.defs
import onnx.reference
import onnx.shape_inference
import onnx.version_converter
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx_ir import serde
from onnx_ir.passes.common import InlinePass, LiftConstantsToInitializersPass

from optkit.errors import InputRefused, UnsafeFile
from optkit.graph import opsets as older
from optkit.graph import weights
from optkit.graph.nodes import ensure_names
from optkit.graph.weights import Computed, Stored

_MINIMUM_IR_VERSION = 10  # the first that may hold opset 21
_INFERENCE_ERRORS = (RuntimeError, ValueError, onnx.shape_inference.InferenceError)
_OWN = "optkit."  # what names of our own metadata begin with
_STAMP = "optkit.build."  # of a finished file (packaging.stamp); a graph made of it is another
_SMALL_BYTES = 1024  # initializers up to this size stay visible to shape inference (shapes, axes)
INLINE_LIMIT = 256 << 20
"""Weights of fewer bytes in all stand in the model file itself: a model of one file, as long as
reading and writing it takes a few times that much memory only."""


def load(path: Path) -> ir.Model:
    """Read an ONNX file. Weights stay on disk until they are asked for.

    Raises InputRefused for a missing or damaged file, UnsafeFile for external data that is not a
    plain file below the model's own folder, or is shorter than the model says.
    """
    proto = _parse(path)
    for external in _external_tensors(proto):
        _check_external(external, path)
    try:
        model = ir.from_proto(proto)
    except ir.serde.SerdeError as error:
        raise InputRefused(
            f"not a valid ONNX model: {_last_line(error)}", where=str(path)
        ) from error
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = _stored(value.const_value, path)
    for node, name, tensor in _constants_on_disk(model):
        node.attributes[name] = ir.AttrTensor(name, _stored(tensor, path))
    return model


def save(model: ir.Model, path: Path, *, inline_limit: int = INLINE_LIMIT) -> None:
    """Write an ONNX file: the same graph from the same data files gives the same bytes.

    What exporters add about themselves (producer, doc strings, metadata) is left out, and a stamp;
    other metadata of the model under "optkit." stays. Weights are
    inline below `inline_limit` bytes in total, otherwise in data files beside the model, at most
    one piece of one tensor in memory at a time. A data file of the loaded graph that stays almost
    whole is linked, not copied, if nobody may write it; see `weights.store`.
    """
    copy = model.clone()
    _strip(copy)
    constants = [v for graph in copy.graphs() for v in graph.initializers.values()]
    if sum(_nbytes(value) for value in constants) >= inline_limit:
        weights.store(constants, path)
    else:
        weights.inline(constants)
    for node, name, tensor in _constants_on_disk(copy):
        node.attributes[name] = ir.AttrTensor(name, ir.Tensor(tensor.numpy().copy(), tensor.dtype))
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_bytes(ir.to_proto(copy).SerializeToString(deterministic=True))
    temporary.replace(path)


def digest(path: Path) -> str:
    """sha256 over the model file and, in name order, the external data files it refers to."""
    locations = _locations(_parse(path))
    total = hashlib.sha256()
    for file in (path, *(path.parent / location for location in locations)):
        with file.open("rb") as stream:
            total.update(hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest()


def check(path: Path) -> None:
    """Raise InputRefused unless the file is valid ONNX by the library's checker with strict shape
    inference, and every node of it has a name of its own."""
    model = load(path)
    try:
        with tempfile.TemporaryDirectory() as folder:
            # the library refuses hard links, which `load` has checked, and reads no weight anyway
            onnx.checker.check_model(str(_hollow(path, Path(folder))), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise InputRefused(
            f"not a valid ONNX model: {_last_line(error)}", where=str(path)
        ) from error
    seen: set[str] = set()
    for node in model.graph.all_nodes():
        if not node.name or node.name in seen:
            raise InputRefused(
                f"{node.op_type} node has {'a name used twice' if node.name else 'no name'}",
                where=f"{path}: {node.name or node.outputs[0].name}",
            )
        seen.add(node.name)


def infer_shapes(model: ir.Model, *, strict: bool = True) -> ir.Model:
    """Fill in dtype and shape of every value that they follow for. In place; returns the model.

    Raises InputRefused, naming the node, where an operator's inputs do not fit it (`strict`).
    """
    _forget_guesses(model)
    light, _ = _with_light_weights(model)
    _take_shapes(model.graph, _inferred(light, strict).graph)
    return model


def upgrade(model: ir.Model, minimum: int = 21) -> ir.Model:
    """The form all stages start from: plain ONNX at opset ≥ `minimum`, no model-local functions,
    constants as initializers that are no inputs as well (older files list them there, and as
    defaults nobody feeds they hide that weights are constant), every node named. The given model
    may be consumed.

    Raises InputRefused where the graph cannot be converted.
    """
    for value in [value for value in model.graph.inputs if value.is_initializer()]:
        model.graph.inputs.remove(value)
    older.forget_placeholders(model)
    # before the conversion: up to version 3 the library takes no constant that is no input
    model.ir_version = max(model.ir_version, _MINIMUM_IR_VERSION)
    InlinePass()(model)
    version = model.opset_imports.setdefault("", minimum)  # other domains' operators alone: any
    older.prepare(model)
    if version < minimum:
        model = _convert(model, minimum)
        older.complete(model, version)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    ensure_names(model)
    return infer_shapes(model)


def evaluate(node: ir.Node, inputs: Sequence[np.ndarray | None], opset: int) -> list[np.ndarray]:
    """Run one node on arrays with ONNX's reference implementation (`None`: an absent input).

    Raises InputRefused where the reference has no implementation for these inputs.
    """
    names = ["" if array is None else f"i{index}" for index, array in enumerate(inputs)]
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain, input=names)
    proto.output.extend(f"o{index}" for index in range(len(node.outputs)))
    proto.attribute.extend(ir.to_proto(attribute) for attribute in node.attributes.values())
    feed = {name: array for name, array in zip(names, inputs, strict=True) if array is not None}
    try:
        session = onnx.reference.ReferenceEvaluator(proto, opsets={"": opset})
        return [np.asarray(array) for array in session.run(None, feed)]
    except Exception as error:  # each operator raises its own kinds
        raise InputRefused(_last_line(error), where=node.name) from error


def takes_half(
    node: ir.Node, dtype: ir.DataType = ir.DataType.FLOAT16
) -> tuple[list[bool], list[bool]] | None:
    """Per input and per output: may it be half (`dtype`) by the operator's definition?

    None for an operator that ONNX does not define.
    """
    opset = node.graph.opset_imports.get(node.domain, 0) if node.graph is not None else 0
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    except onnx.defs.SchemaError:
        return None

    wanted = f"tensor({dtype.name.lower()})"

    def side(parameters: Sequence[onnx.defs.OpSchema.FormalParameter], count: int) -> list[bool]:
        last = len(parameters) - 1  # a variadic parameter stands for all that follow
        return [wanted in parameters[min(index, last)].types for index in range(count)]

    return side(schema.inputs, len(node.inputs)), side(schema.outputs, len(node.outputs))


def _convert(model: ir.Model, target: int) -> ir.Model:
    source = model.opset_imports.get("", 0)
    light, heavy = _with_light_weights(model)
    try:
        converted = ir.from_proto(onnx.version_converter.convert_version(light, target))
    except (RuntimeError, ValueError, onnx.version_converter.ConvertError) as error:
        raise InputRefused(
            f"opset {source} cannot be converted to {target}: {_last_line(error)}",
            hint=f"export the model again at opset {target} or later",
        ) from error
    for value in [value for value in converted.graph.inputs if value.name in heavy]:
        converted.graph.inputs.remove(value)
        value.const_value = heavy[str(value.name)].const_value
        converted.graph.register_initializer(value)
    known = ir.convenience.create_value_mapping(model.graph)
    for name, value in ir.convenience.create_value_mapping(converted.graph).items():
        if name in known:  # the converter forgets the axis names that exporters knew
            value.type, value.shape = known[name].type, known[name].shape
    return converted


def _with_light_weights(model: ir.Model) -> tuple[onnx.ModelProto, dict[str, ir.Value]]:
    """The model in which large initializers are mere inputs, and these by name."""
    for graph in model.graphs():  # subgraphs keep theirs, and the library would seek the file
        for value in graph.initializers.values() if graph is not model.graph else ():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = ir.Tensor(value.const_value.numpy().copy(), name=value.name)
    proto = onnx.ModelProto(ir_version=model.ir_version)
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    proto.functions.extend(
        serde.serialize_function(function) for function in model.functions.values()
    )
    main, heavy = proto.graph, {}
    main.name = model.graph.name or "graph"
    main.input.extend(serde.serialize_value(value) for value in model.graph.inputs)
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None:
            continue
        if tensor.nbytes > _SMALL_BYTES or isinstance(tensor, Computed):
            heavy[name] = value
            if not value.is_graph_input():
                shape = ir.Shape(tensor.shape.numpy())
                whole = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape)
                main.input.append(serde.serialize_value(whole))
            continue
        held = ir.Tensor(tensor.numpy(), tensor.dtype, name=name)
        main.initializer.append(serde.serialize_tensor(held))
    for node in model.graph:
        main.node.append(serde.serialize_node(node))
        known = (v for v in node.outputs if v.type is not None and not v.is_graph_output())
        main.value_info.extend(serde.serialize_value(value) for value in known)
    main.output.extend(serde.serialize_value(value) for value in model.graph.outputs)
    return proto, heavy


def _inferred(light: onnx.ModelProto, strict: bool) -> onnx.ModelProto:
    """The model with the shapes of its values, those too that follow from known numbers.

    onnx 1.23 takes the numbers of a matrix for those of a vector and finds that two do not fit
    each other where they do. So strict inference without numbers decides whether a graph is valid.
    """
    infer = onnx.shape_inference.infer_shapes
    with suppress(*_INFERENCE_ERRORS):
        return infer(light, check_type=strict, strict_mode=strict, data_prop=True)
    try:
        infer(light, check_type=strict, strict_mode=strict)
        return infer(light, data_prop=True)
    except _INFERENCE_ERRORS as error:
        raise InputRefused(f"shapes do not fit: {_last_line(error)}") from error


def _take_shapes(graph: ir.Graph, inferred: onnx.GraphProto) -> None:
    """Dtype and shape of the same graph's values, and of its subgraphs'."""
    infos = {info.name: info.type for info in (*inferred.value_info, *inferred.output)}
    for node, theirs in zip(graph, inferred.node, strict=True):
        for value in node.outputs:
            declared = infos.get(value.name or "")
            if declared is not None:
                value.type = serde.deserialize_type_proto_for_type(declared) or value.type
                shape = serde.deserialize_type_proto_for_shape(declared)
                value.shape = shape if shape is not None else value.shape  # [] is false
        inner = {attribute.name: attribute for attribute in theirs.attribute}
        for name, attribute in node.attributes.items():
            if attribute.type == ir.AttributeType.GRAPH:
                _take_shapes(attribute.as_graph(), inner[name].g)


def _forget_guesses(model: ir.Model) -> None:
    """Axis names that an earlier inference made up would hide what is known by now."""
    for graph in model.graphs():
        for value in ir.convenience.create_value_mapping(graph, include_subgraphs=False).values():
            dims = list(value.shape or ())
            if any(_is_guess(dim) for dim in dims):
                value.shape = ir.Shape(None if _is_guess(dim) else dim for dim in dims)


def _is_guess(dim: int | ir.SymbolicDim) -> bool:
    return isinstance(dim, ir.SymbolicDim) and (dim.value or "").startswith("unk__")


def _nbytes(value: ir.Value) -> int:
    return 0 if value.const_value is None else value.const_value.nbytes


def _strip(model: ir.Model) -> None:
    model.producer_name = model.producer_version = model.domain = model.doc_string = None
    model.model_version = None
    for key in [*model.metadata_props]:
        if key.startswith(_OWN) and not key.startswith(_STAMP):
            continue
        del model.metadata_props[key]
    for graph in model.graphs():
        graph.doc_string = None
        graph.metadata_props.clear()
        values = [*graph.inputs, *graph.initializers.values()]
        for node in graph:
            node.doc_string = None
            node.metadata_props.clear()
            values.extend(node.outputs)
        for value in values:
            value.doc_string = None
            value.metadata_props.clear()
    model.graph.name = "graph"


def _parse(path: Path) -> onnx.ModelProto:
    if not path.is_file():
        raise InputRefused("no such file", where=str(path))
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise InputRefused("not an ONNX file (protobuf does not parse)", where=str(path)) from error
    if not proto.HasField("graph"):
        raise InputRefused("not an ONNX model: it holds no graph", where=str(path))
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
    return {"location": "", **{entry.key: entry.value for entry in tensor.external_data}}


def _locations(proto: onnx.ModelProto) -> list[str]:
    return sorted({_external_info(tensor)["location"] for tensor in _external_tensors(proto)})


def _hollow(path: Path, folder: Path) -> Path:
    """The model in another folder, its data files there as holes of the same size."""
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


def _stored(tensor: ir.ExternalTensor, path: Path) -> Stored:
    place = path.parent / tensor.location
    if (tensor.offset or 0) + tensor.nbytes > place.stat().st_size:
        raise UnsafeFile(
            f"external data {str(tensor.location)!r} is too short",
            where=f"{path}: tensor {tensor.name!r}",
        )
    return Stored(
        tensor.location, tensor.offset, tensor.nbytes, tensor.dtype, shape=tensor.shape,
        name=tensor.name, base_dir=path.parent,
    )  # fmt: skip


def _check_external(tensor: onnx.TensorProto, path: Path) -> None:
    info = _external_info(tensor)
    where = f"{path}: tensor {tensor.name!r}"
    location = PurePosixPath(info["location"])
    if location.is_absolute() or ".." in location.parts or "\\" in info["location"]:
        raise UnsafeFile(f"external data {info['location']!r} leaves the folder", where=where)
    data = path.parent / location
    if not info["location"] or data.is_symlink() or not data.is_file():
        raise UnsafeFile(f"external data {info['location']!r} is not a file here", where=where)
    facts = data.stat()
    if facts.st_nlink > 1 and stat.S_IMODE(facts.st_mode) & 0o222:  # the store's own are read-only
        raise UnsafeFile(f"external data {info['location']!r} is a hard link", where=where)
    end = int(info.get("offset", 0)) + int(info.get("length", 0))
    if end > facts.st_size:
        raise UnsafeFile(f"external data {info['location']!r} is too short", where=where)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__

"""The onnx library's knowledge of operators: shape inference, conversion to a newer opset, the
evaluation of one node, and the types that an operator takes.

The library never gets the weights: it gets a copy of the graph in which large initializers are
declared as inputs, so the size of a model does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import onnx
import onnx.defs
import onnx.helper
import onnx.reference
import onnx.shape_inference
import onnx.version_converter
import onnx_ir as ir
from onnx_ir import serde
from onnx_ir.passes.common import InlinePass, LiftConstantsToInitializersPass

from optkit.facts.errors import InputRefused
from optkit.ground.graph import growth, opsets
from optkit.ground.graph.nodes import ensure_names
from optkit.ground.graph.serde import last_line
from optkit.ground.graph.weights import ComputedTensor

_MINIMUM_IR_VERSION = 10  # the first IR version that may contain opset 21
_OLDER_IR_VERSION = 9  # of opsets 19 and 20
_NEWEST = 1000  # far beyond the newest opset; the runtime says which one it does not know
# operator → the opset from which on the same inputs and attributes mean something else
_REDEFINED = {"GroupNormalization": 21, "DFT": 20}
_INFERENCE_ERRORS = (RuntimeError, ValueError, onnx.shape_inference.InferenceError)
# onnx 1.23 infers nothing for these; the result has dtype and shape of the first input
_UNINFERRED = frozenset({"GroupNormalization", "MeanVarianceNormalization"})


def infer_shapes(model: ir.Model, *, strict: bool = True) -> ir.Model:
    """Set dtype and shape of every value for which they can be inferred. In place; returns the
    model.

    Raises InputRefused with the name of the node if the inputs of an operator do not fit it
    (`strict`).
    """
    opsets.forget_dims(model, _is_guess)  # old shapes would hide the shapes that are known now
    light, _ = _without_weights(model)
    for node in light.graph.node:
        if node.domain in ("", "ai.onnx") and node.op_type in _UNINFERRED:
            node.CopyFrom(onnx.helper.make_node("Identity", node.input[:1], node.output))
    _take_shapes(model.graph, _inferred(light, strict).graph)
    return model


def upgrade(model: ir.Model, minimum: int = 21) -> ir.Model:
    """Convert a model to the form that all stages start from: plain ONNX at opset ≥ `minimum`,
    without model-local functions, with a name for every node, and with constants as initializers
    that are not inputs (older files list them as inputs with defaults, which hides
    that weights are constant). The given model may be changed.

    Raises InputRefused if the graph cannot be converted.
    """
    for value in [value for value in model.graph.inputs if value.is_initializer()]:
        model.graph.inputs.remove(value)
    opsets.forget_dims(model, opsets.is_placeholder)
    # before the conversion: up to IR version 3 the library requires constants to be inputs
    model.ir_version = max(model.ir_version, _MINIMUM_IR_VERSION)
    InlinePass()(model)
    # only operators of other domains: any version
    version = model.opset_imports.setdefault("", minimum)
    opsets.prepare(model)
    if version < minimum:
        model = _convert(model, minimum)
        opsets.complete(model, version)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    ensure_names(model)
    check_growth(model)
    return infer_shapes(model)


def check_growth(model: ir.Model) -> None:
    """Raise InputRefused with the node if the values that inference and runtimes compute while they
    read the graph are much larger than what the model stores, or if a node has too few inputs."""
    if model.functions:
        model = model.clone()
        InlinePass()(model)
    version = model.opset_imports.get("", 1)
    _check_inputs(model, version)
    light, large = _without_weights(model)
    growth.check(light, large, lambda node, inputs: _reference(node, inputs, version))


def _check_inputs(model: ir.Model, opset: int) -> None:
    """The inference of the library ignores a MatMul with one input, and every node of an opset that
    does not exist."""
    if not 1 <= opset <= _NEWEST:
        raise InputRefused(f"there is no opset {opset}", hint="export the model again")
    for node in model.graph.all_nodes():
        if node.domain not in ("", "ai.onnx"):
            continue
        with suppress(onnx.defs.SchemaError, TypeError):  # the inference reports another operator
            least = onnx.defs.get_schema(node.op_type, opset).min_input
            if len(node.inputs) < least:
                raise InputRefused(
                    f"it has {len(node.inputs)} inputs and needs {least}",
                    where=f"node {node.name!r} ({node.op_type})",
                    hint="export the model again",
                )


def lower(model: ir.Model, opset: int) -> None:
    """Write a graph in this opset, if it is older than its own, in place. From 19 on, newer opsets
    mostly add dtypes and operators, so most graphs need only another number.

    Raises InputRefused with the node and the opset that it needs.
    """
    current = model.opset_imports.get("", 0)
    if opset >= current:
        return
    opsets.older_forms(model, opset)
    for node in model.graph.all_nodes():
        if node.domain != "":
            continue
        if (why := _why_newer(node, opset, current)) is not None:
            needed = next(
                (o for o in range(opset + 1, current) if not _why_newer(node, o, current)), current
            )
            raise InputRefused(
                f"{why}, which opset {opset} does not have",
                where=f"node {node.name!r} ({node.op_type})",
                hint=f"set model.opset to {needed} or newer, or leave it out",
            )
    model.opset_imports[""] = opset
    if opset < 21:
        model.ir_version = _OLDER_IR_VERSION
    infer_shapes(model)


def _why_newer(node: ir.Node, opset: int, current: int) -> str | None:
    """What of a node an older opset does not have. Attributes that the older one does not have, and
    that have their default values, are removed."""
    op, new = node.op_type, onnx.defs.get_schema(node.op_type, current)
    try:
        old = onnx.defs.get_schema(op, opset)
    except onnx.defs.SchemaError:
        return f"it is {op}"
    if old.since_version == new.since_version:
        return None
    if opset < _REDEFINED.get(op, 0):
        return f"it is {op} of opset {_REDEFINED[op]}"
    for name, attribute in list(node.attributes.items()):
        if name in old.attributes:
            continue
        default = new.attributes[name].default_value
        if onnx.helper.get_attribute_value(default) != attribute.value:
            return f"it has the attribute {name}"
        del node.attributes[name]
    if len(node.inputs) > old.max_input or len(node.outputs) > old.max_output:
        return "it has more inputs or outputs"
    sides = ((old.inputs, node.inputs), (old.outputs, node.outputs))
    for parameters, values in sides:
        for index, value in enumerate(values):
            if value is None or value.dtype is None or not isinstance(value.type, ir.TensorType):
                continue
            kind = f"tensor({value.dtype.name.lower()})"
            if kind not in parameters[min(index, len(parameters) - 1)].types:
                return f"it reads or writes {value.dtype.name}"
    return None


def evaluate(node: ir.Node, inputs: Sequence[np.ndarray | None], opset: int) -> list[np.ndarray]:
    """Run one node on arrays with ONNX's reference implementation (`None`: a missing input).

    Raises InputRefused if the reference has no implementation for these inputs.
    """
    names = ["" if array is None else f"i{index}" for index, array in enumerate(inputs)]
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain, input=names, name=node.name)
    proto.output.extend(f"o{index}" for index in range(len(node.outputs)))
    proto.attribute.extend(ir.to_proto(attribute) for attribute in node.attributes.values())
    return _reference(proto, inputs, opset)


def _reference(
    node: onnx.NodeProto, inputs: Sequence[np.ndarray | None], opset: int
) -> list[np.ndarray]:
    given = zip(node.input, inputs, strict=True)
    feed = {name: array for name, array in given if array is not None}
    try:
        session = onnx.reference.ReferenceEvaluator(node, opsets={"": opset})
        return [np.asarray(array) for array in session.run(None, feed)]
    except Exception as error:  # each operator raises other exceptions
        raise InputRefused(last_line(error), where=node.name) from error


def takes_half(
    node: ir.Node, dtype: ir.DataType = ir.DataType.FLOAT16
) -> tuple[list[bool], list[bool]] | None:
    """For each input and each output: whether the definition of the operator allows half precision
    (`dtype`).

    None for an operator that ONNX does not define.
    """
    opset = node.graph.opset_imports.get(node.domain, 0) if node.graph is not None else 0
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    except onnx.defs.SchemaError:
        return None

    wanted = f"tensor({dtype.name.lower()})"

    def side(parameters: Sequence[onnx.defs.OpSchema.FormalParameter], count: int) -> list[bool]:
        last = len(parameters) - 1  # a variadic parameter describes all inputs after it
        return [wanted in parameters[min(index, last)].types for index in range(count)]

    return side(schema.inputs, len(node.inputs)), side(schema.outputs, len(node.outputs))


def _convert(model: ir.Model, target: int) -> ir.Model:
    source = model.opset_imports.get("", 0)
    light, large = _without_weights(model)
    try:
        converted = ir.from_proto(onnx.version_converter.convert_version(light, target))
    except (*_INFERENCE_ERRORS, onnx.version_converter.ConvertError) as error:
        raise InputRefused(
            f"opset {source} cannot be converted to {target}: {last_line(error)}",
            hint=f"export the model again at opset {target} or later",
        ) from error
    for value in [value for value in converted.graph.inputs if value.name in large]:
        converted.graph.inputs.remove(value)
        value.const_value = large[str(value.name)].const_value
        converted.graph.register_initializer(value)
    known = ir.convenience.create_value_mapping(model.graph)
    for name, value in ir.convenience.create_value_mapping(converted.graph).items():
        if name in known:  # the converter loses the names of axes
            value.type, value.shape = known[name].type, known[name].shape
    return converted


def _without_weights(model: ir.Model) -> tuple[onnx.ModelProto, dict[str, ir.Value]]:
    """The model with its large initializers as inputs, and these initializers by name."""
    _load_constants_of_subgraphs(model)
    proto = onnx.ModelProto(ir_version=model.ir_version)
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    proto.functions.extend(map(serde.serialize_function, model.functions.values()))
    main, large = proto.graph, {}
    main.name = model.graph.name or "graph"
    main.input.extend(map(serde.serialize_value, model.graph.inputs))
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None:
            continue
        if tensor.dtype == ir.DataType.STRING:
            main.initializer.append(serde.serialize_tensor(tensor))
            continue
        if tensor.nbytes <= growth.SMALL_BYTES and not isinstance(tensor, ComputedTensor):
            small = ir.Tensor(tensor.numpy(), tensor.dtype, name=name)
            main.initializer.append(serde.serialize_tensor(small))
            continue
        large[name] = value
        if not value.is_graph_input():
            shape = ir.Shape(tensor.shape.numpy())
            declared = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape)
            main.input.append(serde.serialize_value(declared))
    for node in model.graph:
        main.node.append(serde.serialize_node(node))
        known = (v for v in node.outputs if v.type is not None and not v.is_graph_output())
        main.value_info.extend(map(serde.serialize_value, known))
    main.output.extend(map(serde.serialize_value, model.graph.outputs))
    return proto, large


def _load_constants_of_subgraphs(model: ir.Model) -> None:
    """Subgraphs keep their constants, and the library would search for the data file."""
    for graph in model.graphs():
        for value in graph.initializers.values() if graph is not model.graph else ():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = ir.Tensor(value.const_value.numpy().copy(), name=value.name)


def _inferred(light: onnx.ModelProto, strict: bool) -> onnx.ModelProto:
    """The model with the shapes of its values, including those that follow from known numbers.

    onnx 1.23 mistakes the numbers of a matrix for those of a vector, and then reports that two
    shapes do not fit although they do. So strict inference without numbers decides whether a graph
    is valid. The shapes that a file declares inside loops and branches may contradict their nodes
    (Paddle's converter writes such files, which ONNX Runtime runs): then they are forgotten.
    """
    infer = onnx.shape_inference.infer_shapes
    with suppress(*_INFERENCE_ERRORS):
        return infer(light, check_type=strict, strict_mode=strict, data_prop=True)
    for node in light.graph.node:
        _forget_inner_shapes(node)
    try:
        infer(light, check_type=strict, strict_mode=strict)
        return infer(light, data_prop=True)
    except _INFERENCE_ERRORS as error:
        raise InputRefused(f"shapes do not fit: {last_line(error)}") from error


def _forget_inner_shapes(node: onnx.NodeProto) -> None:
    for inner in (attribute.g for attribute in node.attribute if attribute.HasField("g")):
        del inner.value_info[:]
        for output in inner.output:
            if output.type.HasField("tensor_type"):
                output.type.tensor_type.ClearField("shape")
        for each in inner.node:
            _forget_inner_shapes(each)


def _take_shapes(graph: ir.Graph, inferred: onnx.GraphProto) -> None:
    """Copy dtypes and shapes from the values of the same graph, including its subgraphs."""
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


def _is_guess(dim: int | ir.SymbolicDim) -> bool:
    """Whether an earlier inference invented the name of the axis."""
    return isinstance(dim, ir.SymbolicDim) and (dim.value or "").startswith("unk__")

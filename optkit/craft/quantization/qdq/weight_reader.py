"""The operators that hold weights in a graph that `qdq_writer`, `coding` or `embeddings` has
quantized, and the numbers in them.

MatMul, Gemm          a matrix of floats, or DequantizeLinear of codes before the product
MatMulNBits           codes of 2, 4 or 8 bits in blocks (com.microsoft)
MatMulBnb4            NF4 in blocks
MatMulIntegerToFloat  codes of 8 bits, a scale per column
Gather                the embedding: floats, or codes and scales by row
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.numerics.format_codes import NF4
from optkit.craft.quantization.placement import weighted_nodes
from optkit.craft.quantization.qdq import nbits
from optkit.craft.quantization.qdq.codes import Codes, FloatCodes
from optkit.facts.errors import UsageError
from optkit.ground import graph

PRODUCTS = ("MatMul", "Gemm", "MatMulNBits", "MatMulBnb4", "MatMulIntegerToFloat")

_BIAS = {"Gemm": 2, "MatMulNBits": 5, "MatMulIntegerToFloat": 6}
_B, _B_SCALE, _B_ZERO_POINT = 1, 3, 5  # of MatMulIntegerToFloat
_FLOAT_CODES = (ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT4E2M1)
_INTEGERS = (ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT8, ir.DataType.UINT8)


def inputs_of(node: ir.Node) -> list[ir.Value | None]:
    """The inputs of a product that are its weight, scales, zero points and bias."""
    if node.op_type == "MatMulIntegerToFloat":
        places = (_B, _B_SCALE, _B_ZERO_POINT, _BIAS[node.op_type])
        return [_input(node, at) for at in places]
    return list(node.inputs[1:])


def outputs_of(node: ir.Node, count: int) -> list[ir.Value]:
    """The results of a product that replaces `count` products. Raises UsageError if they are not
    the parts of a Split."""
    if count == 1:
        return list(node.outputs)
    readers = [use.node for use in node.outputs[0].uses()]
    if len(readers) != 1 or readers[0].op_type != "Split" or len(readers[0].outputs) != count:
        raise UsageError("its result is not split into its parts", where=f"node {node.name!r}")
    return list(readers[0].outputs)


def constants_of(values: Iterable[ir.Value | None]) -> set[ir.Value]:
    """The constants from which these values are computed."""
    found: set[ir.Value] = set()
    open_values = [value for value in values if value is not None]
    while open_values:
        value = open_values.pop()
        producer = value.producer()
        if graph.is_constant(value):
            found.add(value)
        elif producer is not None:
            open_values += [each for each in producer.inputs if each is not None]
    return found


def vector(value: ir.Value | None) -> np.ndarray:
    """A constant with one long axis: float32 [N]."""
    numbers: np.ndarray = _array(value).reshape(-1).astype(np.float32)
    return numbers


def scalar(value: ir.Value | None) -> np.ndarray:
    """A constant that is one number: rank 0, in its dtype. Raises UsageError for several numbers,
    or a value that is not constant."""
    numbers = _array(value)
    if numbers.size != 1:
        raise UsageError("it has several scales", where=f"tensor {value and value.name!r}")
    return numbers.reshape(())


def bias_of(node: ir.Node) -> np.ndarray | None:
    """The bias that a product adds itself: float32 [N]."""
    value = _input(node, _BIAS[node.op_type]) if node.op_type in _BIAS else None
    return None if value is None else vector(value)


def matrix(node: ir.Node) -> Codes | FloatCodes | np.ndarray:
    """The weight of a product, turned to [N, K]. Raises UsageError for a form that is not known."""
    if node.op_type == "MatMulNBits":
        return _nbits(node)
    if node.op_type == "MatMulBnb4":
        return _bnb4(node)
    if node.op_type == "MatMulIntegerToFloat":
        scales = _array(_input(node, _B_SCALE)).reshape(-1, 1)
        zero = _input(node, _B_ZERO_POINT)
        return _by_row(_array(_input(node, _B)).T, scales, None if zero is None else _array(zero))
    turned = node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1
    if node.op_type == "Gemm" and node.attributes.get_float("alpha", 1.0) != 1.0:
        raise _unknown(node)
    return _stored(_input(node, 1), turned, node)


def grid_numbers(node: ir.Node) -> np.ndarray:
    """The codes of a weight that optkit has quantized, as the numbers that its scales multiply:
    float32 [channels, ...]."""
    if node.op_type == "MatMulNBits":
        return _nbits(node).centred().astype(np.float32)
    value = node.inputs[1]
    dequantized = None if value is None else value.producer()
    codes = None if dequantized is None else graph.array(dequantized.inputs[0])
    assert codes is not None
    numbers = codes.astype(np.float32)
    if node.op_type != "Conv" and weighted_nodes.channel_axis(node) == 1:
        numbers = np.ascontiguousarray(numbers.T)
    return numbers


def embedding_parts(
    tables: Sequence[ir.Value | None], node: ir.Node
) -> tuple[ir.Value, ir.Value | None]:
    """Of the tables that the embedding gathers rows from: the numbers or codes, and the scales."""
    codes = [value for value in tables if value is not None and _type(value) in _INTEGERS]
    floats = [value for value in tables if value is not None and _type(value) not in _INTEGERS]
    if len(codes) == 1 and len(floats) == 1:
        return codes[0], floats[0]
    if not codes and len(floats) == 1:
        return floats[0], None
    raise _unknown(node)


def table(codes: ir.Value, scales: ir.Value | None) -> Codes | FloatCodes | np.ndarray:
    """The embedding [N, K]."""
    if scales is None:
        return _stored(codes, True, None)
    return _by_row(_array(codes), _array(scales).reshape(-1, 1), None)


def _stored(
    value: ir.Value | None, turned: bool, node: ir.Node | None
) -> Codes | FloatCodes | np.ndarray:
    """A matrix that is stored as [N, K] (`turned`) or as [K, N]."""
    if value is not None and graph.is_constant(value):
        array = _array(value)
        return array if turned else array.T
    producer = None if value is None else value.producer()
    op = None if producer is None else producer.op_type
    if producer is None or op not in ("Transpose", "Cast", "Identity", "DequantizeLinear"):
        raise _unknown(node)
    if op == "DequantizeLinear":
        return _dequantized(producer, turned)
    inner = _stored(producer.inputs[0], turned is not (op == "Transpose"), node)
    if op != "Cast" or not isinstance(inner, np.ndarray):
        return inner
    to = ir.DataType(producer.attributes["to"].as_int()).numpy()
    return inner.astype(to).astype(np.float32)  # float32 also says: it was no tensor of this dtype


def _dequantized(node: ir.Node, turned: bool) -> Codes | FloatCodes | np.ndarray:
    codes, stored = node.inputs[0], _array(node.inputs[0])
    axis = node.attributes.get_int("axis", 1) % stored.ndim
    block = node.attributes.get_int("block_size", 0)
    matrices = [stored, *_parameters(node, stored.ndim, axis, block)]
    oriented = [each if turned else each.T for each in matrices]
    scales = oriented[1]
    rows = 0 if turned else 1
    of_rows = scales.size == 1 or (axis != rows if block else axis == rows)
    if _type(codes) in _FLOAT_CODES and of_rows:
        return _float_codes(node, oriented, block, turned)
    if _type(codes) not in _INTEGERS or not of_rows:
        return _multiplied(oriented, block, axis == rows)
    zeros = oriented[2] if len(oriented) > 2 else np.zeros_like(scales, dtype=np.int8)
    count = stored.shape[rows]
    columns = stored.size // count
    return Codes(
        _bytes(oriented[0]),
        np.broadcast_to(scales, (count, scales.shape[1])),
        np.broadcast_to(_bytes(zeros), (count, scales.shape[1])),
        block or columns,
        _bits(codes),
    )


def _float_codes(
    node: ir.Node, oriented: list[np.ndarray], block: int, turned: bool
) -> FloatCodes | np.ndarray:
    """Codes in E4M3 or E2M1, oriented as [N, K]; their zero points are zero."""
    codes, scales = oriented[:2]
    if len(oriented) > 2 and oriented[2].astype(np.float32).any():
        return _multiplied(oriented, block, by_rows=False)
    inner, outer = _levels(node.inputs[1])
    if inner is not None:
        scales = inner if turned else inner.T
    rows, columns = codes.shape
    count = scales.shape[1]
    return FloatCodes(codes, np.broadcast_to(scales, (rows, count)), outer, block or columns)


def _levels(value: ir.Value | None) -> tuple[np.ndarray | None, np.float32]:
    """The codes of scales that are codes themselves, and their scale; None and 1 for others."""
    producer = None if value is None or graph.is_constant(value) else value.producer()
    if producer is None:
        return None, np.float32(1)
    codes, scale = (_array(each) for each in producer.inputs[:2])
    return codes, np.float32(scale)


def _parameters(node: ir.Node, rank: int, axis: int, block: int) -> list[np.ndarray]:
    """The scales of a DequantizeLinear, and its zero points if it has any, each of `rank`."""
    parameters, zero = [_numbers(node.inputs[1])], _input(node, 2)
    if zero is not None:
        parameters.append(_array(zero))
    if parameters[0].ndim == 0:
        return [each.reshape(1, 1) for each in parameters]
    if block:
        return parameters
    along = [-1 if at == axis else 1 for at in range(rank)]
    return [each.reshape(along) for each in parameters]


def _multiplied(parts: list[np.ndarray], block: int, by_rows: bool) -> np.ndarray:
    """The float32 numbers of codes that are floats, or whose scales are by column."""
    codes, scales = (part.astype(np.float32) for part in parts[:2])
    zeros = parts[2].astype(np.float32) if len(parts) > 2 else np.zeros_like(scales)
    if block:
        axis = 0 if by_rows else 1
        end = codes.shape[axis]
        scales = np.repeat(scales, block, axis).take(range(end), axis)
        zeros = np.repeat(zeros, block, axis).take(range(end), axis)
    numbers: np.ndarray = (codes - zeros) * scales
    return numbers


def _nbits(node: ir.Node) -> Codes:
    """Of a MatMulNBits."""
    packed, scales = _array(node.inputs[1]), _array(node.inputs[2])
    n, k, bits = (node.attributes[name].as_int() for name in ("N", "K", "bits"))
    block = node.attributes["block_size"].as_int()
    zero = _input(node, 3)
    codes = nbits.unpack(packed.reshape(n, -1), bits)[:, :k]
    scales = scales.reshape(n, -1)
    half = np.full(scales.shape, 1 << bits - 1, np.uint8)
    zeros = half if zero is None else nbits.unpack(_array(zero).reshape(n, -1), bits)
    return Codes(codes, scales, zeros[:, : scales.shape[1]], block, bits)


def _bnb4(node: ir.Node) -> np.ndarray:
    """Of a MatMulBnb4, whose blocks do not end with a row."""
    packed, scales = (_array(value).reshape(-1) for value in node.inputs[1:3])
    n, k, block = (node.attributes[name].as_int() for name in ("N", "K", "block_size"))
    if node.attributes["quant_type"].as_int() != 1:
        raise _unknown(node)
    codes = nbits.unpack_bnb4(packed, n * k)
    numbers: np.ndarray = NF4[codes] * np.repeat(scales.astype(np.float32), block)[: n * k]
    return numbers.reshape(n, k)


def _by_row(codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None) -> Codes:
    """Codes [N, K] with a scale per row: [N, 1]."""
    zeros = np.zeros(1, codes.dtype) if zeros is None else zeros
    shape = (len(codes), 1)
    return Codes(
        codes,
        np.broadcast_to(scales, shape),
        np.broadcast_to(zeros.reshape(-1, 1), shape),
        codes.shape[1],
        8,
    )


def _numbers(value: ir.Value | None) -> np.ndarray:
    """Scales, which may be codes with a scale themselves (NVFP4)."""
    if value is not None and not graph.is_constant(value):
        producer = value.producer()
        if producer is not None and producer.op_type == "DequantizeLinear":
            codes, scale = (_array(each) for each in producer.inputs[:2])
            if scale.ndim == 0:
                scaled: np.ndarray = codes.astype(np.float32) * scale
                return scaled
        raise _unknown(producer)
    return _array(value)


def _array(value: ir.Value | None) -> np.ndarray:
    array = graph.array(value)
    if array is None:
        raise UsageError("a weight, a scale or a zero point is not constant")
    return array


def _bytes(codes: np.ndarray) -> np.ndarray:
    """Codes in a numpy dtype of a byte."""
    unsigned = str(codes.dtype).startswith("u")
    return codes.astype(np.uint8 if unsigned else np.int8)


def _bits(value: ir.Value | None) -> int:
    return 4 if _type(value) in _INTEGERS[:2] else 8


def _type(value: ir.Value | None) -> ir.DataType | None:
    return None if value is None or value.const_value is None else value.const_value.dtype


def _input(node: ir.Node, at: int) -> ir.Value | None:
    return node.inputs[at] if at < len(node.inputs) else None


def _unknown(node: ir.Node | None) -> UsageError:
    op, name = ("a value", "") if node is None else (node.op_type, node.name or "")
    return UsageError(f"the form of its weight is not known ({op})", where=f"node {name!r}")

"""The rewrites that TensorRT needs of a quantized graph, in the order in which they run.

TensorRT takes Q/DQ pairs with signed codes, zero points of 0 and scalar activation scales (a scale
of shape [1] is accepted, and no convolution then runs in INT8). Each repair says whether it keeps
the numbers. A repair changes the graph in place and returns what it changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from optkit.craft.foreign import operators
from optkit.craft.foreign.float_graph import never_negative, relu
from optkit.craft.foreign.qdq_parameters import (
    DEQUANTIZE,
    QUANTIZE,
    QuantizationParameters,
    codes_of,
    producer,
    set_codes,
)
from optkit.facts.documents.given_graph import GraphRepair
from optkit.ground import graph

_SMALL = (
    ir.DataType.INT8,
    ir.DataType.UINT8,
    ir.DataType.INT4,
    ir.DataType.FLOAT8E4M3FN,
    ir.DataType.FLOAT4E2M1,
)
_LAYOUT = ("Transpose", "Reshape", "Identity", "Cast")
_HIGH = 127
_OFFSET = 128


@dataclass(frozen=True)
class Repair:
    """One rewrite. `exact`: it changes no number beyond float rounding."""

    name: str
    text: str
    exact: bool
    run: Callable[[ir.Model], list[str]]


def repair(model: ir.Model, repairs: Sequence[Repair] = ()) -> tuple[GraphRepair, ...]:
    """Run repairs in place, by default all; those that changed something."""
    done = []
    for one in repairs or REPAIRS:
        nodes = one.run(model)
        if nodes:
            done.append(GraphRepair(one.text, one.exact, tuple(nodes), one.name))
    return tuple(done)


def fold_constants(model: ir.Model) -> list[str]:
    """Weights stored as floats before a QuantizeLinear become codes."""
    names = graph.FreeNames(model)
    done = []
    for node in list(model.graph):
        numbers = graph.array(node.inputs[0]) if node.op_type == QUANTIZE else None
        codes = codes_of(node) if numbers is not None else None
        if numbers is None or codes is None or codes.dtype.bitwidth > 8:
            continue
        _store(node, names, _round(numbers, codes))
        done.append(str(node.name))
    return done


def floats_for_biases(model: ir.Model) -> list[str]:
    """Constants that no product reads as its weight (biases), and all constants of more than 8
    bits, become floats. The numbers stay the same."""
    names = graph.FreeNames(model)
    done = []
    for node in list(model.graph):
        stored = graph.array(node.inputs[0]) if node.op_type == DEQUANTIZE else None
        codes = codes_of(node) if stored is not None else None
        if stored is None or codes is None:
            continue
        if codes.dtype in _SMALL and _is_weight(node):
            continue
        result = node.outputs[0]
        kind = (result.dtype or ir.DataType.FLOAT).numpy()
        _store(node, names, codes.numbers(stored).astype(kind))
        done.append(str(node.name))
    return done


def floats_for_float_codes(model: ir.Model) -> None:
    """Constants of floating-point codes (FP8) become floats with the same numbers. For simulations:
    ONNX Runtime has no product of such codes."""
    names = graph.FreeNames(model)
    for node, codes, stored in list(_weights(model)):
        if not codes.integer:
            kind = (node.outputs[0].dtype or ir.DataType.FLOAT).numpy()
            _store(node, names, codes.numbers(stored).astype(kind))


def clips_out(model: ir.Model) -> list[str]:
    """Clips of codes go: those of a constant are computed; those of an activation if they leave out
    at most the lowest code. (Brevitas clips to a symmetric range.)"""
    names = graph.FreeNames(model)
    done = []
    for node in list(model.graph):
        value = node.inputs[0] if node.op_type == "Clip" else None
        if value is None or value.dtype not in _SMALL:
            continue
        ends = [
            int(end.item()) for one in node.inputs[1:3] if (end := graph.array(one)) is not None
        ]
        if len(ends) < 2:
            continue
        low, high = ends
        if (stored := graph.array(value)) is not None:
            _store(node, names, np.clip(stored, low, high))
        elif producer(value, QUANTIZE) is not None and _is_whole(value.dtype, low, high):
            inputs = [one for one in node.inputs if one is not None]
            node.outputs[0].replace_all_uses_with(value)
            graph.owner(node).remove(node, safe=True)
            graph.remove_unread(model.graph, inputs)
        else:
            continue
        done.append(str(node.name))
    return done


def _is_whole(dtype: ir.DataType | None, low: int, high: int) -> bool:
    signed = dtype == ir.DataType.INT8
    return (low <= -_HIGH and high >= _HIGH) if signed else (low <= 0 and high >= 255)


def normal_form(model: ir.Model) -> None:
    """Q/DQ pairs instead of other forms, before the float graph is made of them."""
    repair(model, FORMS)


def wide_pairs_out(model: ir.Model) -> list[str]:
    """Activation pairs of 16 bits are removed: the values stay floats."""
    done = []
    for before, readers in _activations(model):
        codes = codes_of(before)
        if codes is None or not codes.integer or codes.dtype.bitwidth != 16:
            continue
        source, owner = before.inputs[0], before.graph
        assert source is not None and owner is not None
        if any(reader.outputs[0].is_graph_output() for reader in readers):
            continue
        for reader in readers:
            reader.outputs[0].replace_all_uses_with(source)
        done.append(str(before.name))
        for reader in readers:
            inputs = [value for value in reader.inputs if value is not None]
            owner.remove(reader, safe=True)
            graph.remove_unread(owner, inputs)
    return done


def scalar_scales(model: ir.Model) -> list[str]:
    """Scales of shape [1] become scalars."""
    names = graph.FreeNames(model)
    done = []
    for node in operators.pairs(model):
        scale, codes = graph.array(node.inputs[1]), codes_of(node)
        if scale is None or codes is None or scale.size != 1 or not scale.shape:
            continue
        if codes.block_size:
            continue
        zero = codes.zero_point.reshape(()).astype(codes.dtype.numpy())
        set_codes(node, names, codes.scale.reshape(()), zero)
        done.append(str(node.name))
    return done


def signed_weights(model: ir.Model) -> list[str]:
    """uint8 weights become int8: every code and the zero point minus 128. Exact."""
    names = graph.FreeNames(model)
    done = []
    for node, codes, stored in _weights(model):
        if codes.dtype != ir.DataType.UINT8:
            continue
        shifted = (stored.astype(np.int16) - _OFFSET).astype(np.int8)
        _write_codes(node, names, shifted, codes.scale, codes.zero_point - _OFFSET)
        done.append(str(node.name))
    return done


def symmetric_weights(model: ir.Model) -> list[str]:
    """int8 weights with other zero points than 0 are rounded again to symmetric codes."""
    names = graph.FreeNames(model)
    done = []
    for node, codes, stored in _weights(model):
        if codes.dtype != ir.DataType.INT8 or codes.symmetric or codes.block_size:
            continue
        numbers = codes.numbers(stored).astype(np.float64)
        others = tuple(a for a in range(numbers.ndim) if a != codes.axis % numbers.ndim)
        largest = np.abs(numbers).max(axis=others if codes.scale.size > 1 else None)
        scale = np.where(largest > 0, largest / _HIGH, codes.scale.reshape(largest.shape))
        again = QuantizationParameters(
            ir.DataType.INT8, scale, np.zeros(scale.shape, np.int64), codes.axis, 0
        )
        _write_codes(node, names, _round(numbers, again), scale, again.zero_point)
        done.append(str(node.name))
    return done


def signed_activations(model: ir.Model) -> list[str]:
    """uint8 activations become int8: the zero point minus 128. Exact."""
    return [*_rewritten(model, lambda codes: codes.dtype == ir.DataType.UINT8, _shifted)]


def symmetric_activations(model: ir.Model) -> list[str]:
    """int8 activations with other zero points than 0 get the symmetric range that contains theirs.
    A pair that cut at zero also was a Relu, which is written again."""
    names = graph.FreeNames(model)
    for before, _ in _activations(model):
        codes = codes_of(before)
        if (
            codes is not None
            and _is_asymmetric(codes)
            and codes.cuts_at_zero
            and not (never_negative(before.inputs[0]))
        ):
            before.replace_input_with(0, relu(before, names))
    return [*_rewritten(model, _is_asymmetric, _symmetric)]


def _is_asymmetric(codes: QuantizationParameters) -> bool:
    return codes.dtype == ir.DataType.INT8 and not codes.symmetric


def _shifted(codes: QuantizationParameters) -> tuple[np.ndarray, np.ndarray]:
    return codes.scale, codes.zero_point - _OFFSET


def _symmetric(codes: QuantizationParameters) -> tuple[np.ndarray, np.ndarray]:
    low, high = codes.range
    return np.maximum(np.abs(low), np.abs(high)) / _HIGH, np.zeros(codes.scale.shape, np.int64)


def _rewritten(
    model: ir.Model,
    concerns: Callable[[QuantizationParameters], bool],
    numbers: Callable[[QuantizationParameters], tuple[np.ndarray, np.ndarray]],
) -> Iterator[str]:
    """Give activation pairs int8 codes with other parameters; yields the names of their Q."""
    names = graph.FreeNames(model)
    for before, readers in list(_activations(model)):
        codes = codes_of(before)
        if codes is None or not concerns(codes):
            continue
        scale, zero = numbers(codes)
        for node in (before, *readers):
            set_codes(node, names, scale, zero.astype(np.int8))
        before.outputs[0].type = ir.TensorType(ir.DataType.INT8)
        yield str(before.name)


def _activations(model: ir.Model) -> Iterator[tuple[ir.Node, list[ir.Node]]]:
    """Each Q whose codes only DQs read, with them. Codes that the graph returns keep their
    dtype."""
    for node in list(model.graph):
        if node.op_type != QUANTIZE or graph.is_constant(node.inputs[0]):
            continue
        if node.outputs[0].is_graph_output():
            continue
        readers = list(node.outputs[0].consumers())
        if readers and all(reader.op_type == DEQUANTIZE for reader in readers):
            yield node, readers


def _weights(model: ir.Model) -> Iterator[tuple[ir.Node, QuantizationParameters, np.ndarray]]:
    """Each DQ of constant codes, with its parameters and codes."""
    for node in list(model.graph):
        stored = graph.array(node.inputs[0]) if node.op_type == DEQUANTIZE else None
        codes = codes_of(node) if stored is not None else None
        if stored is not None and codes is not None:
            yield node, codes, stored


def _is_weight(node: ir.Node) -> bool:
    """Whether a product reads the result as an operand, not as its bias."""
    for reader, index in node.outputs[0].uses():
        if reader.op_type in _LAYOUT:
            if _is_weight(reader):
                return True
        elif reader.op_type in graph.WEIGHTED:
            if index < 2:
                return True
        elif reader.op_type in ("Gather", QUANTIZE):
            return True
    return False


def _round(numbers: np.ndarray, codes: QuantizationParameters) -> np.ndarray:
    """The codes of numbers: half to even, saturated (ONNX, QuantizeLinear)."""
    scale = codes.spread(codes.scale, numbers.shape)
    zero = codes.spread(codes.zero_point, numbers.shape)
    quotient = (numbers.astype(np.float32) / scale.astype(np.float32)).astype(np.float64)
    rounded: np.ndarray = np.rint(quotient) + zero if codes.integer else quotient
    rounded = np.clip(rounded, *codes.ends)
    return rounded.astype(codes.dtype.numpy())


def _store(node: ir.Node, names: graph.FreeNames, numbers: np.ndarray) -> None:
    """A constant instead of a node."""
    owner, result = node.graph, node.outputs[0]
    assert owner is not None
    value = graph.add_constant(owner, names.value(f"{result.name}.folded"), numbers)
    result.replace_all_uses_with(value)
    inputs = [one for one in node.inputs if one is not None]
    owner.remove(node, safe=True)
    graph.remove_unread(owner, inputs)


def _write_codes(
    node: ir.Node, names: graph.FreeNames, codes: np.ndarray, scale: np.ndarray, zero: np.ndarray
) -> None:
    """Give a DQ other constant codes and parameters."""
    owner, old = node.graph, node.inputs[0]
    assert owner is not None and old is not None
    stored = graph.add_constant(owner, names.value(f"{old.name}.s8"), codes)
    node.replace_input_with(0, stored)
    set_codes(node, names, scale, zero.astype(np.int8))
    graph.remove_unread(owner, [old])


_LOADABLE = Repair(
    "moves",
    "int8 pairs were repeated behind operators that only move numbers, as ONNX Runtime needs them",
    True,
    graph.loadable_pairs,
)
FORMS: tuple[Repair, ...] = (
    Repair("operators", "integer operators became Q/DQ pairs around float operators", True,
           operators.to_pairs),
    Repair("dynamic", "activations that were quantized in each run are floats; weights keep their "
           "codes", False, operators.dynamic_to_weight_only),
    Repair("weights", "float weights before a QuantizeLinear became codes", True, fold_constants),
    Repair("clips", "Clips between QuantizeLinear and DequantizeLinear were removed", False,
           clips_out),
    _LOADABLE,
)  # fmt: skip
REPAIRS: tuple[Repair, ...] = (
    *FORMS,
    Repair("biases", "quantized biases and other constants became floats", True, floats_for_biases),
    Repair("16 bits", "activation pairs of 16 bits were removed", False, wide_pairs_out),
    Repair("scalars", "scales of shape [1] became scalars", True, scalar_scales),
    Repair("signed weights", "uint8 weights became int8", True, signed_weights),
    Repair("symmetric weights", "weights with a zero point were rounded to symmetric codes", False,
           symmetric_weights),
    Repair("signed activations", "uint8 activations became int8, zero points moved by 128", True,
           signed_activations),
    Repair("symmetric activations", "activation ranges became symmetric", False,
           symmetric_activations),
    replace(_LOADABLE, name="signed moves"),  # codes that were unsigned
)  # fmt: skip

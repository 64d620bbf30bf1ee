"""The matrices of experts in 4 or 8 bits, looked up for each token (com.microsoft).

    stack[E, N, K] ── GatherND ── [S, N, K] ──►     codes, scales ── GatherBlockQuantized ──►

The weights of each expert are rounded alone: in blocks along the summed axis, by GPTQ where the
tokens of this expert are known (`rounding`), so that an expert that no sample reached depends on
its weights only. ONNX Runtime dequantizes the matrices of the chosen experts; the `ort` form makes
one QMoE of a whole mixture, which multiplies the codes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.placement.expert_formats import ExpertFormat, expert_block
from optkit.craft.quantization.qdq import nbits
from optkit.craft.quantization.rounding.expert_rounding import FEWEST_TOKENS, ExpertRounding
from optkit.facts.errors import located
from optkit.facts.node_names import module_of
from optkit.facts.precisions import NumberFormat
from optkit.ground import graph

_SHOWN = 3  # experts of a mixture, and mixtures, in warnings
_MICROSOFT, _VERSION = "com.microsoft", 1


@dataclass(frozen=True)
class CodedExperts:
    """A product whose stack of matrices is stored as codes. `solved`: how many experts were rounded
    by GPTQ; `tokens`: how many calibration tokens each expert got; empty if that is not known."""

    experts: int
    dtype: str
    block_size: int
    solved: int
    tokens: tuple[int, ...]


def quantize_experts(
    model: ir.Model, formats: Mapping[str, ExpertFormat], rounding: ExpertRounding
) -> dict[str, CodedExperts]:
    """Store the stacks of these products as codes, in place. `formats`: by name of the product.

    The codes are computed one expert after the other while the model is saved. Returns what was
    done, by product. Saving raises InputRefused for a weight that is not finite.
    """
    names, coded = graph.FreeNames(model), {}
    for node in list(model.graph):
        stack = graph.stack_of(node) if node.name in formats else None
        if stack is None:
            continue
        wanted = formats[str(node.name)]
        block = expert_block(stack, wanted.format, rounding.settings.block_size)
        assert block is not None
        fmt = replace(wanted.format, block_size=block)
        rows, count = str(stack.rows.name), stack.sizes[0]
        coded[str(node.name)] = CodedExperts(
            count, fmt.dtype, block, rounding.known(rows, count), rounding.tokens(rows, count)
        )
        _look_up_codes(model, stack, _stored(model.graph, stack, fmt, rounding, names), fmt, names)
        node.metadata_props[graph.EXPERT_ACCURACY] = str(wanted.accuracy)
    return coded


def few_tokens(coded: Mapping[str, CodedExperts]) -> tuple[str, ...]:
    """A warning for each mixture with experts that got few calibration tokens."""
    told: dict[str, str] = {}
    for name, each in coded.items():
        few = {expert: count for expert, count in enumerate(each.tokens) if count < FEWEST_TOKENS}
        if few:
            some = ", ".join(f"expert {expert}: {few[expert]}" for expert in sorted(few)[:_SHOWN])
            more = f", and {len(few) - _SHOWN} more" if len(few) > _SHOWN else ""
            told[module_of(name) or name] = (
                f"{len(few)} of {each.experts} experts of {module_of(name) or name!r} got fewer "
                f"than {FEWEST_TOKENS} calibration tokens ({some}{more}): their weights are "
                "rounded without data. Give more samples, or samples of other kinds"
            )
    left = len(told) - _SHOWN
    shown = list(told.values())[:_SHOWN]
    return (*shown, *([f"and {left} more mixtures with such experts"] if left > 0 else []))


def _stored(
    owner: ir.Graph,
    stack: graph.Stack,
    fmt: NumberFormat,
    rounding: ExpertRounding,
    names: graph.FreeNames,
) -> list[ir.Value]:
    """Codes uint8 [E, N, K · bits / 8] and scales float32 [E, N, K / block]."""
    (count, n, k), rows, turned = stack.sizes, str(stack.rows.name), stack.place == 0
    assert fmt.block_size is not None
    tensor, name, block = stack.stored.const_value, stack.stored.name, fmt.block_size
    assert tensor is not None
    forms = [
        graph.TensorForm(
            names.value(f"{name}_quantized"), ir.DataType.UINT8, (count, n, k * fmt.bits // 8)
        ),
        graph.TensorForm(names.value(f"{name}_scale"), ir.DataType.FLOAT, (count, n, k // block)),
    ]

    def pieces() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for expert, matrix in enumerate(graph.rows(tensor, 1)):
            weight = np.asarray(matrix[0], np.float32)
            with located(f"weight {name!r}, expert {expert}"):
                found = rounding.codes(rows, expert, weight.T if turned else weight, fmt)
            packed = nbits.pack(found.codes.T, fmt, block).reshape(1, n, -1)
            yield packed, np.ascontiguousarray(found.scale.scale.T, np.float32)[None]

    return [graph.add_tensor(owner, each) for each in graph.computed(forms, pieces)]


def _look_up_codes(
    model: ir.Model,
    stack: graph.Stack,
    stored: list[ir.Value],
    fmt: NumberFormat,
    names: graph.FreeNames,
) -> None:
    """Let the product read the matrix that is looked up in the codes."""
    owner, (codes, scales), found = model.graph, stored, stack.lookup.outputs[0]
    _, n, k = stack.sizes
    rows = stack.chosen.shape[0] if stack.chosen.shape is not None else None
    chosen, nodes = stack.chosen, []

    def add(
        op: str, inputs: list[ir.Value], shape: list[object], dtype: ir.DataType | None, **more: int
    ) -> ir.Value:
        value = ir.Value(
            name=names.value(f"{found.name}_{op.lower()}"),
            type=None if dtype is None else ir.TensorType(dtype),
            shape=ir.Shape(shape),  # type: ignore[arg-type]
        )
        domain = _MICROSOFT if op == "GatherBlockQuantized" else ""
        label = names.node(f"{stack.lookup.name}_{op}")
        nodes.append(ir.node(op, inputs, more, domain=domain, name=label, outputs=[value]))
        return value

    if stack.lookup.op_type == "GatherND":
        axis = graph.add_constant(owner, names.value(f"{found.name}_axis"), np.array([1], np.int64))
        chosen = add("Squeeze", [chosen, axis], [rows], chosen.dtype)
    matrix = add(
        "GatherBlockQuantized",
        [codes, chosen, scales],
        [rows, n, k],
        found.dtype,
        gather_axis=0,
        quantize_axis=2,
        block_size=fmt.block_size or 0,
        bits=fmt.bits,
    )
    if stack.place:
        matrix = add("Transpose", [matrix], [rows, k, n], found.dtype)
        nodes[-1].attributes["perm"] = ir.AttrInt64s("perm", [0, 2, 1])
    owner.insert_before(stack.lookup, nodes)
    owner.opset_imports.setdefault(_MICROSOFT, _VERSION)
    model.opset_imports.setdefault(_MICROSOFT, _VERSION)
    stack.product.replace_input_with(stack.place, matrix)
    graph.remove_unread(owner, [found])

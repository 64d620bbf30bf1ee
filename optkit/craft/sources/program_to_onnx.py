"""Translates an ExportedProgram to an ONNX graph: torch's exporter, then readable names.

The optimizer of the exporter is off, so the graph has all operators of the model, for example
BatchNormalization; `optkit.craft.fusion` folds them or declines, and logs both. Only additions of
the exporter itself are removed here: sequences, which TensorRT refuses, and biases of zeros.

Names: a node is named after its module ("blocks.0.attention.qkv/MatMul"), a weight after its
parameter even if it is stored transposed, a dynamic axis as in the recipe.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir
from onnx_ir.passes import common as passes

from optkit.craft.sources import (
    adaptive_pools,
    assertions,
    bfloat16,
    call_forms,
    embedding_bags,
    export_failures,
    nearest_pixels,
    pool_sizes,
    promotion,
    recurrences,
    scatter_reductions,
    stable_functions,
)
from optkit.craft.sources.dynamic_axes import declare, values
from optkit.craft.sources.toolchain import quiet
from optkit.facts.errors import ExportFailed
from optkit.facts.tensors import InputSpec, TensorInfo
from optkit.ground import graph

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.onnx import ONNXProgram

OPSET = 21
_SCOPES = "pkg.torch.onnx.name_scopes"
_FOLDED_FROM = "pkg.onnxscript.optimizer.folded_from"


def translate(
    program: ExportedProgram,
    specs: Sequence[InputSpec],
    outputs: Sequence[str],
    *,
    opset: int = OPSET,
) -> ir.Model:
    """`specs` and `outputs` describe the program's tensor inputs and outputs, in its order. No
    output has the name of an input.

    Raises ExportFailed with the module and the operator, or with an axis that did not stay dynamic.
    """
    inputs = [spec.info.name for spec in specs]
    try:
        with quiet():
            model = _settle(_converted(program, inputs, opset).model)
    except ExportFailed:
        raise
    except Exception as error:  # the exporter raises many kinds of exceptions
        raise export_failures.conversion(error) from error
    for value, name in zip(model.graph.inputs, inputs, strict=True):
        value.name = name  # OutputFixPass renames an input that is also an output
    _name_weights(model, program)
    _name_nodes(model)
    declare(model, specs)
    _name_outputs(model, outputs)
    _require_opset(model, opset)
    return model


def decomposed(program: ExportedProgram, specs: Sequence[InputSpec]) -> ExportedProgram:
    """The program as the exporter translates it: its values have the names of the graph's."""
    with quiet():
        found = _converted(program, [spec.info.name for spec in specs], OPSET).exported_program
    assert found is not None
    return found


def _converted(program: ExportedProgram, inputs: Sequence[str], opset: int) -> ONNXProgram:
    import torch

    assertions.remove(program)
    promotion.cast_operands(program)
    ours = recurrences.translations() | stable_functions.translations()
    ours |= nearest_pixels.translations() | scatter_reductions.translations()
    ours |= call_forms.translations()
    # attention with a trainable bias is decomposed in another way with gradients, which fails
    with torch.no_grad(), pool_sizes.unasked():
        program = adaptive_pools.decomposed(embedding_bags.decomposed(program))
        converted = torch.onnx.export(
            program,
            (),
            input_names=inputs,
            opset_version=opset,
            optimize=False,
            verbose=False,
            custom_translation_table=ours,
        )
    assert converted is not None
    return converted


def describe(model: ir.Model) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
    """Inputs and outputs."""
    return graph.inputs(model), graph.outputs(model)


def write(model: ir.Model, out: Path) -> None:
    """Check the numbers and write the file, with pairs that ONNX Runtime loads. Raises InputRefused
    with the tensor or the fault."""
    graph.check_finite(model)
    graph.loadable_pairs(model)
    graph.save(model, out)
    graph.check(out)


def _settle(model: ir.Model) -> ir.Model:
    """Remove what the exporter added to the model."""
    from onnxscript import optimizer, rewriter
    from onnxscript.rewriter.rules import common as rules

    passes.InlinePass()(model)
    optimizer.fold_constants(model, should_fold=recurrences.prepare_weights(model))
    settled: ir.Model = rewriter.rewrite(
        model,
        [
            rules.remove_optional_bias_from_conv_rule,
            rules.remove_optional_bias_from_conv_transpose_rule,
            *stable_functions.rules(),
        ],
    )
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(settled)
    passes.RemoveUnusedNodesPass()(settled)
    _widen_indices(settled)
    bfloat16.rounded(settled)
    passes.OutputFixPass()(settled)  # an output that is also an input, or that occurs twice
    return settled


def _widen_indices(model: ir.Model) -> None:
    """ScatterND and GatherND have indices of int64; the exporter gives those of torch's istft."""
    for node in list(model.graph.all_nodes()):
        indices = node.inputs[1] if node.op_type in ("ScatterND", "GatherND") else None
        if indices is not None and indices.dtype == ir.DataType.INT32 and node.graph is not None:
            wide = {"to": ir.DataType.INT64.value}
            cast = ir.node("Cast", [indices], wide, metadata_props=dict(node.metadata_props))
            cast.outputs[0].type = ir.TensorType(ir.DataType.INT64)
            cast.outputs[0].shape = indices.shape
            node.graph.insert_before(node, cast)
            node.replace_input_with(1, cast.outputs[0])


def _name_weights(model: ir.Model, program: ExportedProgram) -> None:
    """A folded parameter (transposed, for a Linear) keeps its name."""
    taken = graph.value_names(model)
    for value in list(model.graph.initializers.values()):
        for name in ast.literal_eval(value.metadata_props.get(_FOLDED_FROM, "[]")):
            parameter = program.state_dict.get(name)
            if parameter is None or name in taken or value.const_value is None:
                continue
            if parameter.numel() == value.const_value.size:
                value.name = name
                taken.add(name)
                break


def _name_nodes(model: ir.Model) -> None:
    used: Counter[str] = Counter()
    for node in model.graph.all_nodes():
        base = "/".join(filter(None, (_module(node), node.op_type)))
        node.name = f"{base}_{used[base]}" if used[base] else base
        used[base] += 1


def _module(node: ir.Node) -> str:
    """The path of the module of a node; "" for the root and for nodes of folding."""
    scopes = ast.literal_eval(node.metadata_props.get(_SCOPES, "[]"))  # [module, …, fx node]
    module = str(scopes[-2]) if len(scopes) > 1 else ""
    return "" if module.startswith("_") and module.endswith("_hook") else module


def _name_outputs(model: ir.Model, names: Sequence[str]) -> None:
    outputs = model.graph.outputs
    if len(outputs) != len(names):
        raise ExportFailed(
            f"the graph has {len(outputs)} outputs where the model returns {len(names)} tensors",
            where=", ".join(names),
            hint="return tensors only",
        )
    taken = graph.value_names(model) | set(names)
    for value in values(model):
        if value.name in names and not value.is_graph_output():
            value.name = graph.unique_name(f"{value.name}_1", taken)
            taken.add(str(value.name))
    for value in outputs:  # in two steps, because an output may have the name of another output
        value.name = graph.unique_name("output", taken)
        taken.add(str(value.name))
    for value, name in zip(outputs, names, strict=True):
        value.name = name


def _require_opset(model: ir.Model, opset: int) -> None:
    """The exporter may choose another opset without an error."""
    if model.opset_imports.get("") != opset:
        raise ExportFailed(
            f"torch wrote opset {model.opset_imports.get('')} instead of {opset}",
            hint="use a newer torch and onnxscript",
        )

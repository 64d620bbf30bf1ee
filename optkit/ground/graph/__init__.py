"""The graph that every stage reads and rewrites: `Graph` is `onnx_ir.Model`.

serde      reads, writes and checks files
semantics  the onnx library's knowledge of operators: shape inference, opset conversion, evaluation
           of one node. Only this module and `serde` import `onnx`
opsets     conversions of older opsets that the onnx library does not do
shapes     inputs, outputs, fixed sizes for named axes, taps (inner values as outputs)
nodes      names of nodes, constant weights, finite numbers
arguments  inputs that are shapes, axes or indices
weights    weights on disk: rows and columns, tensors that are computed when they are written
data_files the files for weights, written or linked
signed_pairs  pairs of signed codes in a form that ONNX Runtime loads
stacks     products with one of several matrices: the experts of a mixture
cutting    consecutive parts of a graph, each a small graph
exact_products    which nodes multiply integer codes, and whether their sums need VNNI
activation_bytes  bytes of the values of a run, at any sizes
costs      parameters, bytes and multiply-accumulates; the summary that `inspect` prints
"""

from __future__ import annotations

from onnx_ir import Model as Graph

from optkit.facts.node_names import join_names, module_of, names_in
from optkit.ground.graph.arguments import arguments
from optkit.ground.graph.costs import border_bytes, costs, parameters, peak_live_bytes, summary
from optkit.ground.graph.cutting import GraphPart, beginning, between, cut, places
from optkit.ground.graph.exact_products import assumes_vnni, multiplies_codes
from optkit.ground.graph.nodes import (
    WEIGHTED,
    FreeNames,
    add_constant,
    add_tensor,
    array,
    check_finite,
    claim_name,
    constant_weight,
    ensure_names,
    is_constant,
    new_constant,
    owner,
    read_instead,
    remove_unread,
    replace_output,
    unique_name,
    value_names,
)
from optkit.ground.graph.semantics import (
    check_growth,
    evaluate,
    infer_shapes,
    lower,
    takes_half,
    upgrade,
)
from optkit.ground.graph.serde import (
    INLINE_LIMIT,
    check,
    data_locations,
    load,
    metadata,
    save,
    with_data_at,
)
from optkit.ground.graph.shapes import bind, dims, evaluated, expose, inputs, outputs, typed
from optkit.ground.graph.signed_pairs import loadable_pairs
from optkit.ground.graph.stacks import EXPERT_ACCURACY, Stack, finds_matrices, stack_of
from optkit.ground.graph.weights import (
    MappedTensor,
    TensorForm,
    blocks,
    columns,
    computed,
    rows,
    scaled,
    spread,
)

__all__ = [
    "EXPERT_ACCURACY",
    "INLINE_LIMIT",
    "WEIGHTED",
    "FreeNames",
    "Graph",
    "GraphPart",
    "MappedTensor",
    "Stack",
    "TensorForm",
    "add_constant",
    "add_tensor",
    "arguments",
    "array",
    "assumes_vnni",
    "beginning",
    "between",
    "bind",
    "blocks",
    "border_bytes",
    "check",
    "check_finite",
    "check_growth",
    "claim_name",
    "columns",
    "computed",
    "constant_weight",
    "costs",
    "cut",
    "data_locations",
    "dims",
    "ensure_names",
    "evaluate",
    "evaluated",
    "expose",
    "finds_matrices",
    "infer_shapes",
    "inputs",
    "is_constant",
    "join_names",
    "load",
    "loadable_pairs",
    "lower",
    "metadata",
    "module_of",
    "multiplies_codes",
    "names_in",
    "new_constant",
    "outputs",
    "owner",
    "parameters",
    "peak_live_bytes",
    "places",
    "read_instead",
    "remove_unread",
    "replace_output",
    "rows",
    "save",
    "scaled",
    "spread",
    "stack_of",
    "summary",
    "takes_half",
    "typed",
    "unique_name",
    "upgrade",
    "value_names",
    "with_data_at",
]

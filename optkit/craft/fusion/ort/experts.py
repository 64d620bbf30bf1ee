"""A mixture of experts as one operator: MoE, or QMoE where the experts' matrices are codes.

    y[t] = Σ_j w[t, j] · D[i] (g(G[i] x[t]) · U[i] x[t])        i = chosen[t, j], j < k

torch's exporter writes a lookup of the matrices of each row's experts, which copies them for every
token. The kernels group the tokens by expert and copy nothing. The routing stays as the model
computes it, with its ties: the weights of the chosen experts are scattered into a row with zeros
for all others, from which the kernel takes the k largest.

    SwiGLU(g, u) = min(g, limit) · σ(α min(g, limit)) · (clip(u, ±limit) + β)
    (Shazeer, arXiv:2002.05202; ContribOperators.md of ONNX Runtime)

The kernels of the CPU read gate and up interleaved, row by row. QMoE takes the weights as they are;
MoE computes them as the softmax of what it reads, so it reads their logarithms, and its result is
multiplied by their sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.ort.expert_matrices import Matrices, matrices, stored
from optkit.craft.fusion.ort.gated import Gate, gate_of
from optkit.craft.fusion.ort.write import MICROSOFT, Attributes, constant, length, once, put
from optkit.craft.fusion.pattern import chain, dims, ints, made_by
from optkit.craft.fusion.rule import Decline, Guards, Rule, unmet
from optkit.ground import graph

_ROUTER_WEIGHTS = 14  # input of QMoE
_LEAST = 1e-30  # of a weight, so that its logarithm is a number
_SIGNLESS = ("Softmax", "Sigmoid", "Abs", "Relu", "Exp")
_KEEPING = (
    *("Reshape", "Squeeze", "Unsqueeze", "Identity", "Cast", "Slice", "Gather", "GatherElements"),
    *("GatherND", "TopK", "ReduceSum", "Expand", "Transpose"),
)
_JOINING = ("Mul", "Div", "Add")
_SHAPING = ("Reshape", "Squeeze", "Unsqueeze", "Identity")


@dataclass(frozen=True)
class Mixture:
    """`last` sums what the experts `chosen` [T, k] of each token of `x` [T, H] compute, times
    `weights` [T, k]."""

    last: ir.Node
    x: ir.Value
    chosen: ir.Value
    weights: ir.Value
    up: Matrices
    gate: Gate
    down: Matrices

    @property
    def k(self) -> int:
        return int(self.chosen.shape[1])  # type: ignore[index, arg-type]


def check(node: ir.Node) -> Mixture | Decline | None:
    parts = chain(node.outputs[0], "ReduceSum", "Reshape", "Mul")
    axes = ints(node.inputs[1]) if len(node.inputs) > 1 else None
    summed = dims(node.inputs[0], 3)
    if parts is None or axes != [1] or summed is None or not isinstance(summed[1], int):
        return None
    for made, by in ((0, 1), (1, 0)):
        down = matrices(parts[2].inputs[made])
        if down is not None:
            weights = _rows_of(parts[2].inputs[by], summed[1])
            return _mixture(node, down, weights, summed[1])
    return None


def _mixture(
    node: ir.Node, down: Matrices, weights: ir.Value | None, k: int
) -> Mixture | Decline | None:
    gate = gate_of(down.rows)
    if gate is None:
        return Decline("what is between its two products is no SwiGLU")
    up = matrices(gate.source)
    if up is None or weights is None:
        return None
    chosen, x = _rows_of(up.chosen, k), _repeated(up.rows, k)
    if chosen is None or x is None or _rows_of(down.chosen, k) is not chosen:
        return None
    found = Mixture(node, x, chosen, weights, up, gate, down)
    return unmet(found, _GUARDS) or found


def _rows_of(value: ir.Value | None, k: int) -> ir.Value | None:
    """The value [T, k] whose numbers are in [T · k] or [T · k, 1]."""
    while value is not None:
        shape = dims(value, 2)
        if shape is not None and shape[1] == k:
            return value
        node = made_by(value, *_SHAPING)
        value = None if node is None else node.inputs[0]
    return None


def _repeated(value: ir.Value, k: int) -> ir.Value | None:
    """x [T, H], from a value [T · k, H] with each row k times; for k = 1 it may be x itself."""
    nodes = chain(value, "Reshape", "Expand", "Unsqueeze")
    if nodes is None:
        return value if k == 1 else None
    x, wide = nodes[2].inputs[0], dims(nodes[1].outputs[0], 3)
    single = dims(nodes[2].outputs[0], 3)
    if x is None or wide is None or single is None or single[1] != 1 or wide[1] != k:
        return None
    return x


def _never_negative(value: ir.Value | None) -> bool:
    numbers = graph.array(value)
    if numbers is not None:
        return bool((numbers >= 0).all())
    node = None if value is None else value.producer()
    if node is None or node.domain != "":
        return False
    if node.op_type in _SIGNLESS:
        return True
    if node.op_type in _KEEPING:
        return _never_negative(node.inputs[0])
    return node.op_type in _JOINING and all(map(_never_negative, node.inputs))


def _distinct(match: Mixture) -> bool:
    """Whether the experts of a token differ: then the k largest weights are theirs."""
    node: ir.Node | None = match.chosen.producer()
    while node is not None and node.op_type in ("Cast", "Identity", "Reshape"):
        node = made_by(node.inputs[0], "Cast", "Identity", "Reshape", "TopK")
    return node is not None and node.op_type == "TopK"


_GUARDS: Guards[Mixture] = (
    ("it does not compute in float32", lambda m: m.x.dtype == m.weights.dtype == ir.DataType.FLOAT),
    ("its experts are not those of a TopK, so one may be chosen twice", _distinct),
    ("a weight of its experts may be negative", lambda m: _never_negative(m.weights)),
    (
        lambda m: f"its products are stored in {m.up.form} and {m.down.form}",
        lambda m: m.up.form == m.down.form,
    ),
    (
        "its products round their activations differently",
        lambda m: m.up.accuracy == m.down.accuracy,
    ),
)


def together(match: Mixture) -> str:
    up, down, owner = match.up, match.down, graph.owner(match.last)
    name = graph.join_names([str(up.product.name), str(down.product.name)])
    dense, block = _dense(match, name), min(up.block, down.block)
    attributes: Attributes = {
        "k": match.k,
        "activation_type": "swiglu",
        "swiglu_fusion": 1,
        "activation_alpha": match.gate.alpha,
        "activation_beta": match.gate.beta,
        **({} if match.gate.limit is None else {"swiglu_limit": match.gate.limit}),
    }
    first = stored(owner, up, block, match.gate.order)
    second = stored(owner, down, block, None)
    if up.bits is None:
        _put_floats(match, name, dense, [*first, *second], attributes)
        return f"{up.experts} experts in one operator"
    codes: Attributes = {
        **attributes,
        "expert_weight_bits": up.bits,
        "block_size": block,
        **({} if up.accuracy == 0 else {"accuracy_level": up.accuracy}),
    }
    inputs: list[ir.Value | None] = [match.x, dense, *first, *second]
    inputs += [None] * (_ROUTER_WEIGHTS - len(inputs)) + [dense]
    result = match.last.outputs[0]
    put(match.last, "QMoE", inputs, result, attributes=codes, domain=MICROSOFT, name=name)
    return f"{up.experts} experts of {up.bits} bits in one operator"


def _put_floats(
    match: Mixture,
    name: str,
    dense: ir.Value,
    matrices_: list[ir.Value | None],
    attributes: Attributes,
) -> None:
    owner, result = graph.owner(match.last), match.last.outputs[0]
    least = constant(owner, "experts.least", np.array(_LEAST, np.float32))
    kept = once(owner, f"{name}.kept", "Max", [dense, least])
    logs = once(owner, f"{name}.logarithms", "Log", [kept])
    axis = constant(owner, "experts.axis", np.array([1], np.int64))
    total = once(owner, f"{name}.total", "ReduceSum", [match.weights, axis])
    mixed = ir.Value(name=f"{name}.mixed", type=result.type, shape=result.shape)
    inputs = [match.x, logs, *matrices_]
    while inputs[-1] is None:
        inputs.pop()
    node = ir.node("MoE", inputs, attributes, domain=MICROSOFT, name=name, outputs=[mixed])
    owner.insert_before(match.last, node)
    owner.opset_imports.setdefault(MICROSOFT, 1)
    put(match.last, "Mul", [mixed, total], result)


def _dense(match: Mixture, name: str) -> ir.Value:
    """The weights [T, E]: those of the chosen experts, zero for the others."""
    owner = graph.owner(match.last)
    experts = constant(owner, f"experts.{match.up.experts}", np.array([match.up.experts]))
    tokens = length(owner, match.chosen, 0)
    shape = once(owner, f"{name}.shape", "Concat", [tokens, experts], {"axis": 0})
    zero = constant(owner, "experts.zero", np.zeros(1, np.float32))
    zeros = once(owner, f"{name}.zeros", "Expand", [zero, shape])
    inputs = [zeros, match.chosen, match.weights]
    return once(owner, f"{name}.weights", "ScatterElements", inputs, {"axis": 1})


experts: Rule[Mixture] = Rule("experts", frozenset({"ReduceSum"}), check, together)

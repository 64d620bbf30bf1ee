"""torch's nn.LSTM, nn.GRU and nn.RNN as one ONNX node per layer, for any number of steps.

torch.export unrolls the steps of a recurrence, so their number is fixed, and each step is a dozen
nodes. During the capture, a layer is instead an operator of optkit in the layout of ONNX, which the
translation writes as LSTM, GRU or RNN. A call that ONNX has no operator for (packed sequences,
projections) is as torch has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir as ir
    from torch import Tensor

_SCHEMA = "(Tensor x, Tensor w, Tensor r, Tensor b, Tensor h, Tensor c) -> (Tensor, Tensor, Tensor)"


@dataclass(frozen=True)
class _Cell:
    """A kind of recurrence. `gates`: torch's gates in the order of ONNX; `states`: h, and c of an
    LSTM; `attributes`: of the ONNX node."""

    operator: str
    gates: tuple[int, ...]
    states: int = 1
    activation: str | None = None


_CELLS: Mapping[str, _Cell] = MappingProxyType(
    {
        "lstm": _Cell("LSTM", (0, 3, 1, 2), states=2),  # torch: i f g o; ONNX: i o f c
        "gru": _Cell("GRU", (1, 0, 2)),  # torch: r z n; ONNX: z r h
        "rnn_tanh": _Cell("RNN", (0,), activation="Tanh"),
        "rnn_relu": _Cell("RNN", (0,), activation="Relu"),
    }
)
"""By the name of torch's function."""


@contextmanager
def kept() -> Iterator[None]:
    """During the body, torch's recurrent functions are one operator per layer."""
    from torch import _VF

    originals = {name: getattr(_VF, name) for name in _CELLS}
    for name, original in originals.items():
        setattr(_VF, name, partial(_layers, name, original))
    try:
        yield
    finally:
        for name in _CELLS:
            delattr(_VF, name)  # torch looks them up when they are not set


def translations() -> dict[Any, Callable[..., Any]]:
    """How torch's exporter writes the operators: operator → function of onnxscript."""
    return {_operator(name): _writer(cell) for name, cell in _CELLS.items()}


def prepare_weights(model: ir.Model) -> Callable[[ir.Node], bool | None]:
    """For onnxscript's constant folding: True for the nodes that reorder the weights of
    recurrences, which are folded whatever their size; None: for the others it decides."""
    kinds = {cell.operator for cell in _CELLS.values()}
    layers = [node for node in model.graph if node.op_type in kinds]
    open_ = [value for node in layers for value in node.inputs[1:4]]
    found: set[ir.Node] = set()
    while open_:
        value = open_.pop()
        node = None if value is None else value.producer()
        if node is not None and node not in found:
            found.add(node)
            open_ += node.inputs
    return lambda node: True if node in found else None


def _layers(name: str, original: Callable[..., Any], *args: Any) -> tuple[Tensor, ...]:
    """torch's function as one operator per layer: outputs [batch, steps, directions · hidden] or
    [steps, batch, …], then the last states. `args`: as nn.RNNBase gives them."""
    import torch

    cell = _CELLS[name]
    if not _fits(args, cell):
        result: tuple[Tensor, ...] = original(*args)
        return result
    x, given, weights, biases, layers, _, _, both, batch_first = args
    states = given if cell.states > 1 else [given]
    directions, each = 1 + both, _tensors(biases)
    if batch_first:
        x = x.transpose(0, 1)
    ends = []
    for layer in range(layers):
        places = range(layer * directions, (layer + 1) * directions)
        w, r, b = _onnx_weights([weights[i * each : (i + 1) * each] for i in places], cell)
        h = [state[places.start : places.stop] for state in states]
        y, *last = _operator(name)(x, w, r, b, h[0], h[-1])
        x = y.transpose(1, 2).flatten(2)
        ends.append(last[: cell.states])
    joined = [torch.cat(parts) for parts in zip(*ends, strict=True)]
    return (x.transpose(0, 1) if batch_first else x, *joined)


def _fits(args: Sequence[Any], cell: _Cell) -> bool:
    """Whether ONNX has an operator for the call: not in training, no packed sequences (whose
    weights are another argument), and no projection of the states."""
    weights = args[2]
    if not isinstance(weights, list):
        return False
    _, _, _, biases, layers, _, training, both, _ = args
    square = weights[1].shape[0] == len(cell.gates) * weights[1].shape[1]
    return not training and square and len(weights) == _tensors(biases) * layers * (1 + both)


def _tensors(biases: bool) -> int:
    """Weights and biases of a layer in one direction."""
    return 4 if biases else 2


def _onnx_weights(groups: Sequence[Sequence[Tensor]], cell: _Cell) -> tuple[Tensor, Tensor, Tensor]:
    """Of each direction w_ih, w_hh and perhaps b_ih, b_hh → W [directions, gates · hidden, input],
    R [directions, gates · hidden, hidden] and B [directions, 2 · gates · hidden] of ONNX."""
    import torch

    found = [[_ordered(tensor, cell.gates) for tensor in group] for group in groups]
    w, r = (torch.stack([group[i] for group in found]) for i in (0, 1))
    biases = [
        torch.cat(group[2:]) if len(group) > 2 else w.new_zeros(2 * w.shape[1]) for group in found
    ]
    return w, r, torch.stack(biases)


def _ordered(tensor: Tensor, gates: Sequence[int]) -> Tensor:
    """[gates · hidden, …] with the gates in this order."""
    import torch

    size = tensor.shape[0] // len(gates)  # slices, because a Split is not folded
    return torch.cat([tensor[gate * size : (gate + 1) * size] for gate in gates])


@cache
def _operator(name: str) -> Any:
    """optkit's operator for one layer in the layout of ONNX: x [steps, batch, input], W, R, B, h
    and c [directions, batch, hidden] → y [steps, directions, batch, hidden], h, c."""
    import torch

    full = f"optkit::{name}"
    torch.library.define(full, _SCHEMA)
    torch.library.impl(full, "CPU", partial(_computed, name))
    torch.library.register_fake(full, _shapes)
    return getattr(torch.ops.optkit, name).default


def _computed(
    name: str, x: Tensor, w: Tensor, r: Tensor, b: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The operator by torch's function."""
    import torch

    cell, weights = _CELLS[name], []
    gates = [cell.gates.index(gate) for gate in range(len(cell.gates))]
    for direction in range(len(w)):
        biases = b[direction].chunk(2)
        weights += [_ordered(one, gates) for one in (w[direction], r[direction], *biases)]
    states = (h, c) if cell.states > 1 else h
    both = len(w) == 2
    y, *last = getattr(torch, name)(x, states, weights, True, 1, 0.0, False, both, False)
    # the same tensor may not be returned twice
    ends = (last[0], last[-1] if cell.states > 1 else c.clone())
    return y.unflatten(2, (len(w), -1)).transpose(1, 2).contiguous(), *ends


def _shapes(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs and last states without values."""
    outputs = x.new_empty(x.shape[0], h.shape[0], x.shape[1], h.shape[2])
    return outputs, h.new_empty(h.shape), c.new_empty(c.shape)


def _writer(cell: _Cell) -> Callable[..., Any]:
    """A function of onnxscript that writes the ONNX node."""
    from onnxscript import opset21 as onnx

    def write(x: Any, w: Any, r: Any, b: Any, h: Any, c: Any) -> Any:
        directions, _, hidden = r.shape
        how: dict[str, Any] = {
            "hidden_size": hidden,
            "direction": "bidirectional" if directions == 2 else "forward",
        }
        if cell.activation:
            how["activations"] = [cell.activation] * directions
        if cell.operator == "LSTM":
            return onnx.LSTM(x, w, r, b, None, h, c, **how)
        if cell.operator == "GRU":
            how["linear_before_reset"] = 1
        y, end = getattr(onnx, cell.operator)(x, w, r, b, None, h, **how)
        return y, end, end

    return write

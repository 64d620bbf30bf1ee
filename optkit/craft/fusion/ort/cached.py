"""The cache of a decoder in one buffer: Attention with a cache becomes GroupQueryAttention
(com.microsoft).

    y, [past; k], [past; v] = Attention(q, k, v, mask, past)         past [B, G, P, D], T = P + S
                            = GroupQueryAttention(q, k, v, past, T − 1, T, bias)

Attention writes the complete cache for every token. GroupQueryAttention takes the filled length of
the past as an input, so the past may be a buffer of the full length; if the output is the same
buffer, only the S new rows are written. Therefore T and P are read from the attention mask, [B, T],
and from an input with one row per new token, and no longer from the cache.

The operator hides later keys itself. Any other mask becomes its bias, a number per query and key;
also a sliding window, because the attribute of the operator for windows saves nothing: the kernel
computes all scores, and the padding needs a bias anyway (docs/studies/fusion.md). The graph
notes the window, so that a loop may forget the rows before it.

For a row of padding, from which the mask hides all keys, it computes the mean of the keys up to
this row, while Attention computes the mean of all; no node reads this row. The kernel refuses a
batch of several samples with several new rows each after a past (`backends.ort_session` runs them
one by one).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.ort.heads import SPLIT, joined, split_from
from optkit.craft.fusion.ort.mask import HIDDEN
from optkit.craft.fusion.ort.visible_keys import conjuncts, hides_later, length_of, terms, window
from optkit.craft.fusion.ort.write import MICROSOFT, Attributes, constant, length, once, put
from optkit.craft.fusion.pattern import dims, known_equal, made_by, scalar
from optkit.craft.fusion.rule import Decline, Guards, Rule, remove, replace, unmet
from optkit.ground import graph
from optkit.ground.decoder import IN_PLACE, WINDOW

_PAST = (3, 4)  # inputs of GroupQueryAttention
_HEADS = ("q_num_heads", "kv_num_heads")  # attributes of Attention on rows
_COUNTS = ("num_heads", "kv_num_heads")  # of GroupQueryAttention
_HIDES = -1e4  # a number that removes a score when it is added: exp(-104) is 0 in float32
_WIDTH = 8  # head sizes of its kernel are multiples of it


@dataclass(frozen=True)
class Lengths:
    """Graph inputs whose shapes contain the lengths: `mask` [B, T], and `new`, whose axis `axis` is
    S."""

    mask: ir.Value
    new: ir.Value
    axis: int


@dataclass(frozen=True)
class CachedAttention:
    """`node` is a causal Attention with a cache. `hidden`: its mask, or [B, 1, 1, T] booleans of
    existing keys; None: it only hides later keys. `window`: the number of keys that a query sees at
    most; None: all."""

    node: ir.Node
    lengths: Lengths
    hidden: ir.Value | None
    window: int | None


@dataclass(frozen=True)
class Past:
    """`node` computes [P], the length of the cache."""

    node: ir.Node
    lengths: Lengths


def check(node: ir.Node) -> CachedAttention | Decline | None:
    if node.domain != "" or len(node.outputs) != 3 or len(node.inputs) != 6:
        return None
    past, rows = dims(node.inputs[4], 4), _rows(node)
    attributes = node.attributes.keys() - {"softcap"}
    if past is None or rows is None or attributes != {"scale", *(_HEADS if _on_rows(node) else ())}:
        return Decline("its rows are not known, or it does more than to attend")
    candidate = _Candidate(node, past, rows)
    if declined := unmet(candidate, _GUARDS):
        return declined
    assert candidate.lengths is not None
    return CachedAttention(node, candidate.lengths, candidate.hidden, candidate.window)


@dataclass(frozen=True)
class _Candidate:
    """An Attention with a cache `past` [B, G, P, D], which reads S = `rows` new rows."""

    node: ir.Node
    past: list[int | ir.SymbolicDim]
    rows: int | ir.SymbolicDim

    @property
    def caches(self) -> list[ir.Value | None]:
        return list(self.node.inputs[4:])

    @cached_property
    def lengths(self) -> Lengths | None:
        return _lengths(self.node.graph, self.past[2], self.rows)

    @property
    def used_elsewhere(self) -> bool:
        reads = [use.node for value in self.caches if value is not None for use in value.uses()]
        return any(length_of(node) is None for node in reads if not _attends(node))

    @cached_property
    def conditions(self) -> tuple[list[ir.Value], list[ir.Value]]:
        """The conditions under which a key is visible: those that hide later keys, and the
        others."""
        choice = made_by(self.node.inputs[3], "Where")
        parts = conjuncts(choice.inputs[0]) if choice is not None else []
        later = [part for part in parts if hides_later(part, self.past[2])]
        return later, [part for part in parts if part not in later]

    @property
    def hides_later(self) -> bool:
        choice = made_by(self.node.inputs[3], "Where")
        if choice is None or not self.conditions[0]:
            return False
        seen, hidden = map(scalar, choice.inputs[1:])
        return seen == 0 and hidden is not None and hidden <= _HIDES

    @cached_property
    def hidden(self) -> ir.Value | None:
        """The mask without the part that hides later keys."""
        assert self.lengths is not None
        return _hidden(self.conditions[1], self.node.inputs[3], self.lengths)

    @property
    def window(self) -> int | None:
        sizes = (window(part, self.past[2]) for part in self.conditions[1])
        return min((size for size in sizes if size is not None), default=None)


_GUARDS: Guards[_Candidate] = (
    (
        "its cache is no input of the graph",
        lambda c: all(value is not None and value.is_graph_input() for value in c.caches),
    ),
    (
        "its longer cache is no output of the graph alone",
        lambda c: all(v.is_graph_output() and not v.uses() for v in c.node.outputs[1:]),
    ),
    (
        "it is not float32",
        lambda c: c.node.inputs[0] is not None and c.node.inputs[0].dtype == ir.DataType.FLOAT,
    ),
    (
        lambda c: f"its batch is fixed at {c.past[0]}: several samples are run one by one",
        lambda c: not isinstance(c.past[0], int) or c.past[0] <= 1,
    ),
    (
        lambda c: f"its head size {c.past[3]} is no multiple of {_WIDTH}, or not that of values",
        lambda c: (
            isinstance(c.past[3], int)
            and c.past[3] % _WIDTH == 0
            and dims(c.caches[1], 4) == c.past
        ),
    ),
    (
        "no input is known to be as long as the cache and the new rows together",
        lambda c: c.lengths is not None,
    ),
    ("its cache is also used elsewhere", lambda c: not c.used_elsewhere),
    ("its mask is not known to hide later keys", lambda c: c.hides_later),
    (
        "what its mask hides besides later keys has not four axes",
        lambda c: c.hidden is None or dims(c.hidden, 4) is not None,
    ),
)


def attend(match: CachedAttention) -> str:
    node, lengths = match.node, match.lengths
    owner = graph.owner(node)
    given = node.attributes
    attributes: Attributes = {
        **dict(zip(_COUNTS, _heads(node), strict=True)),
        "scale": given.get_float("scale"),
        **({"softcap": given.get_float("softcap")} if "softcap" in given else {}),
    }
    total, last = _filled(owner, lengths)
    bias = _bias(match, owner)
    result, *presents = node.outputs
    longer = [
        ir.Value(name=f"{each.name}.kept", type=each.type, shape=each.shape) for each in presents
    ]
    rows = [_as_rows(value, node) for value in node.inputs[:3]]
    join = None if _on_rows(node) else joined(result)
    result, replaced = join if join is not None else (result, [])
    inputs = [*rows, *node.inputs[4:], last, total, None, None, None, bias]
    put(
        node,
        "GroupQueryAttention",
        inputs,
        result,
        more=longer,
        attributes=attributes,
        domain=MICROSOFT,
        removed=(),
    )
    attending = longer[0].producer()
    if match.window is not None and attending is not None:
        attending.metadata_props[WINDOW] = str(match.window)
    for old, new in zip(presents, longer, strict=True):
        name = old.name
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        old.name, new.name = None, name
    for each in (*replaced, node):
        remove(each)
    return "its cache may be a buffer of full length"


def _heads(node: ir.Node) -> list[int]:
    """The numbers of query heads and of key heads."""
    if _on_rows(node):
        return [node.attributes.get_int(name) for name in _HEADS]
    shapes = [dims(value, 4) or [] for value in node.inputs[:2]]
    return [shape[1] for shape in shapes if isinstance(shape[1], int)]


def _on_rows(node: ir.Node) -> bool:
    return dims(node.inputs[0], 3) is not None


def _rows(node: ir.Node) -> int | ir.SymbolicDim | None:
    """S of an Attention on rows [B, S, N·D], or on heads [B, N, S, D] whose result becomes rows."""
    rows, heads = dims(node.inputs[0], 3), [dims(value, 4) for value in node.inputs[:3]]
    if rows is not None:
        return rows[1]
    known = all(
        shape is not None and isinstance(shape[1], int) and isinstance(shape[3], int)
        for shape in heads
    )
    return heads[0][2] if heads[0] is not None and known and joined(node.outputs[0]) else None


def _as_rows(value: ir.Value | None, node: ir.Node) -> ir.Value | None:
    """Heads [B, N, S, D] as rows [B, S, N·D]; rows as they are."""
    heads = dims(value, 4)
    if value is None or heads is None:
        return value
    split = split_from(value)
    if split is not None:
        return split.value
    owner, name = graph.owner(node), f"{value.name}.joined"
    batch, count, rows, size = heads
    assert isinstance(count, int) and isinstance(size, int)
    apart, flat = ir.Value(name=f"{name}.apart"), ir.Value(name=name)
    apart.type = flat.type = value.type
    apart.shape, flat.shape = (
        ir.Shape([batch, rows, count, size]),
        ir.Shape([batch, rows, count * size]),
    )
    width = constant(owner, f"{name}.shape", np.array([0, 0, count * size], np.int64))
    turn = ir.node("Transpose", [value], {"perm": SPLIT}, outputs=[apart], name=apart.name)
    join = ir.node("Reshape", [apart, width], outputs=[flat], name=name)
    owner.insert_before(node, [turn, join])
    return flat


def check_past(node: ir.Node) -> Past | None:
    source, axis = node.inputs[0], length_of(node)
    if source is None or axis != 2 or not source.is_graph_input():
        return None
    attending = next((use.node for use in source.uses() if use.idx in _PAST), None)
    past = dims(source, 4)
    if attending is None or attending.op_type != "GroupQueryAttention" or past is None:
        return None
    rows = dims(attending.inputs[0], 3)
    lengths = _lengths(node.graph, past[2], rows[1]) if rows is not None else None
    return None if lengths is None else Past(node, lengths)


def subtract(match: Past) -> str:
    node, owner = match.node, graph.owner(match.node)
    total = length(owner, match.lengths.mask, 1)
    new = length(owner, match.lengths.new, match.lengths.axis)
    replace(node.outputs[0], once(owner, "cache.past", "Sub", [total, new]))
    remove(node)
    return "told by the mask"


def note_in_place(model: ir.Model) -> None:
    """Record in the metadata which outputs are caches that may be written in place, and the window
    if each of them has one."""
    attending = [node for node in model.graph if node.op_type == "GroupQueryAttention"]
    kept = {
        str(output.name): node.metadata_props.get(WINDOW)
        for node in attending
        for output, past in zip(node.outputs[1:], node.inputs[3:5], strict=True)
        if output.is_graph_output() and past is not None and past.is_graph_input()
    }
    windows = [int(text) for text in kept.values() if text is not None]
    noted = {
        IN_PLACE: json.dumps([*kept]) if kept else None,
        WINDOW: str(max(windows)) if kept and len(windows) == len(kept) else None,
    }
    for name, text in noted.items():
        model.metadata_props.pop(name, None)
        if text is not None:
            model.metadata_props[name] = text


def _attends(node: ir.Node) -> bool:
    return node.op_type in ("Attention", "GroupQueryAttention")


def _lengths(
    owner: ir.Graph | None, past: int | ir.SymbolicDim, new: int | ir.SymbolicDim
) -> Lengths | None:
    total = terms(past) + terms(new)
    inputs = [value for value in owner.inputs if value.shape is not None] if owner else []
    masks = (value for value in inputs if (shape := dims(value, 2)) and terms(shape[1]) == total)
    rows = (
        (value, axis)
        for value in inputs
        for axis, dim in enumerate(value.shape or ())
        if known_equal(dim, new)
    )
    mask, row = next(masks, None), next(rows, None)
    return None if mask is None or row is None else Lengths(mask, *row)


def _hidden(left: list[ir.Value], mask: ir.Value | None, lengths: Lengths) -> ir.Value | None:
    """The mask without the part that hides later keys, if this part can be separated."""
    if not left:
        return None
    shape, given = dims(left[0], 4), dims(lengths.mask, 2)
    if len(left) > 1 or shape is None or given is None or shape[1:3] != [1, 1]:
        return mask
    return left[0] if known_equal(shape[3], given[1]) else mask


def _bias(match: CachedAttention, owner: ir.Graph) -> ir.Value | None:
    """The bias [B, 1, S, T] that is added to the scores; layers share it."""
    present = match.hidden
    if present is None or present.dtype != ir.DataType.BOOL:
        return present
    name = f"{present.name}.bias"
    zero, low = (
        constant(owner, f"cache.{text}", np.asarray(number, np.float32))
        for text, number in (("seen", 0), ("hidden", HIDDEN))
    )
    one = constant(owner, "cache.one_row", np.array([1], np.int64))
    rows = length(owner, match.lengths.new, match.lengths.axis)
    wide = once(owner, f"{name}.shape", "Concat", [one, one, rows, one], {"axis": 0})
    per_key = once(owner, f"{name}.keys", "Where", [present, zero, low], behind=present)
    return once(owner, name, "Expand", [per_key, wide], behind=per_key)


def _filled(owner: ir.Graph, lengths: Lengths) -> tuple[ir.Value, ir.Value]:
    """(T as int32 [1], T − 1 as int32 [B]); layers share them."""
    one = constant(owner, "cache.one", np.array([1], np.int32))
    batch = length(owner, lengths.mask, 0)
    int32 = {"to": ir.DataType.INT32.value}
    total = once(owner, "cache.total", "Cast", [length(owner, lengths.mask, 1)], int32)
    last = once(owner, "cache.last", "Sub", [total, one])
    return total, once(owner, "cache.last_of_each", "Expand", [last, batch])


cached: Rule[CachedAttention] = Rule("cached", frozenset({"Attention"}), check, attend)
past_length: Rule[Past] = Rule("past_length", frozenset({"Shape"}), check_past, subtract)

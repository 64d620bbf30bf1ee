"""Scaled dot-product attention as one operator (Vaswani et al., arXiv:1706.03762).

    softmax(s · Q Kᵀ + mask) V          Attention of opset 23, on rows [B, S, N·D] if possible
    c tanh(s · Q Kᵀ / c) for s · Q Kᵀ   its softcap (Gemma 2, arXiv:2408.00118, section 2)
    K = [past; k], V = [past; v]        its caches, which it returns with the new rows: the KV cache

The kernel splits and joins the heads itself, repeats no key heads, adds the mask, and computes the
softmax while the scores of a head are in the CPU's cache: 2.8 ms instead of 4.4 (7.5 with the NaN
guard) at [8, 128, 12·32]. The scale may be before Q, before K, after the product, or in two parts.
The kernel does not broadcast a mask over queries; a mask that only hides keys goes to
MultiHeadAttention as integers.

An attention whose cache is a graph input and output may become GroupQueryAttention (`cached`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import onnx_ir as ir

from optkit.craft.fusion import pattern
from optkit.craft.fusion.ort.heads import (
    HeadRows,
    KeyValueCache,
    continued,
    joined,
    repeated_from,
    split_from,
)
from optkit.craft.fusion.ort.mask import Keys, above_lowest, as_integers, hides_nothing, keys
from optkit.craft.fusion.ort.write import MICROSOFT, Attributes, put, too_old
from optkit.craft.fusion.pattern import (
    Either,
    Op,
    ScaledBy,
    Var,
    dims,
    known_equal,
    made_by,
    permutation,
    read_once,
    scaled,
)
from optkit.craft.fusion.rule import Decline, Rule, remove
from optkit.ground import graph


@dataclass(frozen=True)
class Heads:
    """Q, K or V as heads [B, N, S, D]; the rows from which they were split, if they were; and the
    cache that they continue."""

    value: ir.Value | None
    rows: HeadRows | None
    cache: KeyValueCache | None = None


@dataclass(frozen=True)
class AttentionMatch:
    """`node` is the product with V. `mask`: a number per query and key, or only per key. `cap`: of
    the scores, before the mask is added."""

    node: ir.Node
    query: Heads
    key: Heads
    value: Heads
    mask: ir.Value | Keys | None
    scale: float
    cap: float | None = None

    @property
    def rows(self) -> list[HeadRows]:
        """The rows of Q, K and V, if all three are known and the result is joined to rows again."""
        parts = (self.query, self.key, self.value)
        rows = [each.rows for each in parts if each.rows is not None]
        return rows if len(rows) == 3 and joined(self.node.outputs[0]) is not None else []

    @property
    def caches(self) -> list[KeyValueCache]:
        return [each.cache for each in (self.key, self.value) if each.cache is not None]

    @property
    def takes_keys(self) -> bool:
        """Whether MultiHeadAttention is possible: it needs as many key heads as query heads, and no
        cache."""
        alike = self.query.rows and self.key.rows and self.query.rows.heads == self.key.rows.heads
        plain = self.key.cache is None and self.node.outputs[0].dtype == ir.DataType.FLOAT
        return bool(self.rows) and bool(alike) and plain and self.cap is None


_SCORES = Op("MatMul", Var("query"), Var("key"), result="scores")
_CAPPED = ScaledBy(Op("Tanh", ScaledBy(_SCORES, "inner")), "cap")
_MASKED = Op("Add", Either((ScaledBy(_SCORES, "inner"), _CAPPED)), Var("mask"))
_SUM = ScaledBy(Either((_SCORES, _MASKED)), "outer")
_WEIGHTS = Op("Softmax", _SUM, result="weights")


def check(node: ir.Node) -> AttentionMatch | Decline | None:
    sums = _WEIGHTS.matches(node.inputs[0])
    match = next((m for m in sums if "mask" not in m.values or m.numbers["outer"] == 1.0), None)
    softmax = made_by(node.inputs[0], "Softmax")
    if match is None or softmax is None or dims(match["weights"], 4) is None:
        return None
    if softmax.attributes.get_int("axis", -1) not in (-1, 3):
        return Decline("its softmax runs along another axis")
    if not read_once(match["weights"]) or not read_once(match["scores"]):
        return Decline("its weights are also used elsewhere")
    cap = match.numbers.get("cap")
    scale = match.numbers["outer"] * match.numbers.get("inner", 1.0) * (cap or 1.0)
    return too_old(node) or _match(node, match, scale)


def attend(match: AttentionMatch) -> str:
    node, result = match.node, match.node.outputs[0]
    inputs = [each.value for each in (match.query, match.key, match.value)]
    replaced, rows = [node], match.rows
    if rows and (join := joined(result)) is not None:
        inputs, (result, behind) = [each.value for each in rows], join
        replaced = [*behind, node]
    operator = _with_keys if isinstance(match.mask, Keys) else _with_mask
    op, domain, masks, attributes = operator(match, [each.heads for each in rows])
    caches = match.caches
    more = [_twin(cache.present) for cache in caches]
    put(
        replaced[0],
        op,
        [*inputs, *masks, *(cache.past for cache in caches)],
        result,
        more=more,
        attributes=attributes,
        domain=domain,
        name=node.name,
        removed=(),
    )
    for cache, longer in zip(caches, more, strict=True):
        _hand_out(node, cache.present, longer)
    for each in replaced:
        remove(each)
    how = "one operator on rows" if rows else "one operator on heads"
    return f"{how}, with the cache" if caches else how


Operator = tuple[str, str, list[ir.Value | None], Attributes]
"""Op type, domain, inputs after Q, K and V, attributes."""


def _with_mask(match: AttentionMatch, heads: list[int]) -> Operator:
    assert not isinstance(match.mask, Keys)
    mask = above_lowest(match.mask, match.node) if match.mask is not None else None
    attributes: Attributes = {"scale": match.scale}
    if match.cap is not None:
        attributes = {**attributes, "softcap": match.cap}
    if heads:
        attributes = {**attributes, "q_num_heads": heads[0], "kv_num_heads": heads[1]}
    return "Attention", "", [mask], attributes


def _with_keys(match: AttentionMatch, heads: list[int]) -> Operator:
    assert isinstance(match.mask, Keys)
    present, low = as_integers(match.mask.present, match.node), match.mask.low
    attributes = {"scale": match.scale, "num_heads": heads[0], "mask_filter_value": low}
    return "MultiHeadAttention", MICROSOFT, [None, present], attributes


def _match(node: ir.Node, product: pattern.Match, scale: float) -> AttentionMatch | Decline:
    source, before = scaled(product["query"])
    query = Heads(source, split_from(source))
    key, between = _key(product["key"])
    value = _unrepeated(node.inputs[1])
    scale *= before * between
    if key is None or not math.isfinite(scale) or scale <= 0:
        return Decline("its keys are not the transposed heads, or its scale is not positive")
    if not _continue_alike(key, value):
        key, value = _whole(key), _whole(value)
    mask, cap = product.values.get("mask"), product.numbers.get("cap")
    match = AttentionMatch(node, query, key, value, mask, scale, cap)
    if key.value is None and not match.rows:
        return Decline("its keys are transposed with the heads, and the rows are not known")
    if reason := _why_not(query, key, value):
        return Decline(reason)
    return _with_fitting_mask(match, product["scores"])


def _with_fitting_mask(match: AttentionMatch, scores: ir.Value) -> AttentionMatch | Decline:
    """The match with its mask in a form that an operator takes, or without a mask that hides
    nothing."""
    mask = match.mask
    if isinstance(mask, ir.Value) and hides_nothing(mask) and not _widens(mask, scores):
        return replace(match, mask=None)
    if not isinstance(mask, ir.Value) or _fits(mask, scores):
        return match
    per_key = keys(mask) if match.takes_keys else None
    if per_key is None or not _fits_keys(per_key, scores):
        return Decline("its mask is not known to hold a number per query and key")
    return replace(match, mask=per_key)


def _why_not(query: Heads, key: Heads, value: Heads) -> str | None:
    """Why the operator does not fit. It repeats key heads, but broadcasts nothing."""
    sizes = [_batch_and_heads(each) for each in (query, key, value)]
    if any(size is None for size in sizes):
        return "its batch or its heads are not known"
    (batch, heads), (key_batch, groups), (value_batch, value_groups) = (s for s in sizes if s)
    if not known_equal(batch, key_batch) or not known_equal(batch, value_batch):
        return "its queries, keys and values are not known to be of one batch"
    if groups != value_groups or heads % groups:
        return f"{heads} query heads, {groups} key heads, {value_groups} value heads"
    return None


def _key(value: ir.Value | None) -> tuple[Heads | None, float]:
    """The heads that were transposed to [B, N, D, S], without operators that only repeat or scale
    them."""
    value, outer = scaled(value)
    transpose = made_by(value, "Transpose")
    if transpose is None:
        return None, outer
    order = permutation(transpose)
    if order == [0, 2, 3, 1]:  # [B, S, N, D] in one step
        rows = split_from(value, order)
        return (Heads(None, rows) if rows is not None else None), outer
    if order != [0, 1, 3, 2]:
        return None, outer
    inner, factor = scaled(transpose.inputs[0])
    return _unrepeated(inner), outer * factor


def _unrepeated(value: ir.Value | None) -> Heads:
    value = repeated_from(value) or value
    continuing = continued(value)
    if continuing is None:
        return Heads(value, split_from(value))
    new, cache = continuing
    return Heads(new, split_from(new), cache)


def _continue_alike(key: Heads, value: Heads) -> bool:
    """Whether neither continues a cache, or both continue one by the same number of rows."""
    if key.cache is None or value.cache is None:
        return key.cache is value.cache
    keys, values = dims(key.value, 4), dims(value.value, 4)
    return keys is not None and values is not None and known_equal(keys[2], values[2])


def _whole(heads: Heads) -> Heads:
    """The heads with those of the cache before them, as one value."""
    return heads if heads.cache is None else Heads(heads.cache.present, None)


def _batch_and_heads(heads: Heads) -> tuple[int | ir.SymbolicDim, int] | None:
    if heads.rows is not None:
        shape = dims(heads.rows.value, 3)
        return None if shape is None else (shape[0], heads.rows.heads)
    shape = dims(heads.value, 4)
    return (shape[0], shape[1]) if shape is not None and isinstance(shape[1], int) else None


def _fits(mask: ir.Value, scores: ir.Value) -> bool:
    """Whether the operator can take the mask: it broadcasts over batch and heads, not over queries
    and keys."""
    given, wanted = mask.shape, dims(scores, 4)
    if mask.dtype != ir.DataType.FLOAT or given is None or wanted is None:
        return False
    if not 2 <= len(given) <= 4:
        return False
    exact = zip(given.dims[-2:], wanted[-2:], strict=True)
    return all(known_equal(size, wanted_size) for size, wanted_size in exact) and not _widens(
        mask, scores
    )


def _widens(mask: ir.Value, scores: ir.Value) -> bool:
    """Whether the sum with the mask may be larger than the scores."""
    given, wanted = mask.shape, dims(scores, 4)
    if given is None or wanted is None or len(given) > 4:
        return True
    pairs = zip(reversed(given.dims), reversed(wanted), strict=False)
    return not all(size == 1 or known_equal(size, wanted_size) for size, wanted_size in pairs)


def _fits_keys(per_key: Keys, scores: ir.Value) -> bool:
    given, wanted = dims(per_key.present, 2), dims(scores, 4)
    if given is None or wanted is None:
        return False
    return known_equal(given[0], wanted[0]) and known_equal(given[1], wanted[3])


def _twin(value: ir.Value) -> ir.Value:
    return ir.Value(name=f"{value.name}.attended", type=value.type, shape=value.shape)


def _hand_out(node: ir.Node, old: ir.Value, new: ir.Value) -> None:
    """Make the new value the graph output. The old one stays for its readers, because inputs of the
    operator may depend on it."""
    owner = graph.owner(node)
    if old.is_graph_output():
        owner.outputs[[*owner.outputs].index(old)] = new
        old.name, new.name = new.name, old.name


attention: Rule[AttentionMatch] = Rule("attention", frozenset({"MatMul"}), check, attend)

"""Scaled dot-product attention as one operator (Vaswani et al., arXiv:1706.03762).

    softmax(s · Q Kᵀ + mask) V          Attention of opset 23, on rows [B, S, N·D] where it can be
    K = [past; k], V = [past; v]        its caches, which it hands out longer: the key-value cache

Its kernel splits and joins the heads itself, repeats no key heads, adds the mask and runs the
softmax while the scores of a head are in the cache: 2.8 ms against 4.4 (7.5 with the NaN guard) at
[8, 128, 12·32]. The scale may stand before Q, before K, behind the product, or in two parts. It
broadcasts no mask over queries; one that only hides keys goes to MultiHeadAttention as integers.

With a cache that the graph takes and hands out it may go on to GroupQueryAttention (`cached`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import onnx_ir as ir

from optkit.fusion.ort.heads import Cache, Rows, continued, joined, repeated_from, split_from
from optkit.fusion.ort.mask import Keys, above_lowest, as_integers, hides_nothing, keys
from optkit.fusion.ort.write import MICROSOFT, Attributes, put, too_old
from optkit.fusion.pattern import (
    dims,
    known_equal,
    made_by,
    operands,
    permutation,
    read_once,
    scaled,
)
from optkit.fusion.rule import Declined, Rule, remove


@dataclass(frozen=True)
class Heads:
    """Q, K or V as heads [B, N, S, D], the rows they were split from, if they were, and the cache
    that they continue."""

    value: ir.Value | None
    rows: Rows | None
    cache: Cache | None = None


@dataclass(frozen=True)
class Match:
    """`node` is the product with V. `mask`: a number per query and key, or per key alone."""

    node: ir.Node
    query: Heads
    key: Heads
    value: Heads
    mask: ir.Value | Keys | None
    scale: float


def check(node: ir.Node) -> Match | Declined | None:
    softmax = made_by(node.inputs[0], "Softmax")
    if softmax is None or dims(softmax.outputs[0], 4) is None:
        return None
    scores, scale = scaled(softmax.inputs[0])
    add, mask = made_by(scores, "Add"), None
    product = made_by(scores, "MatMul")
    for index in (0, 1) if add is not None else ():
        assert add is not None
        inner, other = operands(add, index)
        behind, factor = scaled(inner)
        if product is None and made_by(behind, "MatMul") is not None and scale == 1.0:
            product, mask, scale = made_by(behind, "MatMul"), other, factor
    if product is None:
        return None
    if softmax.attributes.get_int("axis", -1) not in (-1, 3):
        return Declined("its softmax runs along another axis")
    if not read_once(softmax.outputs[0]) or not read_once(product.outputs[0]):
        return Declined("its weights are also used elsewhere")
    return too_old(node) or _match(node, product, mask, scale)


def attend(match: Match) -> str:
    node, result = match.node, match.node.outputs[0]
    parts = (match.query, match.key, match.value)
    rows, join = [each.rows for each in parts if each.rows is not None], joined(result)
    inputs, between = [each.value for each in parts], [node]
    if len(rows) == 3 and join is not None:
        result, made_from = join
        inputs, between = [each.value for each in rows], [*made_from, node]
    else:
        rows = []
    operator = _with_keys if isinstance(match.mask, Keys) else _with_mask
    op, domain, masks, attributes = operator(match, [each.heads for each in rows])
    caches = [each.cache for each in parts[1:] if each.cache is not None]
    more = [_twin(cache.present) for cache in caches]
    put(
        between[0], op, [*inputs, *masks, *(cache.past for cache in caches)], result,
        more=more, attributes=attributes, domain=domain, name=node.name,
    )  # fmt: skip
    for cache, longer in zip(caches, more, strict=True):
        _hand_out(node, cache.present, longer)
    for each in between:
        remove(each)
    how = "one operator on rows" if rows else "one operator on heads"
    return f"{how}, with the cache" if caches else how


Operator = tuple[str, str, list[ir.Value | None], Attributes]
"""Op type, domain, inputs behind Q, K and V, attributes."""


def _with_mask(match: Match, heads: list[int]) -> Operator:
    assert not isinstance(match.mask, Keys)
    mask = above_lowest(match.mask, match.node) if match.mask is not None else None
    attributes: Attributes = {"scale": match.scale}
    if heads:
        attributes = {**attributes, "q_num_heads": heads[0], "kv_num_heads": heads[1]}
    return "Attention", "", [mask], attributes


def _with_keys(match: Match, heads: list[int]) -> Operator:
    assert isinstance(match.mask, Keys)
    present, low = as_integers(match.mask.present, match.node), match.mask.low
    attributes = {"scale": match.scale, "num_heads": heads[0], "mask_filter_value": low}
    return "MultiHeadAttention", MICROSOFT, [None, present], attributes


def _match(
    node: ir.Node, product: ir.Node, mask: ir.Value | None, scale: float
) -> Match | Declined:
    given, before = scaled(product.inputs[0])
    query = Heads(given, split_from(given))
    key, between = _key(product.inputs[1])
    value = _unrepeated(node.inputs[1])
    scale *= before * between
    if key is None or not math.isfinite(scale) or scale <= 0:
        return Declined("its keys are not the transposed heads, or its scale is not positive")
    if not _continue_alike(key, value):
        key, value = _whole(key), _whole(value)
    on_rows = all(each.rows is not None for each in (query, key, value))
    on_rows = on_rows and joined(node.outputs[0]) is not None
    if key.value is None and not on_rows:
        return Declined("its keys are transposed with the heads, and the rows are not known")
    if reason := _why_not(query, key, value):
        return Declined(reason)
    match = Match(node, query, key, value, mask, scale)
    if mask is not None and hides_nothing(mask) and not _widens(mask, product.outputs[0]):
        return replace(match, mask=None)
    if mask is None or _fits(mask, product.outputs[0]):
        return match
    same = on_rows and query.rows and key.rows and query.rows.heads == key.rows.heads
    same = same and node.outputs[0].dtype == ir.DataType.FLOAT
    per_key = keys(mask) if same and key.cache is None else None
    if per_key is None or not _fits_keys(per_key, product.outputs[0]):
        return Declined("its mask is not known to hold a number per query and key")
    return replace(match, mask=per_key)


def _why_not(query: Heads, key: Heads, value: Heads) -> str | None:
    """The operator repeats key heads, and broadcasts nothing."""
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
    """The heads that were transposed to [B, N, D, S], without what only repeats or scales them."""
    value, outer = scaled(value)
    transpose = made_by(value, "Transpose")
    if transpose is None:
        return None, outer
    order = permutation(transpose)
    if order == [0, 2, 3, 1]:  # [B, S, N, D] at once
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
    """Neither continues a cache, or both do by as many rows."""
    if key.cache is None or value.cache is None:
        return key.cache is value.cache
    keys, values = dims(key.value, 4), dims(value.value, 4)
    return keys is not None and values is not None and known_equal(keys[2], values[2])


def _whole(heads: Heads) -> Heads:
    """With what the cache held before, as one value."""
    return heads if heads.cache is None else Heads(heads.cache.present, None)


def _batch_and_heads(heads: Heads) -> tuple[int | ir.SymbolicDim, int] | None:
    if heads.rows is not None:
        shape = dims(heads.rows.value, 3)
        return None if shape is None else (shape[0], heads.rows.heads)
    shape = dims(heads.value, 4)
    return (shape[0], shape[1]) if shape is not None and isinstance(shape[1], int) else None


def _fits(mask: ir.Value, scores: ir.Value) -> bool:
    """The operator broadcasts a mask over batch and heads, not over queries and keys."""
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
    """The sum with the mask may be larger than the scores."""
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
    """As a graph output. Others read the value that the operator's inputs may depend on."""
    owner = node.graph
    assert owner is not None
    if old.is_graph_output():
        owner.outputs[[*owner.outputs].index(old)] = new
        old.name, new.name = new.name, old.name


attention: Rule[Match] = Rule("attention", frozenset({"MatMul"}), check, attend)

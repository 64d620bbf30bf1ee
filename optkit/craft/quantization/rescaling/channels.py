"""Labels: the channel of each element of a value, followed backwards through layout operators.

A factor per channel of one value (for example [K]) is a factor for *some* elements of the values
from which it is computed. Labels describe these: an integer array with the rank of the value and
size 1 along axes on which the factor does not depend. An entry k means "channel k of the first
value", -1 "unchanged".

    v [1,1,KV·D] ─Reshape─> [1,1,KV,1,D] ─Expand─> [1,1,KV,G,D] ─Reshape─> o [1,1,H·D]
    each channel of v belongs to G channels of o: they must share a factor (`ties`)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

Dims = tuple[int | str | None, ...]
"""A shape: sizes, names of dynamic axes, None if nothing is known."""


def dims(value: ir.Value | None) -> Dims | None:
    """The shape of the value; None if its rank is unknown."""
    if value is None or value.shape is None:
        return None
    return tuple(d if isinstance(d, int) else d.value for d in value.shape)


def of_axis(rank: int, axis: int, channels: int) -> np.ndarray:
    """Labels 0, 1, … along one axis."""
    shape = [1] * rank
    shape[axis] = channels
    return np.arange(channels).reshape(shape)


def compressed(labels: np.ndarray) -> np.ndarray:
    """The same labels with size 1 along every axis along which they do not differ."""
    for axis in range(labels.ndim):
        first = labels.take([0], axis)
        if labels.shape[axis] > 1 and (labels == first).all():
            labels = first
    return labels


def of_operand(labels: np.ndarray, shape: Dims | None) -> np.ndarray | None:
    """Labels of an operand that is broadcast to the result; None if it is broadcast along an axis
    along which they differ."""
    if shape is None:
        return None
    missing = labels.ndim - len(shape)
    if missing < 0 or any(size != 1 for size in labels.shape[:missing]):
        return None
    kept = labels.reshape(labels.shape[missing:])
    sizes: tuple[int, ...] = kept.shape
    return kept if all(a in (1, b) for a, b in zip(sizes, shape, strict=True)) else None


def before_transpose(labels: np.ndarray, permutation: Sequence[int]) -> np.ndarray:
    return labels.transpose(np.argsort(permutation))


def before_reshape(labels: np.ndarray, source: Dims, result: Dims) -> np.ndarray | None:
    """Labels before a Reshape from `source` to `result`; None if they cannot be determined.

    The axes fall into blocks of equal size (from the right). Blocks in which the labels differ must
    have static sizes.
    """
    spread: list[int] = []  # the axes of the result, with all elements where the labels differ
    folded: list[int] = []  # those of the source
    for left, right in _blocks(source, result):
        old, new = source[left], result[right]
        if all(size == 1 for size in labels.shape[right]):
            spread[:0], folded[:0] = [1] * len(new), [1] * len(old)
            continue
        if _product(old) is None or _product(old) != _product(new):
            return None
        spread[:0] = [size for size in new if isinstance(size, int)]
        folded[:0] = [size for size in old if isinstance(size, int)]
    return compressed(np.broadcast_to(labels, spread).reshape(folded))


def before_expand(
    labels: np.ndarray, source: Dims
) -> tuple[np.ndarray, list[tuple[int, int]]] | None:
    """Labels of the value before an Expand, and the pairs of channels that share an element after
    it."""
    missing = labels.ndim - len(source)
    ties: list[tuple[int, int]] = []
    for axis in range(labels.ndim):
        grown = axis < missing or source[axis - missing] == 1
        if labels.shape[axis] == 1 or not grown:
            continue
        first = labels.take([0], axis)
        pairs = np.stack(np.broadcast_arrays(first, labels)).reshape(2, -1).T
        pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
        if (pairs < 0).any():
            return None  # one copy does not change and another one does
        ties += [(int(a), int(b)) for a, b in pairs]
        labels = first
    return labels.reshape(labels.shape[missing:]), ties


def before_selection(
    labels: np.ndarray, source: Dims, axis: int, chosen: np.ndarray
) -> np.ndarray | None:
    """Labels of the value from which `chosen` (distinct indices along `axis`) was selected: -1 for
    the other indices."""
    size = source[axis]
    if not isinstance(size, int) or len(np.unique(chosen % size)) != len(chosen):
        return None
    shape = list(labels.shape)
    shape[axis] = len(chosen)
    kept = np.broadcast_to(labels, shape)
    shape[axis] = size
    all_labels = np.full(shape, -1)
    index: list[slice | np.ndarray] = [slice(None)] * labels.ndim
    index[axis] = chosen % size
    all_labels[tuple(index)] = kept
    return all_labels


def classes(channels: int, ties: Sequence[tuple[int, int]]) -> np.ndarray:
    """int [channels]: channels that must share a factor have the same number, the smallest of
    them."""
    parent = np.arange(channels)

    def root(k: int) -> int:
        while parent[k] != k:
            k = parent[k]
        return int(k)

    for a, b in ties:
        low, high = sorted((root(a), root(b)))
        parent[high] = low
    return np.array([root(k) for k in range(channels)])


def _blocks(source: Dims, result: Dims) -> list[tuple[slice, slice]]:
    """Axes of both shapes in blocks of equal size, the last first: as many as can be determined
    from the right, then from the left. The axes between them are a block too."""
    right = _suffixes(source, result)
    i, j = len(source) - sum(m for m, _ in right), len(result) - sum(n for _, n in right)
    left = _suffixes(source[:i][::-1], result[:j][::-1])
    between = i - sum(m for m, _ in left), j - sum(n for _, n in left)
    blocks = []
    i, j = len(source), len(result)
    for m, n in (*right, between, *reversed(left)):
        blocks.append((slice(i - m, i), slice(j - n, j)))
        i, j = i - m, j - n
    return blocks


def _suffixes(source: Dims, result: Dims) -> list[tuple[int, int]]:
    """The number of axes that each block takes from the ends of both shapes, as far as it can be
    determined."""
    sizes: list[tuple[int, int]] = []
    i, j = len(source), len(result)
    while i and j:
        m = n = 1
        while not _match(source[i - m : i], result[j - n : j]):
            a, b = _product(source[i - m : i]), _product(result[j - n : j])
            if a is None or b is None or (m == i if a < b else n == j):
                return sizes
            m, n = (m + 1, n) if a < b else (m, n + 1)
        sizes.append((m, n))
        i, j = i - m, j - n
    return sizes


def _match(a: Dims, b: Dims) -> bool:
    """Whether both have the same number of elements; a dynamic axis equals only itself."""
    product = _product(a)
    return product == _product(b) if product is not None else a == b and None not in a


def _product(shape: Dims) -> int | None:
    """Number of elements, if all axes are static."""
    product = 1
    for size in shape:
        if not isinstance(size, int):
            return None
        product *= size
    return product

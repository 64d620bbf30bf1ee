"""Padding: which tokens of a feed are real, and which axes of a value count tokens.

    attention_mask  int64 [batch, sequence]         1 for a token, 0 for padding
    hidden state    float [batch, sequence, 64]     compared where the mask is 1
    scores          float [batch, 2, sequence, sequence]
    pooled          float [batch, 64]               has no padding
    frames          float [batch, (sequence - 1)//8 + 1, 64]    the places of a text of its length

Nothing reads what a model computes at padded positions. So ranges and comparisons do not include
them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from optkit.facts.tensors import Feed, TensorInfo, axes_of, size_of

_MASK = re.compile(r"(^|[._/])([a-z]+_)?mask$")
_OTHER = re.compile("pad|mlm|label|masked|^encoder_")
_OF_TORCH = re.compile(r"(^|[._/])(src_|tgt_)?key_padding_mask$")


def mask_input(inputs: Collection[TensorInfo]) -> TensorInfo | None:
    """The input that marks real tokens: its name ends in "mask", integers or bool, [batch, tokens].

    1 is a real token, as in all exported language models. Names about padding (where 1 often means
    the opposite), about the mask of a loss or, in a decoder, about the tokens of the encoder are
    not accepted.
    """
    for info in inputs:
        name = info.name.lower()
        named = _MASK.search(name) is not None and _OTHER.search(name) is None
        whole = info.dtype == "bool" or info.dtype.startswith("int")
        if named and whole and len(info.shape) == 2:
            return info
    return None


def _mask_of_torch(inputs: Collection[TensorInfo]) -> TensorInfo | None:
    """The input that marks padding by True under the name that `torch.nn.Transformer` has for it:
    [batch, tokens]. Of two, that of the target, whose tokens the output has."""
    found = [
        info
        for info in inputs
        if info.dtype == "bool" and len(info.shape) == 2 and _OF_TORCH.search(info.name.lower())
    ]
    return min(found, key=lambda info: "tgt_" not in info.name.lower(), default=None)


def real_tokens(feed: Feed, mask: TensorInfo | None) -> np.ndarray | None:
    """bool [samples, tokens] from the mask; None if it is not a mask of zeros and ones, or masks
    nothing, or everything."""
    if mask is None or mask.name not in feed:
        return None
    given = feed[mask.name]
    sound = ((given == 0) | (given == 1)).all() and given.any() and not given.all()
    if not sound:
        return None
    real: np.ndarray = (given == 0) if _OF_TORCH.search(mask.name.lower()) else (given == 1)
    return real


def text_lengths(samples: Sequence[np.ndarray]) -> np.ndarray:
    """The tokens of each sample that are not padding, of ids [batch, tokens] without a mask.

    Padding is the id that more than half of the samples repeat at their end, or else at their
    beginning. Without such an id, all tokens are real.
    """
    rows = [row for ids in samples for row in ids]
    lengths = np.array([len(row) for row in rows])
    for way in (slice(None, None, -1), slice(None)):
        turned = [row[way] for row in rows]
        ends = [int(row[0]) for row in turned if len(row) > 1 and row[0] == row[1]]
        if len(ends) * 2 > len(rows):
            pad = int(np.bincount(np.abs(ends)).argmax())
            return np.array([_unpadded(row, pad) for row in turned])
    return lengths


def _unpadded(row: np.ndarray, pad: int) -> int:
    real = np.flatnonzero(row != pad)
    return len(row) - int(real[0]) if real.size else 0


@dataclass(frozen=True)
class TokenAxes:
    """The axes of a model that count samples and tokens, as its inputs declare them.

    A decoder's mask counts the tokens of the cache too ("past_sequence + sequence"), and other
    values count a part of them.
    """

    mask: TensorInfo
    inputs: tuple[TensorInfo, ...]

    @classmethod
    def of(cls, inputs: Collection[TensorInfo]) -> Self | None:
        """None for a model without a mask."""
        mask = mask_input(inputs) or _mask_of_torch(inputs)
        return None if mask is None else cls(mask, tuple(inputs))

    def axes(self, shape: Sequence[int | str]) -> tuple[int, ...]:
        """The axes of a value of this declared shape, [batch, …], that count tokens.

        They are found by name. If the mask has a fixed number of tokens, it is the first axis of
        that size after the batch, in values with three or more axes (a pooled value with two axes
        may have this size by chance).
        """
        samples, tokens = self.mask.shape
        if len(shape) < 2 or shape[0] != samples:
            return ()
        if isinstance(tokens, int):
            fitting = (axis for axis in range(1, len(shape)) if shape[axis] == tokens)
            return tuple([*fitting][:1]) if len(shape) > 2 else ()
        known = set(axes_of([tokens]))
        return tuple(
            axis
            for axis, dim in enumerate(shape)
            if axis and isinstance(dim, str) and known.issuperset(axes_of([dim]))
        )

    def real(self, feed: Feed, dim: int | str) -> np.ndarray:
        """bool [samples, size of `dim`], for an axis found by `axes`: False for padding."""
        masked = real_tokens(feed, self.mask)
        real = np.ones(feed[self.mask.name].shape, bool) if masked is None else masked
        if isinstance(dim, int):
            return real
        sizes = self._sizes(feed)
        terms, first = axes_of(self.mask.shape[1:]), axes_of([dim])[0]
        start = sum(sizes[term] for term in terms[: terms.index(first)])
        return real[:, start : start + size_of(dim, sizes)]

    def hidden(self, feed: Feed, declared: TensorInfo, shape: tuple[int, ...]) -> np.ndarray | None:
        """Which elements of a value, given its declared shape and its actual shape, are padding:
        bool [samples, …] that broadcasts to `shape`; None if there are none.

        If the axes of a value have names that no input has (some exporters invent names), they are
        found by size, like fixed axes.
        """
        tokens, dims = self, declared.shape
        if len(dims) != len(shape) or not self._names(dims):
            tokens = replace(self, mask=replace(self.mask, shape=feed[self.mask.name].shape))
            dims = shape
        hidden: np.ndarray | None = None
        places = {axis: tokens.real(feed, dims[axis]) for axis in tokens.axes(dims)}
        for axis, dim in enumerate(declared.shape if len(declared.shape) == len(shape) else ()):
            if axis not in places and (kept := self._strided(feed, dim)) is not None:
                places[axis] = kept
        for axis, real in places.items():
            padded = ~real
            if padded.any() and padded.shape == (shape[0], shape[axis]):
                spread = [1] * len(shape)
                spread[0], spread[axis] = padded.shape
                hidden = padded.reshape(spread) | (False if hidden is None else hidden)
        return hidden

    def _strided(self, feed: Feed, dim: int | str) -> np.ndarray | None:
        """bool [samples, size of `dim`] for a dimension that is computed from the number of tokens,
        as strides make it: a text of n tokens alone has so many places. None for another dimension,
        and if padding is not behind the tokens."""
        axis, masked = self.mask.shape[1], real_tokens(feed, self.mask)
        if masked is None or isinstance(dim, int) or isinstance(axis, int):
            return None
        if axis not in dim or axis == dim:
            return None
        from optkit.ground import graph  # loads onnx, and few samples have such outputs

        counts = masked.sum(axis=1)
        behind = np.array_equal(masked, np.arange(masked.shape[1]) < counts[:, None])
        known = {n: graph.evaluated(dim, {axis: n}) for n in {masked.shape[1], *counts.tolist()}}
        if not behind or None in known.values():
            return None
        places = np.array([known[n] for n in counts.tolist()])
        real: np.ndarray = np.arange(known[masked.shape[1]] or 0) < places[:, None]
        return real

    def _names(self, dims: Sequence[int | str]) -> bool:
        """Whether every axis of these belongs to an input."""
        named = {axis for info in self.inputs for axis in axes_of(info.shape)}
        return named.issuperset(axes_of(dims))

    def _sizes(self, feed: Feed) -> Mapping[str, int]:
        """The sizes of the inputs' axes in a feed."""
        return {
            dim: size
            for info in self.inputs
            if info.name in feed
            for dim, size in zip(info.shape, feed[info.name].shape, strict=False)
            if isinstance(dim, str)
        }

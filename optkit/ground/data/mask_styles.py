"""Masks among the inputs of a model, and the ways in which they can be filled.

prefix     1 1 1 0 0     tokens first, padding behind them, other lengths in other rows
all        1 1 1 1 1     nothing is masked
none       0 0 0 0 0     one row without any token, the others as they are
infinite   0 0 0 -∞ -∞   of a mask of floats, which is added to scores
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from optkit.facts.tensors import Feed, InputSpec, batched
from optkit.ground.data.sequences import IDS, MASK, POSITIONS, positions

Style = Literal["prefix", "all", "none", "infinite"]

AT_HIDDEN = "only at tokens that a mask hides"
_NAME = re.compile("mask|visible|valid|(^|_)pad(ding|ded)?(_|$)")
_BITS = ((0, 1), None)


def styles(specs: Sequence[InputSpec]) -> list[Style]:
    """The ways to fill the masks of a model; empty if it has no masks."""
    found: list[Style] = []
    if any(_is_mask(spec) for spec in specs):
        found += ["prefix", "all", "none"]
    if any(_is_float_mask(spec) for spec in specs):
        found.append("infinite")
    return found


def filled(feed: Feed, specs: Sequence[InputSpec], style: Style) -> Feed:
    """The feed with its masks filled in this way. Positions follow the mask, as those of a
    decoder."""
    whole, own = dict(feed), batched([spec.info for spec in specs])
    for spec in specs:
        mask = feed[spec.info.name]
        if style == "infinite" and _is_float_mask(spec):
            hidden = np.where(_prefix(mask.shape), 0, -np.inf)
            whole[spec.info.name] = hidden.astype(mask.dtype)
        elif style != "infinite" and _is_mask(spec) and (style != "none" or spec.info.name in own):
            whole[spec.info.name] = _filled(mask, style, _means_padding(spec))
    if POSITIONS in feed and MASK in feed:
        given = feed[POSITIONS]
        whole[POSITIONS] = positions(whole[MASK], given.shape[-1], given.dtype.name)
    return whole


def with_tokens(feed: Feed, specs: Sequence[InputSpec]) -> Feed:
    """The feed with a token in each row of its masks: without one, what attention computes is not
    defined."""
    whole = dict(feed)
    for spec in specs:
        if _is_mask(spec):
            padding = _means_padding(spec)
            real = (feed[spec.info.name] != 0) ^ padding
            real[..., :1] |= ~real.any(axis=-1, keepdims=True)
            whole[spec.info.name] = (real ^ padding).astype(feed[spec.info.name].dtype)
    return whole


def seen_places(
    feed: Feed, specs: Sequence[InputSpec], shape: tuple[int, ...]
) -> Iterator[tuple[np.ndarray, str]]:
    """Where an output of this shape belongs to tokens that the masks [batch, tokens] of the feed
    show: bool arrays that broadcast to the shape, and in words where they are false. What attention
    computes for a hidden token is not defined: torch's kernels give 0, or a mean of all values.

    First each axis that has a place per token, or one per new token behind those of a cache; then
    whole samples."""
    batch = batched([spec.info for spec in specs])
    new = {array.shape[-1] for name, array in feed.items() if name == IDS}
    for spec in specs:
        mask = feed[spec.info.name]
        if not _is_mask(spec) or spec.info.name not in batch or shape[:1] != mask.shape[:1]:
            continue
        real = (mask != 0) ^ _means_padding(spec)
        ones = (1,) * (len(shape) - 1)
        for axis, size in enumerate(shape[1:] if real.ndim == 2 and not real.all() else ()):
            if size == real.shape[1] or size in new:
                tokens = real[:, real.shape[1] - size :]
                place = (len(real), *ones[:axis], size, *ones[axis + 1 :])
                yield tokens.reshape(place), AT_HIDDEN
        if not (rows := real.reshape(len(real), -1).any(axis=1)).all():
            yield rows.reshape(-1, *ones), "only for samples whose mask hides everything"


def _is_mask(spec: InputSpec) -> bool:
    info = spec.info
    named = _NAME.search(info.name.lower()) is not None
    bits = info.dtype.startswith(("int", "uint")) and spec.range in _BITS and named
    return len(info.shape) > 1 and (info.dtype == "bool" or bits)


def _is_float_mask(spec: InputSpec) -> bool:
    info = spec.info
    named = _NAME.search(info.name.lower()) is not None
    return named and info.dtype.startswith("float") and spec.range is None and len(info.shape) > 1


def _means_padding(spec: InputSpec) -> bool:
    """Whether 1 is padding, as in torch, and not a token, by the name."""
    return "pad" in spec.info.name.lower()


def _filled(mask: np.ndarray, style: Style, padding: bool) -> np.ndarray:
    if style == "none":
        real = (mask != 0) ^ padding
        real[:1] = False
    else:
        real = _prefix(mask.shape) if style == "prefix" else np.ones(mask.shape, bool)
    found: np.ndarray = (real ^ padding).astype(mask.dtype)
    return found


def _prefix(shape: tuple[int, ...]) -> np.ndarray:
    """True for the first tokens along the last axis, at least one: their number differs from row to
    row."""
    *rows, tokens = shape
    count = int(np.prod(rows))
    real = tokens - np.arange(1, count + 1) % max(tokens // 2 + 1, 1)
    prefix: np.ndarray = np.arange(tokens) < np.maximum(real, 1)[:, None]
    return prefix.reshape(shape)

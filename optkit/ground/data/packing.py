"""Token ids as rectangles: packed into blocks, padded, or divided into windows for perplexity.

pack      one stream divided into blocks of one length; only the last partial block is left out
pad       one row per text, filled up to one length on the left or the right
windows   a stream in overlapping windows; each token except the first is a target once, with as
          much context as its window has
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import Feed
from optkit.ground.data.reading import Inputs, groups
from optkit.ground.data.sequences import IDS, MASK

IGNORED = -100
"""The label of a position that is not scored, as in torch's cross_entropy."""


@dataclass(frozen=True)
class TokenBatch:
    """A batch: ids, mask (1: a token, 0: padding) and segments, each int64 [batch, length]."""

    ids: np.ndarray
    mask: np.ndarray
    segments: np.ndarray

    def feed(self, inputs: Inputs | None) -> Feed:
        """The inputs of the model, in its dtypes: input_ids, attention_mask, token_type_ids,
        position_ids (counted from the first real token). If the model has a single input with
        another name, this input gets the ids.

        Raises InputRefused if no input takes the ids, and for padding on the left without a mask,
        because each real token would attend to it. (Padding on the right comes after the tokens of
        a decoder, and an encoder without a mask recognises padding by its id.)
        """
        known = {
            IDS: self.ids,
            MASK: self.mask,
            "token_type_ids": self.segments,
            "position_ids": np.maximum(self.mask.cumsum(1) - 1, 0),
        }
        if inputs is None:
            return {IDS: self.ids, MASK: self.mask}
        if MASK not in inputs and not self.mask[:, 0].all():
            raise InputRefused(
                f"texts are padded on the left, and the model has no input {MASK} to mask it",
                hint="args.padding_side: right, or texts of one length (args.pack: true)",
            )
        if len(inputs) == 1:
            ((name, info),) = inputs.items()
            return {name: self.ids.astype(info.dtype)}
        if IDS not in inputs:
            raise InputRefused(
                f"the model has no input {IDS!r}",
                hint=f"its inputs are {', '.join(inputs)}; write your own source for them",
            )
        return {
            name: known[name].astype(info.dtype) for name, info in inputs.items() if name in known
        }


def pack(stream: Iterable[int], length: int) -> Iterator[list[int]]:
    """Blocks of `length` ids of a stream."""
    return (block for block in groups(stream, length) if len(block) == length)


def pad(
    texts: Sequence[Sequence[int]],
    *,
    value: int,
    side: str,
    length: int | None = None,
    segments: Sequence[Sequence[int]] | None = None,
) -> TokenBatch:
    """Rows of one length: `length`, or that of the longest text. They are filled with `value`,
    whose mask is 0."""
    width = length or max(1, *map(len, texts))
    ids = np.full((len(texts), width), value, np.int64)
    mask, kinds = np.zeros_like(ids), np.zeros_like(ids)
    for row, text in enumerate(texts):
        place = span(len(text), width, side)
        ids[row, place], mask[row, place] = text, 1
        if segments is not None:
            kinds[row, place] = segments[row]
    return TokenBatch(ids, mask, kinds)


def span(count: int, width: int, side: str) -> slice:
    """The (start, stop) of `count` tokens in a row that is padded on `side`."""
    return slice(width - count, width) if side == "left" else slice(0, count)


def full(blocks: Sequence[Sequence[int]]) -> TokenBatch:
    """Blocks of equal length without padding."""
    ids = np.asarray(blocks, np.int64)
    return TokenBatch(ids, np.ones_like(ids), np.zeros_like(ids))


def windows(
    stream: Iterable[int], length: int, stride: int
) -> Iterator[tuple[list[int], np.ndarray]]:
    """(ids, targets int64 [length]) of each window; the last one may have fewer ids.

    targets[t] is the token that position t has to predict, or IGNORED. Windows start `stride`
    apart; the last `stride` tokens of each window are its targets, in the first window all tokens.
    A token without context in its window is not a target (the first token; with stride = length the
    first of every window). Source: Hugging Face's "Perplexity of fixed-length models".
    """
    ids = iter(stream)
    held = new = list(islice(ids, length))
    while new:
        scored = held[max(1, len(held) - len(new)) :]
        targets = np.full(length, IGNORED, np.int64)
        targets[len(held) - 1 - len(scored) : len(held) - 1] = scored
        yield held, targets
        new = list(islice(ids, stride))
        held = [*held[stride:], *new]

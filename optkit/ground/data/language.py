"""Text for the evaluation of a language model token by token.

Labels are int64 [batch, length]: the token that each position has to predict, −100 for positions
that are not scored.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import numpy as np

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import Feed
from optkit.ground.data import packing, reading, rows, text, tokens
from optkit.ground.data.checking import Item, item
from optkit.ground.data.packing import IGNORED
from optkit.ground.data.reading import Inputs
from optkit.ground.data.tokens import Side


def windows(
    path: Path,
    field: str = rows.TEXT,
    length: int | None = None,
    stride: int | None = None,
    eos: str | None = None,
    tokenizer: Path | None = None,
    model: str | None = None,
    inputs: Inputs | None = None,
) -> Iterator[Item]:
    """All of a file as one stream of tokens, in windows of `length` that start `stride` apart
    (default: half of it). The last window is filled up on the right.

    A text file is one text; of other files each row's `field` is one, with the end-of-sequence
    token (`eos`, default the tokenizer's own) in between. The windows of one row are a group: a
    window belongs to the row of its first token that counts.
    """
    spoken = tokens.load(tokenizer, model)
    width = text.fixed_length(length, inputs)
    if width is None:
        hint = "args.length: tokens per window, e.g. 512"
        raise InputRefused("perplexity needs args.length", hint=hint)
    step = width // 2 if stride is None else stride
    if not 1 <= step <= width:
        reason = f"a stride of {step} for windows of {width} tokens"
        raise InputRefused(reason, hint="args.stride: from 1 to the length")
    begins: list[int] = []
    stream = text.stream(path, field, spoken, eos, begins)
    first = list(islice(stream, 2))
    if len(first) < 2:
        raise InputRefused(
            f"the text has only {len(first)} tokens", where=str(path), hint="give more text"
        )
    cut = packing.windows(chain(first, stream), width, step)
    number = 0
    for some in reading.grouped(cut, inputs):
        ids, targets = zip(*some, strict=True)
        batch = packing.pad(ids, value=_fill(spoken), side="right", length=width)
        # the place of the first token that counts, in each window but the first
        counted = (number + np.arange(len(some))) * step + width - step
        number += len(some)
        texts = np.searchsorted(begins, counted, side="right") if begins else None
        yield item(batch.feed(inputs), np.stack(targets), None, texts)


def answers(
    path: Path,
    prompt: str = "prompt",
    answer: str = "answer",
    length: int | None = None,
    padding_side: Side | None = None,
    tokenizer: Path | None = None,
    model: str | None = None,
    inputs: Inputs | None = None,
) -> Iterator[tuple[Feed, np.ndarray]]:
    """A prompt with its answer per row, padded to `length` (default 256); only the tokens of the
    answer are scored. The answer directly follows the prompt, so a space between them must be part
    of it.

    Raises InputRefused with the row that is too long.
    """
    spoken = tokens.load(tokenizer, model)
    width = text.fixed_length(length, inputs) or 256
    side = padding_side or spoken.side
    for group in reading.grouped(rows.rows(path, (prompt, answer)), inputs):
        prompts = spoken.encode([row.text(prompt) for row in group])
        replies = spoken.encode([row.text(answer) for row in group], special=False)
        texts = []
        labels = np.full((len(group), width), IGNORED, np.int64)
        for index, (row, before, after) in enumerate(zip(group, prompts, replies, strict=True)):
            both = before.ids + after.ids
            if len(both) > width or not before.ids or not after.ids:
                reason = f"a prompt of {len(before.ids)} and an answer of {len(after.ids)} tokens"
                hint = f"both together may have {width}, each at least one; see args.length"
                raise InputRefused(reason, where=row.where, hint=hint)
            texts.append(both)
            last = packing.span(len(both), width, side).stop - 1
            labels[index, last - len(after.ids) : last] = after.ids
        yield packing.pad(texts, value=_fill(spoken), side=side, length=width).feed(inputs), labels


def _fill(spoken: tokens.Tokenizer) -> int:
    fill = spoken.pad if spoken.pad is not None else spoken.end
    return fill or 0

"""Texts as a model's inputs: packed, padded, in pairs or word by word, with labels if needed.

samples   the texts of a file, for calibration
pairs     the two texts of each row as two consecutive samples, with a gold score
tagged    texts given as words, with a label for each word
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import Feed
from optkit.ground.data import packing, reading, rows, streaming, targets, tokens
from optkit.ground.data.checking import Item, item
from optkit.ground.data.classes import class_number, model_classes
from optkit.ground.data.packing import IGNORED, TokenBatch
from optkit.ground.data.parts import DECODER_IDS
from optkit.ground.data.reading import Inputs
from optkit.ground.data.rows import Row
from optkit.ground.data.tokens import EncodedText, Side, Tokenizer

_TAGGED = 128
_AT_ONCE = 64  # texts that are encoded in one call


def samples(
    path: Path,
    field: str | list[str] = rows.TEXT,
    target: str | None = None,
    length: int | None = None,
    pack: bool = False,
    eos: str | None = None,
    padding_side: Side | None = None,
    tokenizer: Path | None = None,
    model: str | None = None,
    inputs: Inputs | None = None,
) -> Iterator[Feed]:
    """Feeds of token ids from a .txt, .jsonl, .csv, .tsv or .parquet file.

    field: the column of the text, or the two columns of a pair. target: for an encoder-decoder, the
    column of the target text; a feed then has decoder_input_ids. length: tokens per sample
    (default: the model's fixed length; else, padded, the longest of a batch). pack: concatenate all
    texts, with the end-of-sequence token (`eos`, default the tokenizer's) between them, and divide
    them into blocks of `length`; without it a text is a sample, cut or padded on `padding_side`
    (default the tokenizer's). Each line of a .txt file is a text; packed, the whole file is one
    text. tokenizer: a folder or a tokenizer.json (default: the model's).

    Raises InputRefused with file and line of text that cannot be read.
    """
    spoken = tokens.load(tokenizer, model)
    length = fixed_length(length, inputs)
    written = targets.column(target, inputs)
    if pack:
        if written:
            raise InputRefused("texts with a target cannot be packed", hint="leave out args.pack")
        blocks = packing.pack(stream(path, field, spoken, eos), _wanted(length))
        for some in reading.grouped(blocks, inputs):
            yield packing.full(some).feed(inputs)
        return
    most = length or spoken.longest
    for group in reading.grouped(rows.rows(path, [*_fields(field), *written]), inputs):
        encoded = spoken.encode([_texts(row, field) for row in group], length=most)
        feed = padded(encoded, spoken, length, padding_side).feed(inputs)
        for name in written:
            wanted = spoken.encode([row.text(name) for row in group], length=most)
            ids = [text.ids for text in wanted]
            feed[DECODER_IDS] = targets.shifted(ids, spoken, model, inputs)
        yield feed


def pairs(
    path: Path,
    fields: Sequence[str] = ("sentence1", "sentence2"),
    score: str | None = "score",
    length: int | None = None,
    padding_side: Side | None = None,
    tokenizer: Path | None = None,
    model: str | None = None,
    inputs: Inputs | None = None,
) -> Iterator[tuple[Feed, np.ndarray]]:
    """Two consecutive samples per row, with one text each.

    Labels float64 [batch, 3]: the gold score in column `score` (0 without one), and the start and
    the stop of the tokens that are not padding.
    """
    spoken = tokens.load(tokenizer, model)
    length = fixed_length(length, inputs)
    side = padding_side or spoken.side
    wanted = [*fields, *([score] if score else [])]
    both = (
        (row.text(name), _number(row, score)) for row in rows.rows(path, wanted) for name in fields
    )
    for group in reading.grouped(both, inputs):
        encoded = spoken.encode([text for text, _ in group], length=length or spoken.longest)
        batch = padded(encoded, spoken, length, side)
        spans = [packing.span(len(text.ids), batch.ids.shape[1], side) for text in encoded]
        gold = [number for _, number in group]
        labels = [(a, span.start, span.stop) for a, span in zip(gold, spans, strict=True)]
        yield batch.feed(inputs), np.asarray(labels, np.float64)


def tagged(
    path: Path,
    words: str = "tokens",
    tags: str = "tags",
    classes: list[str] | None = None,
    length: int | None = None,
    padding_side: Side | None = None,
    tokenizer: Path | None = None,
    model: str | None = None,
    inputs: Inputs | None = None,
) -> Iterator[tuple[Feed, np.ndarray]]:
    """Texts given as lists of words in column `words`, a class for each in column `tags`: a number,
    or one of the names in `classes` (default: the model's own).

    Labels int64 [batch, length]: the class at the first token of each word, elsewhere −100.
    """
    spoken = tokens.load(tokenizer, model)
    length = fixed_length(length, inputs) or min(_TAGGED, spoken.longest or _TAGGED)
    names = classes or model_classes(model)
    for group in reading.grouped(rows.rows(path, (words, tags)), inputs):
        texts = [_words(row, words) for row in group]
        encoded = spoken.encode(texts, length=length, words=True)
        side = padding_side or spoken.side
        labels = np.full((len(group), length), IGNORED, np.int64)
        for index, (row, text) in enumerate(zip(group, encoded, strict=True)):
            known = _tags(row, tags, names, len(texts[index]))
            labels[index, packing.span(len(text.ids), length, side)] = [
                IGNORED if word is None or word == before else known[word]
                for word, before in zip(text.words, [None, *text.words], strict=False)
            ]
        yield padded(encoded, spoken, length, side).feed(inputs), labels


def labelled(
    path: Path,
    *,
    field: str | list[str],
    label: str,
    slice: str | None = None,
    group: str | None = None,
    classes: list[str] | None,
    length: int | None,
    padding_side: Side | None,
    tokenizer: Path | None,
    model: str | None,
    inputs: Inputs | None,
) -> Iterator[Item]:
    """One text per sample and its class, int64 [batch]: a number, or one of the names in `classes`
    (default: the model's), in the order of its outputs. The third and fourth items are its values
    in the columns `slice` and `group`, if they are named."""
    if rows.is_text(path):
        hint = "give a .jsonl, .csv, .tsv or .parquet file"
        raise InputRefused("plain text has no labels", where=str(path), hint=hint)
    spoken = tokens.load(tokenizer, model)
    names = classes or model_classes(model)
    length = fixed_length(length, inputs)
    columns = [*_fields(field), label, *filter(None, (slice, group))]
    for some in reading.grouped(rows.rows(path, columns), inputs):
        texts = [_texts(row, field) for row in some]
        encoded = spoken.encode(texts, length=length or spoken.longest)
        labels = [class_number(row.value(label), names, row.where) for row in some]
        slices, groups = (
            None if column is None else [str(row.value(column)) for row in some]
            for column in (slice, group)
        )
        feed = padded(encoded, spoken, length, padding_side).feed(inputs)
        yield item(feed, np.asarray(labels), slices, groups)


def stream(
    path: Path,
    field: str | list[str],
    spoken: Tokenizer,
    eos: str | None,
    begins: list[int] | None = None,
) -> Iterator[int]:
    """The whole file as one row of token ids, with the end-of-sequence token between two texts. A
    plain text file is one text. The places at which texts begin are added to `begins`."""
    if not isinstance(field, str):
        raise InputRefused("pairs cannot be packed", hint="args.field: one name")
    if rows.is_text(path):
        yield from chain.from_iterable(streaming.encoded(rows.document(path), spoken))
        return
    texts = (row.text(field) for row in rows.rows(path, [field]))
    groups = reading.groups(texts, _AT_ONCE)
    encoded = chain.from_iterable(spoken.encode(group, special=False) for group in groups)
    place = 0
    for index, text in enumerate(encoded):
        if begins is not None:
            begins.append(place)
        if index:
            yield spoken.ending(eos)
        yield from text.ids
        place += len(text.ids) + bool(index)


def padded(
    texts: Sequence[EncodedText], spoken: Tokenizer, length: int | None, side: Side | None
) -> TokenBatch:
    """Encoded texts as one batch of `length`, or of the longest length."""
    fill = spoken.pad if spoken.pad is not None else spoken.end
    return packing.pad(
        [text.ids for text in texts],
        value=fill or 0,
        side=side or spoken.side,
        length=length,
        segments=[text.segments for text in texts],
    )


def fixed_length(length: int | None, inputs: Inputs | None) -> int | None:
    """The given length, otherwise the fixed length of the model's token input.

    Raises InputRefused for an invalid length.
    """
    if length is not None and (not isinstance(length, int) or length < 1):
        raise InputRefused(f"length {length!r} is not a number of tokens", hint="e.g. length: 128")
    shape = next((info.shape for info in (inputs or {}).values() if len(info.shape) == 2), ())
    fixed = shape[1] if shape and isinstance(shape[1], int) else None
    return length or fixed


def _texts(row: Row, field: str | list[str]) -> Any:
    """The text of a row, or the two texts of a pair. Raises InputRefused."""
    return row.text(field) if isinstance(field, str) else tuple(map(row.text, field))


def _fields(field: str | list[str]) -> list[str]:
    if isinstance(field, str):
        return [field]
    if len(field) != 2:
        raise InputRefused(
            f"args.field has {len(field)} names", hint="args.field: one name, or two for a pair"
        )
    return field


def _wanted(length: int | None) -> int:
    if length is None:
        raise InputRefused("packing needs a length", hint="args.length: tokens per block, e.g. 512")
    return length


def _number(row: Row, field: str | None) -> float:
    if field is None:
        return 0.0
    value = row.value(field)
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise InputRefused(f"{field} {value!r} is not a number", where=row.where) from error


def _words(row: Row, field: str) -> list[str]:
    value = row.value(field)
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        hint = "token classification takes words as a list"
        raise InputRefused(f"field {field!r} is not a list of words", where=row.where, hint=hint)
    return value


def _tags(row: Row, field: str, classes: list[str] | None, count: int) -> list[int]:
    value = row.value(field)
    if not isinstance(value, list) or len(value) != count:
        reason = f"{len(value)} tags" if isinstance(value, list) else "no list of tags"
        raise InputRefused(f"field {field!r}: {reason} for {count} words", where=row.where)
    return [class_number(tag, classes, row.where) for tag in value]

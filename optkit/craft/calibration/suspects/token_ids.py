"""Findings about token ids and their mask, alone and compared with the evaluation data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from optkit.craft.calibration.suspects.profile import Mask, Profile, TokenInput
from optkit.facts.documents.data_finding import DataFinding
from optkit.facts.errors import InputRefused

_ENOUGH = 512  # the smallest number of tokens that shows their distribution
_MOST = 0.9
"""Share of one token among the tokens that are not padding. The most frequent word of a text has up
to 0.07 (Zipf's law); a space in a language model of characters has 0.2."""

_PART = 0.05
"""If all ids lie below this share of the vocabulary, it is a finding. At most, ids are sorted by
frequency, and then half of 512 tokens of a text are above the first twentieth."""

_LARGE = 1000  # rows of a vocabulary of words or word pieces; bytes and characters have fewer
_UNIFORM = 0.8  # share of the different ids that as many random tokens would have
_TOP = 0.01  # every text has a token that is more frequent than this (Zipf's law: 0.03 to 0.1)
# share of all tokens that repeat the last one at the end of their sample, without a mask
_PADDING = 0.25
_OTHER = 0.15
"""Overlap Σ min(p, q) of the tokens of two sets. English prose and Python code have 0.4; two
tokenizers of 2,048 tokens have 0.08, larger ones less."""

_LENGTH = 8.0  # ratio of median lengths, for example of sentences and whole pages


def refuse_unknown(x: TokenInput) -> None:
    """Raises InputRefused for an id that the model's table does not have."""
    if x.rows is None:
        return
    for number, sample in (x.largest, x.lowest):
        if not -x.rows <= number < x.rows:
            raise InputRefused(
                f"the token is {number}, but the model only has tokens 0 to {x.rows - 1}",
                where=f"sample {sample}, input {x.info.name!r}",
                hint="encode the texts with the model's tokenizer",
            )


def alone(x: TokenInput) -> Iterator[DataFinding]:
    """The first property that no text has."""
    for rule in (_one_token, _small_part, _random):
        finding = rule(x)
        if finding is not None:
            yield finding
            return


def hidden(mask: Mask) -> Iterator[DataFinding]:
    """A mask that hides complete samples, or that is not a mask."""
    name = mask.info.name
    if mask.odd:
        shown = " and ".join(f"{number:g}" for number in mask.odd)
        yield DataFinding(
            "mask",
            name,
            f"it contains {shown}; a mask is 1 for a token and 0 for padding",
            mask.odd[0],
            1,
            "give the tokenizer's own attention mask",
        )
    if mask.empty:
        yield DataFinding(
            "masked",
            name,
            f"{mask.empty} of {mask.samples} samples have no real token: their mask is all zeros",
            mask.empty,
            0,
            "the mask must be 1 for real tokens; remove empty texts",
        )


def unmasked(x: TokenInput, masked: bool) -> Iterator[DataFinding]:
    """Padding that counts as text. `masked`: whether the model has a mask for it."""
    if masked and x.trailing >= _PADDING and _top(x)[1] < _MOST:
        yield DataFinding(
            "padding",
            x.info.name,
            f"{x.trailing:.0%} of the tokens that are not masked only repeat the last one of their "
            "sample: padding without a mask",
            x.trailing,
            0,
            "give the tokenizer's own attention mask",
        )


def beside(x: TokenInput, other: TokenInput) -> Iterator[DataFinding]:
    """Calibration data compared with evaluation data."""
    if min(x.total, other.total) >= _ENOUGH and (shared := _overlap(x, other)) < _OTHER:
        yield DataFinding(
            "other tokens",
            x.info.name,
            f"calibration and evaluation data share {shared:.1%} of their tokens: other tokenizers "
            "or languages",
            shared,
            _OTHER,
            "use the model's own tokenizer, and texts like those in use",
        )
    ours, length = float(np.median(x.lengths)), float(np.median(other.lengths))
    if min(ours, length) > 0 and max(ours / length, length / ours) >= _LENGTH:
        yield DataFinding(
            "lengths",
            x.info.name,
            f"calibration samples have {ours:g} real tokens (the median), evaluation samples "
            f"{length:g}",
            ours,
            length,
            "calibrate on texts with the length of those in use",
        )


def tokens_of(profile: Profile, evaluation: Profile | None) -> Iterator[DataFinding]:
    """All findings about tokens and masks. Raises InputRefused, see `refuse_unknown`."""
    for mask in profile.masks.values():
        yield from hidden(mask)
    for name, ids in profile.tokens.items():
        refuse_unknown(ids)
        if not ids.text:
            continue
        yield from alone(ids)
        yield from unmasked(ids, bool(profile.masks))
        if evaluation is not None and name in evaluation.tokens:
            yield from beside(ids, evaluation.tokens[name])


def _one_token(x: TokenInput) -> DataFinding | None:
    number, share = _top(x)
    if share < _MOST or x.total <= len(x.lengths):
        return None
    return DataFinding(
        "one token",
        x.info.name,
        f"{share:.0%} of the real tokens are {number}",
        share,
        _MOST,
        "check the tokenizer and the mask: padding must be masked, text must not",
    )


def _small_part(x: TokenInput) -> DataFinding | None:
    if x.rows is None or x.rows < _LARGE or x.total < _ENOUGH:
        return None
    if x.largest[0] >= _PART * x.rows:
        return None
    return DataFinding(
        "vocabulary",
        x.info.name,
        f"no token is above {x.largest[0]}, the model knows {x.rows}",
        x.largest[0],
        x.rows,
        "encode the texts with the model's tokenizer",
    )


def _random(x: TokenInput) -> DataFinding | None:
    size = x.rows or x.largest[0] + 1
    if size < _LARGE or x.total < _ENOUGH:
        return None
    distinct = int((x.counts > 0).sum())
    uniform = size * -np.expm1(x.total * np.log1p(-1 / size))
    # the first and the last token of each sample may be special
    top = int(np.sort(x.counts)[-3:][0]) / x.total
    if distinct < _UNIFORM * uniform or top >= _TOP:
        return None
    return DataFinding(
        "random tokens",
        x.info.name,
        f"{distinct} of {x.total} tokens are different, as of random numbers ({uniform:.0f})",
        distinct,
        float(uniform),
        "calibrate on real texts",
    )


def _top(x: TokenInput) -> tuple[int, float]:
    """The most frequent token and its share."""
    if not x.total:
        return 0, 0.0
    number = int(np.argmax(x.counts))
    return number, float(x.counts[number] / x.total)


def _overlap(x: TokenInput, other: TokenInput) -> float:
    size = max(len(x.counts), len(other.counts))
    p, q = (np.pad(t.counts / t.total, (0, size - len(t.counts))) for t in (x, other))
    return float(np.minimum(p, q).sum())

"""One long text as token ids, part by part: memory does not grow with the text.

    part 1   …t₁ t₂ t₃ t₄ t₅ t₆
    part 2           t₃'t₄ t₅ t₆ t₇…       encoded with the end of part 1 before it

At the place where a text is divided, a tokenizer may return other tokens. So neighbouring parts
overlap, and they are joined inside a run of tokens that are equal in both, in ids and places. Parts
without such a run are encoded together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from optkit.ground.data.tokens import Tokenizer

_OVERLAP = 1 << 12  # in characters
_RUN = 16  # equal tokens in a row that both parts must have


def encoded(
    parts: Iterable[str], spoken: Tokenizer, *, overlap: int = _OVERLAP
) -> Iterator[list[int]]:
    """The ids of all parts together, one by one, without the special tokens of the template.

    A part is much longer than the `overlap`, or it is the last one.
    """
    parts = iter(parts)
    held = next(parts, "")
    before, start, more = _encode(held, spoken), 0, 1
    for part in parts:
        tail = held[-overlap:]
        after = _encode(tail + part, spoken)
        join = _agreement(before[start:], after, len(held) - len(tail))
        if join is None:
            held += part + "".join(islice(parts, more - 1))
            before, more = _encode(held, spoken), 2 * more
            continue
        first, second = join
        yield [token for token, _, _ in before[start : start + first]]
        held, before, start, more = tail + part, after, second, 1
    yield [token for token, _, _ in before[start:]]


_Placed = tuple[int, int, int]
"""The id of a token, and its start and stop in the text."""


def _encode(text: str, spoken: Tokenizer) -> list[_Placed]:
    (encoded,) = spoken.encode([text], special=False)
    return [(token, *place) for token, place in zip(encoded.ids, encoded.places, strict=True)]


def _agreement(before: list[_Placed], after: list[_Placed], shift: int) -> tuple[int, int] | None:
    """The indices, in both parts, of one token inside a run that both have. `shift`: by how many
    characters the second part starts later. The run is the first one after the middle of the
    overlap."""
    first = next((i for i, (_, start, _) in enumerate(before) if start >= shift), len(before))
    moved = [(token, start + shift, stop + shift) for token, start, stop in after]
    where = {each: place for place, each in enumerate(moved[: 2 * (len(before) - first) + _RUN])}
    for i in range((first + len(before)) // 2, len(before) - _RUN):
        j = where.get(before[i])
        if j is not None and before[i : i + _RUN] == moved[j : j + _RUN]:
            return i + _RUN // 2, j + _RUN // 2
    return None

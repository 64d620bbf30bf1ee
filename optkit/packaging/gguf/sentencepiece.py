"""SentencePiece's byte-pair encoding (Llama 2, early Mistral) as llama.cpp's tokenizer `llama`.

Of a text, with ▁ for spaces, SentencePiece always joins the two neighbours whose whole is the token
with the highest score. tokenizer.json lists the pairs instead, in the order of these scores. So the
place of its pairs gives a token its score, on two conditions: the pairs of a token stand together,
and every pair that makes a token is in the list. A list that was learned pair by pair meets
neither, and is refused.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from pathlib import Path

from optkit.packaging.gguf.tokenizer_file import Cut, Normalizer, TokenizerFile, unknown

BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))

_SPACE = "▁"
_FROM_SPACE = ("Replace", " ", _SPACE)
_PREFIX = ("Prepend", "", _SPACE)


def is_one(tokenizer: TokenizerFile) -> bool:
    return tokenizer.model.byte_fallback


def adds_space(tokenizer: TokenizerFile, file: Path) -> bool:
    """Whether a space is put before a text. Raises UsageError if texts are changed in another
    way."""
    steps = _steps(tokenizer.normalizer)
    cut = tokenizer.pre_tokenizer
    if cut is None and sorted(steps) in ([_FROM_SPACE], sorted((_PREFIX, _FROM_SPACE))):
        return _PREFIX in steps
    if cut is not None and not steps and _is_metaspace(cut):
        return cut.prepend_scheme != "never"
    raise unknown(file, "it changes or cuts texts in another way than SentencePiece")


def scores(tokenizer: TokenizerFile, file: Path) -> dict[str, float]:
    """Token → score; one that no pair makes has the score 0. Raises UsageError."""
    vocabulary = tokenizer.model.vocab
    if not vocabulary.keys() >= BYTES or tokenizer.model.ignore_merges:
        raise unknown(file, "it has no tokens for all bytes")
    added = {token.content for token in tokenizer.added_tokens}
    pairs = tokenizer.model.pairs()
    made = [left + right for left, right in pairs if left + right not in added]
    order = dict.fromkeys(made)
    changes = sum(one != following for one, following in pairwise(made))
    if changes + 1 > max(1, len(order)):
        raise unknown(file, "its merges are not in the order of a score of the tokens")
    missing = _missing(vocabulary.keys() - added - BYTES, vocabulary, set(pairs))
    if missing is not None:
        raise unknown(file, f"its merges lack {missing}, which makes one of its tokens")
    ranks = {token: -float(place) for place, token in enumerate(order, 1)}
    return {token: ranks.get(token, 0.0) for token in vocabulary}


def _missing(
    tokens: Collection[str], vocabulary: Collection[str], pairs: Collection[tuple[str, str]]
) -> tuple[str, str] | None:
    """A pair of tokens that makes one of these tokens and is not in the list."""
    for token in sorted(tokens):
        for at in range(1, len(token)):
            pair = token[:at], token[at:]
            if pair not in pairs and pair[0] in vocabulary and pair[1] in vocabulary:
                return pair
    return None


def _steps(normalizer: Normalizer | None) -> list[tuple[str, str, str]]:
    """Each step: its kind, what it replaces, and by what."""
    if normalizer is None:
        return []
    if normalizer.type == "Sequence":
        return [step for part in normalizer.parts for step in _steps(part)]
    replaced = normalizer.pattern.literal or normalizer.pattern.regex or ""
    return [(normalizer.type, replaced, normalizer.prepend or normalizer.content)]


def _is_metaspace(cut: Cut) -> bool:
    return cut.type == "Metaspace" and cut.replacement == _SPACE and not cut.split

"""SentencePiece's byte-pair encoding (Llama 2, early Mistral) as llama.cpp's tokenizer `llama`.

Of a text, with ▁ for spaces, SentencePiece always joins the two neighbours whose whole is the token
with the highest score, the first ones of equal ones. tokenizer.model has the scores. tokenizer.json
lists pairs instead, in the order of the scores; there a token gets its score from the place of its
pairs. Tokens whose pairs are mixed in the list have the same score, as runs of spaces have in
Llama 2. That holds only if every pair that makes a token is in the list, which is checked: a list
that was learned pair by pair is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from optkit.facts.errors import InputRefused
from optkit.road.packaging.gguf import sentencepiece_model
from optkit.road.packaging.gguf.tokenizer_file import (
    Normalizer,
    PreTokenizer,
    TokenizerFile,
    unknown,
)

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
    """Token → score; that of an added token is 0. `file`: tokenizer.json, with tokenizer.model
    beside it, if there is one. Raises UsageError, InputRefused."""
    vocabulary = tokenizer.model.vocab
    if not vocabulary.keys() >= BYTES or tokenizer.model.ignore_merges:
        raise unknown(file, "it has no tokens for all bytes")
    added = {token.content for token in tokenizer.added_tokens}
    model = file.with_name(sentencepiece_model.FILE)
    if not model.is_file():
        return dict.fromkeys(vocabulary, 0.0) | _from_pairs(tokenizer, added, file)
    found = sentencepiece_model.scores(model)
    if others := vocabulary.keys() - added - found.keys():
        raise InputRefused(
            f"the token {min(others)!r} of {file.name} is not in it: they belong to different "
            "tokenizers",
            where=str(model),
        )
    return {token: 0.0 if token in added else found[token] for token in vocabulary}


def _from_pairs(tokenizer: TokenizerFile, added: Collection[str], file: Path) -> dict[str, float]:
    vocabulary, pairs = tokenizer.model.vocab, tokenizer.model.pairs()
    missing = _missing(vocabulary.keys() - added - BYTES, vocabulary, set(pairs))
    if missing is not None:
        raise unknown(file, f"its merges lack {missing}, which makes one of its tokens")
    return _ranks([left + right for left, right in pairs if left + right not in added])


def _ranks(made: Sequence[str]) -> dict[str, float]:
    """Token → minus its place among the tokens that pairs make, in order. Tokens that overlap have
    the same place."""
    last = {token: place for place, token in enumerate(made)}
    ranks: dict[str, float] = {}
    group, end = 0, -1
    for place, token in enumerate(made):
        if place > end:
            group += 1
        end = max(end, last[token])
        ranks.setdefault(token, -float(group))
    return ranks


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


def _is_metaspace(cut: PreTokenizer) -> bool:
    return cut.type == "Metaspace" and cut.replacement == _SPACE and not cut.split

"""tokenizer.json as llama.cpp's tokenizer.

llama.cpp cuts a text into words with regular expressions that are compiled into it, under names
(src/llama-vocab.cpp). convert_hf_to_gguf.py recognizes a tokenizer by the digest of what it makes
of one text; here it is recognized by its own regular expressions, so that a tokenizer trained anew
is recognized too. Another tokenizer is refused: with a wrong name llama.cpp would tokenize
differently, and nobody would see it. SentencePiece's tokenizers are in `sentencepiece`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gguf import GGUFWriter, SpecialVocab, TokenType

from optkit.facts.errors import InputRefused
from optkit.road.packaging.gguf import sentencepiece
from optkit.road.packaging.gguf.tokenizer_file import FILE, PreTokenizer, TokenizerFile, unknown

_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_CAPITALS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEADING = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = (
    rf"{_LEADING}{_CAPITALS}*{_SMALL}+|{_LEADING}{_CAPITALS}+{_SMALL}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = "gpt-2"  # the regular expression inside ByteLevel
_DIGITS = "digits"  # every digit alone

# (what cuts the text, whether whole words skip the merges) → llama.cpp's name
_NAMES = {
    ((_GPT2,), False): "gpt-2",
    ((_DIGITS, _GPT2), False): "smollm",
    ((rf"{_SHORT}|{_WORDS}|\p{{N}}|{_REST}",), False): "qwen2",
    ((rf"{_SHORT}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}",), True): "llama-bpe",
    ((_TEKKEN,), True): "tekken",
}


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id.

    words   llama.cpp's name for how a text is cut into words; None: SentencePiece
    scores  of SentencePiece's tokens
    space   whether SentencePiece puts a space before a text
    """

    tokens: tuple[str, ...]
    types: tuple[TokenType, ...]
    words: str | None = None
    scores: tuple[float, ...] = ()
    space: bool = False

    def write(self, writer: GGUFWriter, folder: Path) -> None:
        """With the merges, the special tokens and the chat template of the model's files."""
        writer.add_tokenizer_model("gpt2" if self.words else "llama")
        writer.add_tokenizer_pre(self.words or "default")
        writer.add_token_list(list(self.tokens))
        writer.add_token_types(list(self.types))
        if self.words is None:
            writer.add_token_scores(list(self.scores))
            writer.add_add_space_prefix(self.space)
        merges = self.words is not None
        special = SpecialVocab(folder, load_merges=merges, n_vocab=len(self.tokens))
        special.add_special_token.setdefault("bos", False)  # llama.cpp's default depends on `words`
        special.add_to_gguf(writer, quiet=True)


def read(folder: Path, size: int) -> Vocabulary:
    """The vocabulary in tokenizer.json; `size`: the rows of the embedding.

    Raises UsageError (no tokenizer.json, or a kind that llama.cpp has no form for), InputRefused
    (more tokens than the embedding has).
    """
    file = folder / FILE
    tokenizer = TokenizerFile.read(file)
    by_id = {number: token for token, number in tokenizer.model.vocab.items()} | {
        each.id: each.content for each in tokenizer.added_tokens
    }
    if by_id and not 0 <= min(by_id) <= max(by_id) < size:
        raise InputRefused(
            f"token {max(by_id)} has no row in the embedding, which has {size}", where=str(file)
        )
    tokens = tuple(by_id.get(number, f"[PAD{number}]") for number in range(size))
    types = _types(tokenizer, by_id, size)
    if not sentencepiece.is_one(tokenizer):
        return Vocabulary(tokens, types, words=_words(tokenizer, file))
    space = sentencepiece.adds_space(tokenizer, file)
    found = sentencepiece.scores(tokenizer, file)
    return Vocabulary(
        tokens, types, scores=tuple(found.get(token, 0.0) for token in tokens), space=space
    )


def _types(tokenizer: TokenizerFile, by_id: Mapping[int, str], size: int) -> tuple[TokenType, ...]:
    added = {each.id: each for each in tokenizer.added_tokens}
    unknown_token = tokenizer.model.unk_token if sentencepiece.is_one(tokenizer) else None

    def kind(number: int) -> TokenType:
        token = by_id.get(number)
        if token is None:
            return TokenType.UNUSED
        if token == unknown_token:
            return TokenType.UNKNOWN
        if number in added:
            return TokenType.CONTROL if added[number].special else TokenType.USER_DEFINED
        is_byte = sentencepiece.is_one(tokenizer) and token in sentencepiece.BYTES
        return TokenType.BYTE if is_byte else TokenType.NORMAL

    return tuple(map(kind, range(size)))


def _words(tokenizer: TokenizerFile, file: Path) -> str:
    cuts = tuple(_cuts(tokenizer.pre_tokenizer))
    name = _NAMES.get((cuts, tokenizer.model.ignore_merges))
    normal = tokenizer.normalizer is None or tokenizer.normalizer.type == "NFC"
    if name is None or not normal:
        raise unknown(file, "it cuts texts into words in another way")
    return name


def _cuts(cut: PreTokenizer | None) -> list[str]:
    """The regular expressions of a pre-tokenizer. What llama.cpp cannot do gives a name that
    `_NAMES` does not have."""
    if cut is None:
        return ["none"]
    if cut.type == "Sequence":
        return [name for part in cut.parts for name in _cuts(part)]
    if cut.type == "ByteLevel" and not cut.add_prefix_space:
        return [_GPT2] if cut.use_regex else []
    if cut.type == "Digits" and cut.individual_digits:
        return [_DIGITS]
    if cut.type == "Split" and cut.behavior == "Isolated" and not cut.invert:
        return [cut.pattern.regex or "literal"]
    return [f"other: {cut.type}"]

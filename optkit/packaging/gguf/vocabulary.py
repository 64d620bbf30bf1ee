"""tokenizer.json as llama.cpp's tokenizer.

llama.cpp cuts a text into words with regular expressions that are compiled into it, under names
(src/llama-vocab.cpp). convert_hf_to_gguf.py recognizes a tokenizer by the digest of what it makes
of one text; here it is recognized by its own regular expressions, so that a tokenizer trained anew
is recognized too. Another tokenizer is refused: with a wrong name llama.cpp would tokenize
differently, and nobody would see it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from gguf import GGUFWriter, SpecialVocab, TokenType
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from optkit.errors import InputRefused, UsageError

FILE = "tokenizer.json"

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


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Pattern(_Part):
    regex: Annotated[str | None, Field(alias="Regex")] = None


class _Cut(_Part):
    """A pre-tokenizer, or a sequence of them."""

    type: str
    parts: Annotated[tuple[_Cut, ...], Field(alias="pretokenizers")] = ()
    pattern: _Pattern = _Pattern()
    behavior: str = ""
    invert: bool = False
    individual_digits: bool = False
    add_prefix_space: bool = False
    use_regex: bool = True


class _Normalizer(_Part):
    type: str


class _Added(_Part):
    id: int
    content: str
    special: bool


class _Merges(_Part):
    type: Literal["BPE"]
    vocab: dict[str, int]
    byte_fallback: bool = False
    ignore_merges: bool = False


class _Tokenizer(_Part):
    normalizer: _Normalizer | None = None
    pre_tokenizer: _Cut | None = None
    model: _Merges
    added_tokens: tuple[_Added, ...] = ()


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, and llama.cpp's name for how a text is cut into words."""

    words: str
    tokens: tuple[str, ...]
    types: tuple[TokenType, ...]

    def write(self, writer: GGUFWriter, folder: Path) -> None:
        """With the merges, the special tokens and the chat template of the model's files."""
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.words)
        writer.add_token_list(list(self.tokens))
        writer.add_token_types(list(self.types))
        special = SpecialVocab(folder, load_merges=True, n_vocab=len(self.tokens))
        special.add_special_token.setdefault("bos", False)  # llama.cpp's default depends on `words`
        special.add_to_gguf(writer, quiet=True)


def read(folder: Path, size: int) -> Vocabulary:
    """The vocabulary in tokenizer.json; `size`: the rows of the embedding.

    Raises UsageError (no tokenizer.json, or a kind that llama.cpp has no name for), InputRefused
    (damaged, or more tokens than the embedding has).
    """
    file = folder / FILE
    if not file.is_file():
        raise UsageError(
            f"it has no {FILE}, which a GGUF file needs",
            where=str(folder),
            hint="save the model's tokenizer in its folder, and build again",
        )
    try:
        tokenizer = _Tokenizer.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise _unknown(file, _first(error)) from error
    added = {each.id: each for each in tokenizer.added_tokens}
    by_id = {number: token for token, number in tokenizer.model.vocab.items()} | {
        each.id: each.content for each in added.values()
    }
    if by_id and not 0 <= min(by_id) <= max(by_id) < size:
        raise InputRefused(
            f"token {max(by_id)} has no row in the embedding, which has {size}", where=str(file)
        )
    tokens = tuple(by_id.get(number, f"[PAD{number}]") for number in range(size))
    types = tuple(
        _type(added[number])
        if number in added
        else (TokenType.NORMAL if number in by_id else TokenType.UNUSED)
        for number in range(size)
    )
    return Vocabulary(_words(tokenizer, file), tokens, types)


def _type(token: _Added) -> TokenType:
    return TokenType.CONTROL if token.special else TokenType.USER_DEFINED


def _words(tokenizer: _Tokenizer, file: Path) -> str:
    cuts = tuple(_cuts(tokenizer.pre_tokenizer))
    name = _NAMES.get((cuts, tokenizer.model.ignore_merges))
    normal = tokenizer.normalizer is None or tokenizer.normalizer.type == "NFC"
    if name is None or not normal or tokenizer.model.byte_fallback:
        raise _unknown(file, "it cuts texts into words in another way")
    return name


def _cuts(cut: _Cut | None) -> list[str]:
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


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _unknown(file: Path, what: str) -> UsageError:
    names = ", ".join(_NAMES.values())
    return UsageError(
        f"llama.cpp has no tokenizer for it: {what}",
        where=str(file),
        hint=f"supported are byte-level BPE tokenizers that cut texts as {names} do",
    )

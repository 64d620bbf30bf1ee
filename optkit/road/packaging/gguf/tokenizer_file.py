"""tokenizer.json: what llama.cpp's tokenizers need of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from optkit.facts.errors import UsageError

FILE = "tokenizer.json"


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class SplitPattern(_Part):
    regex: Annotated[str | None, Field(alias="Regex")] = None
    literal: Annotated[str | None, Field(alias="String")] = None


class PreTokenizer(_Part):
    """A pre-tokenizer, or a sequence of them."""

    type: str
    parts: Annotated[tuple[PreTokenizer, ...], Field(alias="pretokenizers")] = ()
    pattern: SplitPattern = SplitPattern()
    behavior: str = ""
    invert: bool = False
    individual_digits: bool = False
    add_prefix_space: bool = False
    use_regex: bool = True
    replacement: str = ""
    prepend_scheme: str = ""
    split: bool = True


class Normalizer(_Part):
    """A normalizer, or a sequence of them."""

    type: str
    parts: Annotated[tuple[Normalizer, ...], Field(alias="normalizers")] = ()
    prepend: str = ""
    pattern: SplitPattern = SplitPattern()
    content: str = ""


class AddedToken(_Part):
    id: int
    content: str
    special: bool


class Merges(_Part):
    """Byte-pair encoding. A merge is a pair, or both parts with a space between."""

    type: Literal["BPE"]
    vocab: dict[str, int]
    merges: tuple[tuple[str, str] | str, ...] = ()
    unk_token: str | None = None
    byte_fallback: bool = False
    ignore_merges: bool = False

    def pairs(self) -> list[tuple[str, str]]:
        """In the order in which they are applied."""
        return [_pair(merge) if isinstance(merge, str) else merge for merge in self.merges]


class TokenizerFile(_Part):
    normalizer: Normalizer | None = None
    pre_tokenizer: PreTokenizer | None = None
    model: Merges
    added_tokens: tuple[AddedToken, ...] = ()

    @classmethod
    def read(cls, file: Path) -> Self:
        """Raises UsageError (none, or another kind of model)."""
        if not file.is_file():
            raise UsageError(
                f"it has no {FILE}, which a GGUF file needs",
                where=str(file.parent),
                hint="save the model's tokenizer with AutoTokenizer.from_pretrained(folder)"
                ".save_pretrained(folder), which writes it, and build again",
            )
        try:
            return cls.model_validate_json(file.read_bytes())
        except ValidationError as error:
            raise unknown(file, _first(error)) from error


def unknown(file: Path, what: str) -> UsageError:
    return UsageError(
        f"llama.cpp has no tokenizer for it: {what}",
        where=str(file),
        hint="docs/how_to/package_gguf.md lists the tokenizers that a GGUF file can hold; the "
        "formats huggingface and mlx hold every tokenizer",
    )


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"

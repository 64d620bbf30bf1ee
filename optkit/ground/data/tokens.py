"""Tokenizers: texts to token ids, with the tokenizer files of a model or a single tokenizer.json.

transformers reads a folder with a tokenizer_config.json (local files only, no remote code);
tokenizers reads a single tokenizer.json. In both cases the fast tokenizer encodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from optkit.facts.errors import InputRefused
from optkit.ground.data import pretrained, reading

_LONGEST = 1 << 20  # a tokenizer without a limit reports 10³⁰
_FILE = "tokenizer.json"
_CONFIG = "tokenizer_config.json"

Side = Literal["left", "right"]


@dataclass(frozen=True)
class EncodedText:
    """One text: token ids, the segment of each (0; 1 in the second text of a pair), its word (None
    for a special token), and its first and last character in the text."""

    ids: list[int]
    segments: list[int]
    words: list[int | None]
    places: list[tuple[int, int]]


@dataclass(frozen=True)
class Tokenizer:
    """`end`, `pad`: ids; None if the tokenizer has no such token. `longest`: the number of tokens
    that the model takes; None if it is unknown."""

    fast: Any  # tokenizers.Tokenizer
    end: int | None
    pad: int | None
    side: Side
    longest: int | None
    where: str

    def encode(
        self,
        texts: Sequence[str] | Sequence[tuple[str, str]] | Sequence[list[str]],
        *,
        special: bool = True,
        length: int | None = None,
        words: bool = False,
    ) -> list[EncodedText]:
        """Encode texts, pairs of texts, or (`words`) texts that are lists of words. They are cut to
        `length` tokens.

        `special`: add the special tokens of the model's template.
        """
        self.fast.no_padding()
        if length is None:
            self.fast.no_truncation()
        else:
            self.fast.enable_truncation(length)
        encoded = self.fast.encode_batch(
            list(texts), is_pretokenized=words, add_special_tokens=special
        )
        return [
            EncodedText(text.ids, text.type_ids, text.word_ids, text.offsets) for text in encoded
        ]

    def ending(self, token: str | None) -> int:
        """The id of `token`, or of the tokenizer's own end-of-sequence token. Raises
        InputRefused."""
        number: int | None = self.end if token is None else self.fast.token_to_id(token)
        if number is None:
            lack = "names no end-of-sequence token" if token is None else f"has no token {token!r}"
            hint = 'args.eos: the token that ends a text, e.g. "</s>"'
            raise InputRefused(f"the tokenizer {lack}", where=self.where, hint=hint)
        return number


def load(given: str | Path | None, model: str | None) -> Tokenizer:
    """The tokenizer at `given` (a folder, or a tokenizer.json), otherwise the one in the model's
    folder `model`.

    Raises InputRefused if there is none or it cannot be read, ToolchainMissing without the library.
    """
    place = given if given is not None else model
    if place is None or (given is None and not _is_tokenizer(Path(place))):
        raise InputRefused(
            "the model has no tokenizer",
            hint="give the folder of its tokenizer, args: {tokenizer: FOLDER}",
        )
    path = Path(place)
    if not path.is_file() and not _is_tokenizer(path):
        hint = f"a folder with {_CONFIG} or {_FILE}, as save_pretrained writes it"
        raise InputRefused("there is no tokenizer", where=str(path), hint=hint)
    if (path / _CONFIG).is_file():
        return _of_transformers(path)
    return _bare(path if path.is_file() else path / _FILE)


def _is_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (_CONFIG, _FILE))


def _of_transformers(path: Path) -> Tokenizer:
    load = pretrained.loader("AutoTokenizer", path)
    try:
        tokenizer = load()
    except Exception as error:
        raise _unreadable(path, error) from error
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        raise InputRefused(
            f"{type(tokenizer).__name__} has no fast version",
            where=str(path),
            hint=f"convert it to a {_FILE} with transformers",
        )
    longest = tokenizer.model_max_length
    return Tokenizer(
        fast,
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
        tokenizer.padding_side,
        longest if longest < _LONGEST else None,
        str(path),
    )


def _bare(path: Path) -> Tokenizer:
    try:
        fast = reading.optional("tokenizers", "hf").Tokenizer.from_file(str(path))
    except InputRefused:
        raise
    except Exception as error:  # the library raises plain Exception
        raise _unreadable(path, error) from error
    padding = fast.padding or {}
    cut = fast.truncation or {}
    side: Side = "left" if padding.get("direction") == "left" else "right"
    return Tokenizer(fast, None, padding.get("pad_id"), side, cut.get("max_length"), str(path))


def _unreadable(path: Path, error: Exception) -> InputRefused:
    return InputRefused(
        f"the tokenizer cannot be read: {error}", where=str(path), hint="save it again"
    )

"""Prompts and tokens of an artifact: its tokenizer and configuration, and the text of tokens as
they are generated."""

from __future__ import annotations

from collections.abc import Sequence

from optkit.artifact import Artifact
from optkit.data import tokens as tokenizers
from optkit.data.tokens import Tokenizer
from optkit.decoder import CONFIG, GENERATION_CONFIG, MASK, read_json
from optkit.errors import InputRefused

_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json")


def tokenizer(artifact: Artifact) -> Tokenizer:
    """The artifact's own. Raises InputRefused."""
    if not any(name in artifact.manifest.files for name in _TOKENIZERS):
        raise InputRefused(
            f"no tokenizer: there is no {_TOKENIZERS[0]}",
            where=str(artifact.path),
            hint="build it from a folder with the tokenizer's files and the weights",
        )
    return tokenizers.load(artifact.path, None)


def configs(artifact: Artifact) -> tuple[dict[str, object], dict[str, object]]:
    """config.json and generation_config.json; empty where there is none. Raises InputRefused."""
    config, generation = (
        read_json((artifact.path / name).read_bytes(), str(artifact.path / name))
        if name in artifact.manifest.files
        else {}
        for name in (CONFIG, GENERATION_CONFIG)
    )
    return config, generation


def read(spoken: Tokenizer, prompts: Sequence[str], *, masked: bool, where: str) -> list[list[int]]:
    """The prompts' token ids. Raises InputRefused for a prompt that is no text or has no tokens,
    and for prompts of different lengths where no mask would hide the padding of the shorter ones.
    """
    for at, prompt in enumerate(prompts):
        if any("\ud800" <= letter <= "\udfff" for letter in prompt):  # bytes that were no UTF-8
            raise InputRefused("the prompt is not UTF-8 text", where=f"prompt {at}")
    tokens = [text.ids for text in spoken.encode(prompts)]
    lengths = [len(ids) for ids in tokens]
    if 0 in lengths:
        at = lengths.index(0)
        raise InputRefused(
            "the prompt has no tokens", where=f"prompt {at}", hint="a prompt must contain text"
        )
    if not masked and len(set(lengths)) > 1:
        raise InputRefused(
            f"prompts of {min(lengths)} to {max(lengths)} tokens cannot be one batch: the graph "
            f"has no input {MASK}, which hides the padding of the shorter ones",
            where=where,
            hint=f"give them one by one, or export the model with {MASK} as an input",
        )
    return tokens


class Stream:
    """The text of tokens as they come behind a prompt; None while they are half a character."""

    def __init__(self, tokenizer: Tokenizer, prompt: list[int]) -> None:
        from tokenizers.decoders import DecodeStream

        self._stream, self._tokenizer = DecodeStream(prompt, skip_special_tokens=True), tokenizer

    def step(self, token: int) -> str | None:
        text: str | None = self._stream.step(self._tokenizer.fast, token)
        return text


def behind(tokenizer: Tokenizer, prompt: list[int], new: list[int]) -> str:
    """The text of `new` tokens behind a prompt. Decoded together: the first of them may begin with
    a space, or may not."""
    before, whole = tokenizer.fast.decode(prompt), tokenizer.fast.decode([*prompt, *new])
    return str(whole[len(before) :])

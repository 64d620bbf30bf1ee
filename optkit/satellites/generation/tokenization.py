"""Prompts and tokens of an artifact: its tokenizer and configuration, and the text of tokens as
they are generated."""

from __future__ import annotations

from collections.abc import Sequence

from optkit.facts.errors import InputRefused
from optkit.ground.artifact import Artifact
from optkit.ground.data import tokens as tokenizers
from optkit.ground.data.tokens import Tokenizer
from optkit.ground.decoder import CONFIG, GENERATION_CONFIG, MASK, read_json

_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json")


def tokenizer(artifact: Artifact) -> Tokenizer:
    """The tokenizer of the artifact. Raises InputRefused."""
    if not any(name in artifact.manifest.files for name in _TOKENIZERS):
        raise InputRefused(
            f"no tokenizer: there is no {_TOKENIZERS[0]}",
            where=str(artifact.path),
            hint="build it from a folder with the tokenizer's files and the weights",
        )
    return tokenizers.load(artifact.path, None)


def configs(artifact: Artifact) -> tuple[dict[str, object], dict[str, object]]:
    """config.json and generation_config.json; empty if they are missing. Raises InputRefused."""
    config, generation = (
        read_json((artifact.path / name).read_bytes(), str(artifact.path / name))
        if name in artifact.manifest.files
        else {}
        for name in (CONFIG, GENERATION_CONFIG)
    )
    return config, generation


def read(spoken: Tokenizer, prompts: Sequence[str], *, masked: bool, where: str) -> list[list[int]]:
    """The token ids of the prompts. Raises InputRefused for a prompt that is not a text or has no
    tokens, and for prompts of different lengths if no mask would hide the padding."""
    for at, prompt in enumerate(prompts):
        # bytes that were not valid UTF-8
        if any("\ud800" <= letter <= "\udfff" for letter in prompt):
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
    """The text of new tokens after a prompt; None while they are only a part of a character."""

    def __init__(self, tokenizer: Tokenizer, prompt: list[int]) -> None:
        from tokenizers.decoders import DecodeStream

        self._stream, self._tokenizer = DecodeStream(prompt, skip_special_tokens=True), tokenizer

    def step(self, token: int) -> str | None:
        text: str | None = self._stream.step(self._tokenizer.fast, token)
        return text


def behind(tokenizer: Tokenizer, prompt: list[int], new: list[int]) -> str:
    """The text of `new` tokens after a prompt. They are decoded together, because whether the first
    one begins with a space depends on the tokens before it."""
    before, whole = tokenizer.fast.decode(prompt), tokenizer.fast.decode([*prompt, *new])
    return str(whole[len(before) :])

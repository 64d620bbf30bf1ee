"""Text generation: the proof that a decoder's artifact works, and how fast.

    made = generate(Artifact.load(path), ["def main("], max_new_tokens=64)
    made.texts[0].text, made.decode.tokens / made.decode.seconds

The artifact carries the graph with its key-value cache, the tokenizer, and the special tokens in
config.json and generation_config.json. Greedy unless a Sampling is given.

    decoding    the loop over the graph
    sampling    which token comes next
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from optkit.artifact import Artifact
from optkit.data import tokens as tokenizers
from optkit.data.tokens import Tokenizer
from optkit.decoder import CONFIG, GENERATION_CONFIG, Decoder, Tokens, read_json
from optkit.errors import InputRefused, UsageError
from optkit.generate.decoding import Ending, FinishReason, Pace, decode
from optkit.generate.sampling import Draw, Sampling, greedy
from optkit.runtime import Evidence

__all__ = ["Generated", "Pace", "Sampling", "Text", "generate"]

_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class Text:
    """One prompt's continuation. `tokens`: its ids, without the one that ended it."""

    prompt: str
    prompt_tokens: list[int]
    text: str
    tokens: list[int]
    finish_reason: FinishReason  # stop: an end-of-sequence token; length: the limit


@dataclass(frozen=True)
class Generated:
    """All continuations, and the pace of the two phases on this machine.

    `evidence`: measured where the target's own engine ran, simulated where its graph ran elsewhere
    (`note` says why).
    """

    texts: tuple[Text, ...]
    prefill: Pace
    decode: Pace
    backend: str
    evidence: Evidence
    note: str | None


def generate(
    artifact: Artifact,
    prompts: Sequence[str],
    *,
    max_new_tokens: int = 64,
    sampling: Sampling | None = None,
    heard: Callable[[int, str], None] = lambda row, text: None,
    **options: Any,
) -> Generated:
    """Continue all prompts in one batch. `heard(row, text)` is told each prompt once all can be
    continued, then what follows it as it comes; `options` go to the session (e.g. threads).

    Raises UsageError (no prompt), InputRefused (no decoder, no tokenizer, a prompt without tokens,
    or one longer than the model's context), IntegrityError and ToolchainMissing as `session` does.
    """
    where = str(artifact.path)
    if not prompts or max_new_tokens < 1:
        raise UsageError("nothing to generate", where=where, hint="give a prompt, and one token")
    decoder = Decoder.of(artifact.manifest.inputs, artifact.manifest.outputs)
    if decoder is None:
        raise InputRefused(
            "no decoder: its graph has no key-value cache",
            where=where,
            hint="build it from a Hugging Face folder of a causal language model",
        )
    words, tokens = _tokenizer(artifact), _tokens(artifact)
    read = [one.ids for one in words.encode(prompts)]
    room = _room(read, tokens, max_new_tokens)
    for row, prompt in enumerate(prompts):
        heard(row, prompt)
    streams = [_Stream(words, ids) for ids in read]

    def tell(row: int, token: int) -> None:
        if (text := streams[row].step(token)) is not None:
            heard(row, text)

    choose = greedy if sampling is None else Draw(sampling, len(prompts))
    with artifact.session(**options) as session:
        ending = Ending(frozenset(tokens.ends), room, tokens.pad)
        made = decode(session, decoder, read, ending, choose, tell)
    texts = tuple(
        Text(prompt, ids, _behind(words, ids, new), new, reason)
        for prompt, ids, new, reason in zip(prompts, read, made.tokens, made.reasons, strict=True)
    )
    return Generated(
        texts, made.prefill, made.decode, session.backend, session.evidence, session.note
    )


class _Stream:
    """The text of tokens as they come behind a prompt; None while they are half a character."""

    def __init__(self, words: Tokenizer, prompt: list[int]) -> None:
        from tokenizers.decoders import DecodeStream

        self._stream, self._words = DecodeStream(prompt, skip_special_tokens=True), words

    def step(self, token: int) -> str | None:
        found: str | None = self._stream.step(self._words.fast, token)
        return found


def _behind(words: Tokenizer, prompt: list[int], new: list[int]) -> str:
    """Decoded together: the first of the new tokens may begin with a space, or may not."""
    before, whole = words.fast.decode(prompt), words.fast.decode([*prompt, *new])
    return str(whole[len(before) :])


def _tokenizer(artifact: Artifact) -> Tokenizer:
    if not any(name in artifact.manifest.files for name in _TOKENIZERS):
        raise InputRefused(
            f"no tokenizer: there is no {_TOKENIZERS[0]}",
            where=str(artifact.path),
            hint="build it from a folder that has the tokenizer's files beside the weights",
        )
    return tokenizers.load(artifact.path, None)


def _tokens(artifact: Artifact) -> Tokens:
    names = (CONFIG, GENERATION_CONFIG)
    config, generation = (
        read_json((artifact.path / name).read_bytes(), str(artifact.path / name))
        if name in artifact.manifest.files
        else {}
        for name in names
    )
    return Tokens.of(config, generation)


def _room(read: Sequence[Sequence[int]], tokens: Tokens, wanted: int) -> int:
    """New tokens that fit behind the longest prompt: at most `wanted`."""
    for at, ids in enumerate(read):
        if not ids:
            raise InputRefused(
                "the prompt has no tokens", where=f"prompt {at}", hint="give some text"
            )
        if tokens.context is not None and len(ids) >= tokens.context:
            raise InputRefused(
                f"the prompt has {len(ids)} tokens, the model's context {tokens.context}",
                where=f"prompt {at}",
                hint="shorten the prompt: at least one position is left for what follows it",
            )
    longest = max(map(len, read))
    return wanted if tokens.context is None else min(wanted, tokens.context - longest)

"""Prompts continued by a decoder: one graph, all prompts in one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from optkit.artifact import Artifact, SessionArguments
from optkit.decoder import Decoder, Tokens
from optkit.errors import InputRefused
from optkit.generation import tokenization
from optkit.generation.decoding import Ending, decode
from optkit.generation.result import Cache, Generated, Text
from optkit.generation.sampling import Draw, Sampling, greedy


def generate(
    artifact: Artifact,
    prompts: Sequence[str],
    wanted: int,
    sampling: Sampling | None,
    heard: Callable[[int, str], None],
    options: SessionArguments,
) -> Generated:
    """Continue all prompts, as `optkit.generate` describes."""
    decoder = _decoder(artifact)
    spoken, tokens = tokenization.tokenizer(artifact), Tokens.of(*tokenization.configs(artifact))
    read = tokenization.read(spoken, prompts, masked=decoder.masked, where=str(artifact.path))
    room = _room(read, tokens, wanted)
    for row, prompt in enumerate(prompts):
        heard(row, prompt)
    streams = [tokenization.Stream(spoken, ids) for ids in read]

    def tell(row: int, token: int) -> None:
        if (text := streams[row].step(token)) is not None:
            heard(row, text)

    choose = greedy if sampling is None else Draw(sampling, len(prompts))
    with artifact.session(**options) as session:
        ending = Ending(frozenset(tokens.ends), room, tokens.pad)
        decoded = decode(session, decoder, read, ending, choose, tell)
    texts = tuple(
        Text(prompt, ids, tokenization.behind(spoken, ids, new), new, reason)
        for prompt, ids, new, reason in zip(
            prompts, read, decoded.tokens, decoded.reasons, strict=True
        )
    )
    return Generated(
        texts, None, decoded.prefill, decoded.decode,
        session.backend, session.evidence, session.note, Cache.of(decoder),
    )  # fmt: skip


def _decoder(artifact: Artifact) -> Decoder:
    """The decoder. Raises InputRefused if the graph is another kind of model."""
    decoder = Decoder.of(artifact.manifest.inputs, artifact.manifest.outputs)
    where = str(artifact.path)
    if decoder is None:
        raise InputRefused(
            "it cannot generate text: it is not a decoder with a key-value cache",
            where=where,
            hint="build it from a Hugging Face folder of a causal language model",
        )
    if decoder.crossed:
        raise InputRefused(
            "only the decoder of an encoder-decoder: it needs the outputs of the encoder",
            where=where,
            hint="give the artifact of both graphs: build it without model.part",
        )
    return decoder


def _room(read: Sequence[Sequence[int]], tokens: Tokens, wanted: int) -> int:
    """The number of new tokens that fit after the longest prompt: at most `wanted`."""
    for at, ids in enumerate(read):
        if tokens.context is not None and len(ids) >= tokens.context:
            raise InputRefused(
                f"the prompt has {len(ids)} tokens, the model's context {tokens.context}",
                where=f"prompt {at}",
                hint="shorten the prompt: at least one position must be left for new tokens",
            )
    longest = max(map(len, read))
    return wanted if tokens.context is None else min(wanted, tokens.context - longest)

"""Prompts continued by a decoder: one graph, all prompts in one batch; one after the other if
tokens are drafted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import add

from optkit.facts.documents.generated_text import GeneratedText
from optkit.facts.errors import InputRefused, UsageError
from optkit.ground.artifact import Artifact, SessionArguments
from optkit.ground.data.tokens import Tokenizer
from optkit.ground.decoder import Decoder, SpecialTokens
from optkit.satellites.generation import tokenization
from optkit.satellites.generation.acceptance import SampledAcceptance, accept_greedy
from optkit.satellites.generation.decoding import DecodedTokens, Ending, Heard, decode
from optkit.satellites.generation.draft_length import DraftLength
from optkit.satellites.generation.drafters import Drafter, DraftModel, PromptLookup
from optkit.satellites.generation.generated_texts import (
    GenerationResult,
    SpeculationResult,
    cache_of,
)
from optkit.satellites.generation.sampling import Sampler, Sampling, greedy
from optkit.satellites.generation.speculation import Speculation, Speculator


def generate(
    artifact: Artifact,
    prompts: Sequence[str],
    wanted: int,
    sampling: Sampling | None,
    speculation: Speculation | None,
    heard: Callable[[int, str], None],
    options: SessionArguments,
) -> GenerationResult:
    """Continue all prompts, as `optkit.generate` describes."""
    decoder = _decoder(artifact, forgets=speculation is not None)
    spoken, tokens = (
        tokenization.tokenizer(artifact),
        SpecialTokens.of(*tokenization.configs(artifact)),
    )
    read = tokenization.read(spoken, prompts, masked=decoder.masked, where=str(artifact.path))
    room = _room(read, tokens, wanted)
    streams = [tokenization.Stream(spoken, ids) for ids in read]

    def tell(row: int, token: int) -> None:
        if (text := streams[row].step(token)) is not None:
            heard(row, text)

    ending = Ending(frozenset(tokens.ends), room, tokens.pad)
    with (
        _drafter(speculation, spoken, decoder, sampling, options) as drafter,
        artifact.session(**options) as session,
    ):
        for row, prompt in enumerate(prompts):
            heard(row, prompt)
        speculated = None
        if speculation is None or drafter is None:
            choose = greedy if sampling is None else Sampler(sampling, len(prompts))
            decoded = decode(session, decoder, read, ending, choose, tell)
        else:
            writer = Speculator(session, decoder, drafter, DraftLength(speculation.tokens))
            decoded, speculated = _speculate(writer, read, ending, sampling, tell)
    texts = tuple(
        GeneratedText(
            prompt=prompt,
            prompt_tokens=ids,
            text=tokenization.behind(spoken, ids, new),
            tokens=new,
            finish_reason=reason,
        )
        for prompt, ids, new, reason in zip(
            prompts, read, decoded.tokens, decoded.reasons, strict=True
        )
    )
    return GenerationResult(
        texts,
        None,
        decoded.prefill,
        decoded.decode,
        session.backend,
        session.evidence,
        session.note,
        cache_of(decoder, decoded.window),
        speculated,
    )


def _speculate(
    writer: Speculator,
    prompts: Sequence[Sequence[int]],
    ending: Ending,
    sampling: Sampling | None,
    heard: Heard,
) -> tuple[DecodedTokens, SpeculationResult]:
    """The texts, one after the other."""
    texts = []
    for row, prompt in enumerate(prompts):
        accept = accept_greedy if sampling is None else SampledAcceptance(sampling, row)
        texts.append(writer.write(prompt, row, ending, accept, heard))
    decoded, counts = reduce(add, texts), writer.counts
    return decoded, SpeculationResult(
        "prompt lookup" if writer.drafter.free else "draft model",
        counts.drafted,
        counts.accepted,
        counts.runs,
        decoded.decode,
        counts.plain,
    )


@contextmanager
def _drafter(
    speculation: Speculation | None,
    spoken: Tokenizer,
    decoder: Decoder,
    sampling: Sampling | None,
    options: SessionArguments,
) -> Iterator[Drafter | None]:
    """The source of drafts, with the session of a draft model; None without speculation. Raises
    InputRefused for a draft model that is no decoder, or has another tokenizer."""
    if speculation is None or speculation.draft is None:
        yield None if speculation is None else PromptLookup()
        return
    artifact = speculation.draft
    artifact.verify()
    draft = _decoder(artifact, forgets=True)
    if tokenization.tokenizer(artifact).fast.get_vocab() != spoken.fast.get_vocab():
        raise InputRefused(
            "the draft model has another tokenizer than the model that it drafts for",
            where=str(artifact.path),
            hint="give a smaller model of the same family, whose tokens have the same ids",
        )
    context = SpecialTokens.of(*tokenization.configs(artifact)).context
    plain: SessionArguments = {**options, "adapter": None}  # that of the other model
    with artifact.session(**plain) as session:
        yield DraftModel(session, draft, decoder.vocabulary, context, sampling)


def _decoder(artifact: Artifact, *, forgets: bool) -> Decoder:
    """The decoder. Raises InputRefused if the graph is another kind of model; UsageError if it must
    forget tokens that were drafted in vain, and cannot."""
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
    if forgets and decoder.states:
        raise UsageError(
            f"it cannot forget a token that was drafted in vain: {decoder.states[0].name} is a "
            "state of all tokens",
            where=where,
            hint="generate without speculation; as a draft, give a model whose layers are all "
            "attention",
        )
    return decoder


def _room(read: Sequence[Sequence[int]], tokens: SpecialTokens, wanted: int) -> int:
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

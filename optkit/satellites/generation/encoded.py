"""The text of an encoder-decoder for a text or a recording: the encoder runs once for all tokens of
the output.

    prompts, padded on the right ─ encoder ─▶ keys and values of the cross attention ──┐ the same
    start tokens ─ prefill ─▶ cache, logits ─ choose ─▶ token ─ decode ─▶ …     ◀──────┘ each time

The mask of the encoder hides the padding from the encoder and from the decoder's cross attention.
All rows have the same number of start tokens, so the decoder needs no mask.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from optkit.facts.documents.generated_text import GeneratedText
from optkit.facts.errors import InputRefused, UsageError
from optkit.facts.evidence import Evidence
from optkit.facts.tensors import Feed, TensorInfo
from optkit.ground.artifact import Artifact, Running, SessionArguments
from optkit.ground.data import audio, packing, parts
from optkit.ground.data.tokens import Tokenizer
from optkit.ground.decoder import IDS, MASK, Decoder, SpecialTokens
from optkit.satellites.generation import tokenization
from optkit.satellites.generation.decoding import Ending, Pace, decode
from optkit.satellites.generation.generated_texts import GenerationResult, cache_of
from optkit.satellites.generation.sampling import Sampler, Sampling, greedy
from optkit.satellites.generation.starting import DecoderStart, only

Recording = str | Path | np.ndarray
"""A WAV file, or float32 [samples] at the rate of the model's feature extractor."""

_POSITIONS = ("max_target_positions", "max_position_embeddings")


@dataclass(frozen=True)
class _Given:
    """The inputs of the encoder. `ids`: the tokens of each text; empty for a recording."""

    names: list[str]
    ids: list[list[int]]
    feed: Feed


def generate(
    artifact: Artifact,
    prompts: Sequence[str],
    recordings: Sequence[Recording],
    wanted: int,
    sampling: Sampling | None,
    heard: Callable[[int, str], None],
    options: SessionArguments,
) -> GenerationResult:
    """Write a text for each prompt, or for each recording, as `optkit.generate`
    describes."""
    encoder, decoder = (artifact.parts[name] for name in ("encoder", "decoder"))
    shape = Decoder.of(decoder.manifest.inputs, decoder.manifest.outputs)
    if shape is None or not shape.crossed:
        raise InputRefused(
            "it cannot generate text: it is not a decoder with a key-value cache",
            where=str(decoder.path),
            hint="build it from a Hugging Face folder of an encoder-decoder",
        )
    spoken, configs = tokenization.tokenizer(encoder), tokenization.configs(encoder)
    start, tokens = DecoderStart.of(*configs, str(artifact.path)), SpecialTokens.of(*configs)
    limits = map(configs[0].get, _POSITIONS)
    positions = next((limit for limit in limits if isinstance(limit, int)), None)
    given = _given(encoder, spoken, prompts, recordings, positions)
    rows, room = len(given.names), _room(wanted, positions, len(start.read))
    streams = [tokenization.Stream(spoken, []) for _ in range(rows)]

    def tell(row: int, token: int) -> None:
        if (text := streams[row].step(token)) is not None:
            heard(row, text)

    with encoder.session(**options) as first:
        feed = {info.name: given.feed[info.name].astype(info.dtype) for info in first.inputs}
        begun = time.perf_counter()
        states = first.run(feed)
        encoded = Pace(_positions(given, states), time.perf_counter() - begun)
    crossed = _crossed(shape, given.feed, states)
    choose = start.choosing(greedy if sampling is None else Sampler(sampling, rows))
    with decoder.session(**options) as session:
        read = _started(session, shape, start, rows, crossed)
        ending = Ending(frozenset(tokens.ends), room, tokens.pad)
        decoded = decode(session, shape, read, ending, choose, tell, crossed)
    texts = tuple(
        GeneratedText(
            prompt=name,
            prompt_tokens=ids,
            text=str(spoken.fast.decode(new)),
            tokens=new,
            finish_reason=reason,
        )
        for name, ids, new, reason in zip(
            given.names, given.ids, decoded.tokens, decoded.reasons, strict=True
        )
    )
    ran = min(first, session, key=lambda run: run.evidence is Evidence.MEASURED)
    return GenerationResult(
        texts, encoded, decoded.prefill, decoded.decode, session.backend, ran.evidence, ran.note,
        cache_of(shape),
    )  # fmt: skip


def _given(
    encoder: Artifact,
    spoken: Tokenizer,
    prompts: Sequence[str],
    recordings: Sequence[Recording],
    positions: int | None,
) -> _Given:
    """Raises UsageError for texts if the encoder reads sound, and for sound if it reads texts."""
    inputs, where = encoder.manifest.inputs, str(encoder.path.parent)
    takes_text = any(info.name == IDS for info in inputs)
    if takes_text and recordings:
        raise UsageError("this model takes text, not audio", where=where, hint="give a prompt")
    if not takes_text and prompts:
        raise UsageError(
            "this model takes audio, not text",
            where=where,
            hint="give a recording: --audio FILE.wav",
        )
    if takes_text:
        return _texts(inputs, spoken, prompts, positions, where)
    return _sounds(encoder, recordings)


def _texts(
    inputs: Sequence[TensorInfo],
    spoken: Tokenizer,
    prompts: Sequence[str],
    positions: int | None,
    where: str,
) -> _Given:
    masked = any(info.name == MASK for info in inputs)
    ids = tokenization.read(spoken, prompts, masked=masked, where=where)
    for at, prompt in enumerate(ids):
        if positions is not None and len(prompt) > positions:
            raise InputRefused(
                f"the prompt has {len(prompt)} tokens, the model takes {positions}",
                where=f"prompt {at}",
                hint="shorten the prompt",
            )
    fill = spoken.pad if spoken.pad is not None else spoken.end
    # on the right, whatever side the tokenizer has, because positions are counted from the left
    batch = packing.pad(ids, value=fill or 0, side="right")
    return _Given(list(prompts), ids, {IDS: batch.ids, MASK: batch.mask})


def _sounds(encoder: Artifact, recordings: Sequence[Recording]) -> _Given:
    inputs = {info.name: info for info in encoder.manifest.inputs}
    prepared = audio.features(None, str(encoder.path), inputs)
    names, waves = [], []
    for at, recording in enumerate(recordings):
        if isinstance(recording, np.ndarray):
            names.append(f"recording {at}")
            wave = recording.astype(np.float32, copy=False)
        else:
            names.append(str(recording))
            wave = audio.read(Path(recording), prepared.rate)
        if wave.ndim != 1 or not wave.size:
            raise InputRefused(
                f"it is an array of shape {wave.shape}",
                where=names[-1],
                hint="give float32 [samples]",
            )
        if prepared.window is not None and len(wave) > prepared.window:
            seconds = (length / prepared.rate for length in (len(wave), prepared.window))
            raise InputRefused(
                "it lasts {:.1f} s, but the model takes at most {:.1f} s".format(*seconds),
                where=names[-1],
                hint="cut it into pieces",
            )
        waves.append(wave)
    return _Given(names, [[] for _ in names], prepared(waves))


def _crossed(decoder: Decoder, feed: Feed, states: Feed) -> Feed:
    """The inputs that the decoder gets from the encoder, in its dtypes (half precision in a cast
    graph)."""
    given = parts.crossed(feed, states)
    return {info.name: given[info.name].astype(info.dtype, copy=False) for info in decoder.crossed}


def _positions(given: _Given, states: Feed) -> int:
    """The number of inputs of the encoder: tokens without padding, or encoded positions of
    sound."""
    keys = next(iter(states.values()))
    return sum(map(len, given.ids)) or len(given.names) * keys.shape[2]


def _room(wanted: int, positions: int | None, start: int) -> int:
    """The number of new tokens that fit after the start: at most `wanted`."""
    return wanted if positions is None else min(wanted, positions - start)


def _started(
    session: Running, decoder: Decoder, start: DecoderStart, rows: int, crossed: Feed
) -> list[list[int]]:
    """The tokens that the decoder of each row reads first. If no language is given, it is the one
    that the model finds most likely after the first token, even if the text is sampled."""
    if None not in start.read:
        return [[token for token in start.read if token is not None]] * rows

    def likeliest(logits: np.ndarray) -> np.ndarray:
        return greedy(only(logits, start.languages))

    once = Ending(frozenset(), 1, 0)
    first = [[token for token in start.read[:1] if token is not None]] * rows
    decoded = decode(session, decoder, first, once, likeliest, lambda row, token: None, crossed)
    return [[language if t is None else t for t in start.read] for (language,) in decoded.tokens]

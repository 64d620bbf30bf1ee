"""Speculative decoding: several tokens per run of the target, and the same text.

    text a b c d │ draft x y z        one run reads d x y z
                 │ logits after d x y z ─ accept ─▶ x y w      z is cut from the cache

Texts are written one after the other, because each accepts another number of tokens. `acceptance`
says why the text does not change, `drafters` where drafts come from, `draft_length` how many tokens
are drafted.

A run of several tokens may round otherwise than runs of one token each. So the text is exactly what
the target's logits of these runs say; where two tokens are almost equally likely, plain decoding
may choose the other one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from optkit.facts.errors import UsageError
from optkit.ground.artifact import Artifact
from optkit.ground.decoder import Decoder
from optkit.ground.runtimes import Recurrent
from optkit.satellites.generation.acceptance import Accept, DraftTokens
from optkit.satellites.generation.cached_text import CachedText
from optkit.satellites.generation.decoding import DecodedTokens, Ending, FinishReason, Heard, Pace
from optkit.satellites.generation.draft_length import DraftLength
from optkit.satellites.generation.drafters import Drafter


@dataclass(frozen=True)
class Speculation:
    """`draft`: an artifact with the same tokenizer that drafts; None: prompt lookup. `tokens`: the
    number of tokens to draft for each run; None: it adapts to the acceptance and to the time of the
    runs. Then a sampled text with a draft model depends on these times, and not only on the
    seed."""

    draft: Artifact | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        """Raises UsageError."""
        if self.tokens is not None and self.tokens < 1:
            raise UsageError(
                f"tokens is {self.tokens}", where="speculation", hint="draft 1 or more"
            )


@dataclass
class Counts:
    """See `generated_texts.SpeculationResult`."""

    drafted: int = 0
    accepted: int = 0
    runs: int = 0
    plain: Pace = field(default_factory=lambda: Pace(0, 0.0))


@dataclass
class _Text:
    """The tokens so far, with the prompt. `choices`: new ones, with the one that ended it."""

    ending: Ending
    tokens: list[int]
    start: int
    choices: int = 0
    reason: FinishReason | None = None

    @property
    def new(self) -> list[int]:
        return self.tokens[self.start :]

    @property
    def left(self) -> int:
        return self.ending.limit - self.choices

    def extend(self, tokens: Sequence[int]) -> list[int]:
        """Those that are kept."""
        before = len(self.tokens)
        for token in tokens:
            self.choices += 1
            if token in self.ending.ends:
                self.reason = "stop"
                break
            self.tokens.append(token)
        if self.reason is None and not self.left:
            self.reason = "length"
        return self.tokens[before:]


@dataclass
class Speculator:
    """Writes texts with one session of the target. What it learned about the time of runs and the
    acceptance in one text serves the next one."""

    session: Recurrent
    decoder: Decoder
    drafter: Drafter
    length: DraftLength
    counts: Counts = field(default_factory=Counts)

    def write(
        self, prompt: Sequence[int], row: int, ending: Ending, accept: Accept, heard: Heard
    ) -> DecodedTokens:
        """Continue one prompt; as `decoding.decode` otherwise. Raises what the sessions raise."""
        start = time.perf_counter()
        text = _Text(ending, list(prompt), len(prompt))
        room = len(prompt) + ending.limit - 1
        cached = CachedText(self.session, self.decoder, room)
        self.drafter.begin(prompt, row, room)
        kept = text.extend(accept(cached.read(prompt)[-1:], DraftTokens()))
        read = time.perf_counter()
        while True:
            for token in kept:
                heard(row, token)
            if text.reason is not None:
                break
            kept = self._step(cached, text, accept)
        return DecodedTokens(
            [text.new],
            [text.reason],
            Pace(len(prompt), read - start),
            Pace(text.choices - 1, time.perf_counter() - read),
        )

    def _step(self, cached: CachedText, text: _Text, accept: Accept) -> list[int]:
        """One run of the target, and the tokens that it gives."""
        start, tokens, free = time.perf_counter(), text.tokens, self.drafter.free
        evidence, most = self.drafter.evidence(tokens), text.left - 1
        count = self.length.choose(evidence, most, free=free)
        offered = DraftTokens()
        if evidence and most and (count or free):
            offered = self.drafter.draft(tokens, max(count, 1))
        draft = offered if count else DraftTokens()
        before = cached.length
        accepted = accept(cached.read([tokens[-1], *draft.tokens]), draft)
        cached.cut(before + len(accepted))
        seconds = time.perf_counter() - start
        verified = len(draft.tokens)
        self.length.learn(evidence, offered.tokens, accepted, verified, seconds)
        self.counts.runs += 1
        self.counts.drafted += verified
        self.counts.accepted += len(accepted) - 1
        if not verified:
            self.counts.plain += Pace(1, seconds)
        return text.extend(accepted)

"""The result of a generation: the texts, and the speed of each phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from optkit.facts.documents.generated_text import GeneratedText, TokenCache
from optkit.facts.evidence import Evidence
from optkit.ground.decoder import Decoder
from optkit.satellites.generation.decoding import Pace


@dataclass(frozen=True)
class SpeculationResult:
    """What speculative decoding did. `drafted`: tokens that the target verified; `accepted`: those
    of them that became text. `runs`: of the target after the prefill; `plain`: those of them that
    verified nothing, as in plain decoding, each with one token."""

    method: Literal["prompt lookup", "draft model"]
    drafted: int
    accepted: int
    runs: int
    decode: Pace
    plain: Pace

    @property
    def acceptance_rate(self) -> float | None:
        """None if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tokens_per_run(self) -> float | None:
        """None if the first token ended every text."""
        return self.decode.tokens / self.runs if self.runs else None

    @property
    def gain(self) -> float | None:
        """Tokens per second relative to those of the plain runs; None if there was none."""
        if not self.plain.tokens:
            return None
        return self.decode.tokens / self.decode.seconds * self.plain.seconds / self.plain.tokens


@dataclass(frozen=True)
class GenerationResult:
    """All texts, and the pace of the phases on this machine.

    `encode`: the run of the encoder, in tokens of the prompts or in encoded positions of sound;
    None without an encoder. `evidence`: measured if the target's own engine ran, simulated if its
    graph ran elsewhere (`note` says why). `speculation`: None for plain decoding.
    """

    texts: tuple[GeneratedText, ...]
    encode: Pace | None
    prefill: Pace
    decode: Pace
    backend: str
    evidence: Evidence
    note: str | None
    cache: TokenCache
    speculation: SpeculationResult | None = None


def cache_of(decoder: Decoder, window: int | None = None) -> TokenCache:
    """The cache of a decoder, cut to a window of tokens."""
    kept = decoder.codes or (decoder.cache or decoder.states)[0].dtype
    return TokenCache(format=kept, token_bytes=decoder.token_bytes, window=window)

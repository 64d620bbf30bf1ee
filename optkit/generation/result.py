"""The result of a generation: the texts, and the speed of each phase."""

from __future__ import annotations

from dataclasses import dataclass

from optkit.evidence import Evidence
from optkit.generation.decoding import FinishReason, Pace


@dataclass(frozen=True)
class Text:
    """The text for one prompt. `prompt`: the text, or the name of the recording. `prompt_tokens`:
    the tokens that were read; empty for a recording. `tokens`: the generated tokens, without the
    one that ended the text."""

    prompt: str
    prompt_tokens: list[int]
    text: str
    tokens: list[int]
    finish_reason: FinishReason  # stop: an end-of-sequence token; length: the limit


@dataclass(frozen=True)
class Generated:
    """All texts, and the pace of the phases on this machine.

    `encode`: the run of the encoder, in tokens of the prompts or in encoded positions of sound;
    None without an encoder. `evidence`: measured if the target's own engine ran, simulated if its
    graph ran elsewhere (`note` says why).
    """

    texts: tuple[Text, ...]
    encode: Pace | None
    prefill: Pace
    decode: Pace
    backend: str
    evidence: Evidence
    note: str | None

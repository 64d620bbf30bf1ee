"""The result of a generation: the texts, and the speed of each phase."""

from __future__ import annotations

from dataclasses import dataclass

from optkit.evidence import Evidence
from optkit.generate.decoding import FinishReason, Pace


@dataclass(frozen=True)
class Text:
    """What was made of one prompt. `prompt`: the text, or the recording's name. `prompt_tokens`:
    what was read, none of a recording. `tokens`: what was made, without the one that ended it."""

    prompt: str
    prompt_tokens: list[int]
    text: str
    tokens: list[int]
    finish_reason: FinishReason  # stop: an end-of-sequence token; length: the limit


@dataclass(frozen=True)
class Generated:
    """All texts, and the pace of the phases on this machine.

    `encode`: the encoder's run over the tokens of the prompts, or over the positions that it makes
    of sound; None where there is no encoder. `evidence`: measured where the target's own engine
    ran, simulated where its graph ran elsewhere (`note` says why).
    """

    texts: tuple[Text, ...]
    encode: Pace | None
    prefill: Pace
    decode: Pace
    backend: str
    evidence: Evidence
    note: str | None

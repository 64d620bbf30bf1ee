"""How an engine serves: how it makes batches, what its cache is like, how it is spread over
devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from optkit.facts.errors import UsageError

Batching = Literal["static", "dynamic", "continuous"]
BATCHING: tuple[Batching, ...] = ("static", "dynamic", "continuous")

WHOLE_PROMPTS = 8192
"""Tokens of prompts that an engine without chunks reads in one pass, but one prompt at least."""


@dataclass(frozen=True)
class Drafting:
    """Speculative decoding (Leviathan et al. 2023, arXiv 2211.17192): a small model drafts `length`
    tokens, the large one checks them in one pass. `accepted`: the probability that it accepts one;
    `cost`: of a drafted token, as a share of a pass of the large model."""

    length: int
    accepted: float
    cost: float = 0.05

    @classmethod
    def parse(cls, text: str, where: str) -> Drafting:
        """`4,0.7` or `4,0.7,0.05`. Raises UsageError for other texts."""
        parts = text.split(",")
        try:
            length = int(parts[0])
            accepted, *rest = map(float, parts[1:])
        except ValueError:
            length, accepted, rest = 0, 0.0, []
        cost = rest[0] if rest else cls.cost
        if len(parts) > 3 or not (1 <= length <= 64 and 0 < accepted < 1 and 0 <= cost <= 1):
            raise UsageError(
                f"{text!r} is no draft length with its acceptance rate",
                where=where,
                hint="write 4,0.7 or 4,0.7,0.05: tokens drafted, the share of them that is "
                "accepted (between 0 and 1), and what one costs as a share of a pass",
            )
        return cls(length, accepted, cost)

    @property
    def tokens(self) -> float:
        """Tokens per pass: (1 - a^(k+1)) / (1 - a), formula 1 of Leviathan et al."""
        return (1 - self.accepted ** (self.length + 1)) / (1 - self.accepted)


@dataclass(frozen=True)
class ServingPolicy:
    """`chunk`: tokens per pass when prompts are read in chunks beside decoding; None: whole prompts
    in passes of their own. `delay`: seconds that dynamic batching waits for a full batch. `block`:
    tokens per block of the cache. `split`: prompts are read on other devices than answers are
    written."""

    batching: Batching = "continuous"
    chunk: int | None = 2048
    max_batch: int = 256
    delay: float = 0.1
    block: int = 16
    split: bool = False
    drafting: Drafting | None = None

    def __post_init__(self) -> None:
        if self.split and self.batching != "continuous":
            raise UsageError("it needs continuous batching", where="--split")
        if self.chunk is not None and self.chunk < self.width * self.max_batch:
            raise UsageError(
                f"{self.chunk} tokens per pass are fewer than {self.max_batch} sequences write",
                where="--chunk",
                hint=f"at least {self.width * self.max_batch}, or a smaller --max-batch",
            )

    @property
    def width(self) -> int:
        """Tokens that a sequence puts through a pass of decoding."""
        return 1 if self.drafting is None else self.drafting.length + 1

    @property
    def tokens(self) -> float:
        """Tokens that a sequence writes in a pass."""
        return 1.0 if self.drafting is None else self.drafting.tokens

    @property
    def budget(self) -> int:
        """Tokens of prompts that one pass reads at most."""
        return self.chunk or WHOLE_PROMPTS

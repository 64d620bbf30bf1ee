"""How long one pass of an engine takes: the predictor of `optkit plan`, on a grid.

A pass may read prompts and write tokens at once. Its products depend on the number of its rows
alone, and its attention on pairs and cache, so the two are predicted apart, each for numbers of six
binary digits, and kept. A number is moved by at most 1/128 of itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from optkit.craft.prediction.decoder_work import DecoderPrecision, DecoderShape, forward
from optkit.craft.prediction.fitted import fitted
from optkit.craft.prediction.work import BITS, Work
from optkit.craft.prediction.work_time import WorkTime, link_of, longest, seconds
from optkit.facts.documents.plan import Bound
from optkit.ground.devices import Target
from optkit.satellites.serving.serving_policy import Drafting

_DIGITS = 6


@dataclass(slots=True)
class EnginePass:
    """`read`: prompt tokens, which see `pairs` keys altogether, `past` of them in the cache;
    `ends`: prompts that are read to their end; `batch`: sequences that write, with `cached` tokens
    in their caches altogether, each by `width` tokens in this pass."""

    read: int = 0
    pairs: float = 0.0
    past: float = 0.0
    ends: int = 0
    batch: int = 0
    cached: float = 0.0
    width: int = 1


@dataclass
class PassTimes:
    """Seconds of a pass on `tensor` × `pipeline` devices. `slower`: a factor on all times;
    `drafting`: what drafts the tokens that a pass checks."""

    shape: DecoderShape
    numbers: DecoderPrecision
    target: Target
    tensor: int = 1
    pipeline: int = 1
    slower: float = 1.0
    drafting: Drafting | None = None
    _products: dict[tuple[int, int], WorkTime] = field(default_factory=dict)
    _attention: dict[tuple[int, int, int], WorkTime] = field(default_factory=dict)

    def of(self, one: EnginePass) -> tuple[float, Bound]:
        """Seconds, and the largest part of them. Raises ToolchainMissing where a peak, the
        bandwidth or a link of the target is unknown."""
        rows, last = one.read + one.batch * one.width, one.ends + one.batch * one.width
        pairs, cache = one.pairs + one.cached * one.width, one.past + one.cached
        products = self._of_products(_on_grid(rows), _on_grid(last))
        attention = self._of_attention(_on_grid(rows), _on_grid(pairs), _on_grid(cache))
        host = (one.ends + one.batch) * fitted().efficiencies.sequence_us * 1e-6
        total = products.total + attention.total + host + self._handed(rows)
        if self.drafting is not None and one.batch and one.width > 1:
            plain = EnginePass(batch=one.batch, cached=one.cached)
            total += self.drafting.length * self.drafting.cost * self.of(plain)[0] / self.slower
        parts = {name: products.parts[name] + attention.parts[name] for name in products.parts}
        return total * self.slower, longest({**parts, "host": host})

    def _of_products(self, rows: int, last: int) -> WorkTime:
        key = (rows, last)
        if key not in self._products:
            works = self._works(rows, last, 0, 0)
            self._products[key] = self._seconds([w for w in works if w.kind != "attention"])
        return self._products[key]

    def _of_attention(self, rows: int, pairs: int, cache: int) -> WorkTime:
        key = (rows, pairs, cache)
        if key not in self._attention:
            works = self._works(rows, 0, pairs, cache)
            self._attention[key] = self._seconds([w for w in works if w.kind == "attention"])
        return self._attention[key]

    def _works(self, rows: int, last: int, pairs: int, cache: int) -> list[Work]:
        read = cache * self.shape.kv_bytes(self.numbers.kv_bits)
        return forward(self.shape, self.numbers, rows, last, pairs, read, self.tensor)

    def _seconds(self, works: Sequence[Work]) -> WorkTime:
        return seconds(works, self.target, fitted().efficiencies)

    def _handed(self, rows: int) -> float:
        """Seconds in which the activations go from one stage of the pipeline to the next."""
        if self.pipeline == 1:
            return 0.0
        size = rows * self.shape.hidden * BITS[self.numbers.carrier] / 8
        rate = link_of(self.target, self.tensor * self.pipeline).rate
        return (self.pipeline - 1) * size / rate

    def transfer(self, tokens: float, devices: int) -> float:
        """Seconds in which the cache of so many tokens goes to another group of devices, each
        device sending its own share. `devices`: of both groups."""
        share = self.shape.kv_share(self.tensor) / self.pipeline
        size = self.shape.cache_bytes(tokens, self.numbers.kv_bits) * share
        return size / link_of(self.target, devices).rate * self.slower


def _on_grid(number: float) -> int:
    """The nearest number of six binary digits."""
    whole = round(number)
    left = whole.bit_length() - _DIGITS
    return whole if left <= 0 else ((whole + (1 << (left - 1))) >> left) << left

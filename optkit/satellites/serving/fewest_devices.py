"""The fewest devices of a kind that serve a load within limits: a search over simulations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, floor

import numpy as np

from optkit.craft.prediction import memory
from optkit.craft.prediction.decoder_work import DecoderPrecision, DecoderShape
from optkit.craft.prediction.work_time import link_of
from optkit.facts.errors import Impossible, ToolchainMissing
from optkit.ground.devices import Target
from optkit.satellites.serving.pass_times import EnginePass, PassTimes
from optkit.satellites.serving.run_figures import RunFigures, figures_of
from optkit.satellites.serving.served_run import ServingSystem, simulate
from optkit.satellites.serving.serving_policy import ServingPolicy
from optkit.satellites.serving.token_lengths import TokenLengths
from optkit.satellites.serving.traffic import Arrival, every, faster, poisson

_LARGEST_GROUP = 8  # devices of one tensor-parallel group
_SIMULATED = 2  # copies that are simulated where there are more
_FEWEST, _MOST = 800, 5000  # requests of a simulation
_RESIDENCES = 10  # its length, in times that a request stays
ROUGH_LENGTH = 0.35  # of that length, while the number of devices is looked for

_NONE = TokenLengths("one", 1, 1)  # of a trace, which has its own


@dataclass(frozen=True)
class ServedLoad:
    """`rate` requests per second, of these lengths, or as a trace has them. `shared`: the share of
    a prompt that is common."""

    rate: float
    prompt: TokenLengths = _NONE
    new: TokenLengths = _NONE
    shared: float = 0.0
    seed: int = 0
    trace: tuple[Arrival, ...] = ()

    @property
    def means(self) -> tuple[float, float]:
        """Tokens of a prompt and of an answer."""
        if not self.trace:
            return self.prompt.mean, self.new.mean
        return (
            float(np.mean([one.prompt for one in self.trace])),
            float(np.mean([one.new for one in self.trace])),
        )

    @property
    def longest(self) -> int:
        """Tokens that no request exceeds."""
        if self.trace:
            return max(one.prompt + one.new for one in self.trace)
        return self.prompt.longest + self.new.longest

    def at(self, rate: float) -> ServedLoad:
        """The same requests at another rate."""
        times = rate / self.rate
        return replace(self, rate=rate, trace=tuple(faster(self.trace, times)))

    def prompt_at(self, percentile: float) -> float:
        if self.trace:
            return float(np.percentile([one.prompt for one in self.trace], percentile))
        return self.prompt.percentile(percentile / 100)

    def arrivals(self, part: float, count: int) -> list[Arrival]:
        """The requests for this part of all copies; at random, so many of them."""
        if self.trace:
            return every(self.trace, 1 / part)
        return poisson(
            self.rate * part, self.prompt, self.new, count, seed=self.seed, shared=self.shared
        )


@dataclass(frozen=True)
class ServingNeeds:
    """Limits in seconds that `percentile` percent of the requests must hold; None: no limit."""

    first: float | None
    token: float | None
    percentile: float = 95.0

    def hold(self, found: RunFigures) -> bool:
        return (
            found.stable
            and (self.first is None or found.first.at <= self.first)
            and (self.token is None or found.token.at <= self.token)
        )


@dataclass(frozen=True)
class FoundDevices:
    """`copies` that write and `readers` that only read, each on `tensor` × `pipeline` devices."""

    copies: int
    readers: int
    tensor: int
    pipeline: int
    cache_tokens: int
    simulated: int
    requests: int
    figures: RunFigures

    @property
    def devices(self) -> int:
        return (self.copies + self.readers) * self.tensor * self.pipeline

    @property
    def devices_joined(self) -> int:
        """By a link that counts: those of a copy, and with readers those of two."""
        return (2 if self.readers else 1) * self.tensor * self.pipeline


@dataclass
class DeviceSearch:
    """The question for one kind of device. `tensor`, `pipeline`: devices of one copy; None for
    `tensor`: those numbers are tried that fit. `slower`: a factor on the times of all passes;
    `length`: on that of the simulations."""

    shape: DecoderShape
    numbers: DecoderPrecision
    target: Target
    policy: ServingPolicy
    load: ServedLoad
    needs: ServingNeeds
    tensor: int | None = None
    pipeline: int = 1
    slower: float = 1.0
    length: float = 1.0
    _times: dict[int, PassTimes] = field(default_factory=dict)

    def fewest(self) -> FoundDevices:
        """Looked for with short simulations, and confirmed by a long one. Raises Impossible where
        no number of these devices serves the load within the limits."""
        found = replace(self, length=ROUGH_LENGTH, _times=self._times).roughly()
        return _CopySearch(self, found.tensor).confirmed(found)

    def roughly(self) -> FoundDevices:
        """The same by simulations of this length."""
        best: FoundDevices | None = None
        refused: Impossible | None = None
        for tensor in self._tensors():
            try:
                found = _CopySearch(self, tensor, best).fewest()
            except Impossible as error:
                refused = refused or error
                continue
            if found is not None and (best is None or found.devices < best.devices):
                best = found
        if best is None:
            raise refused or Impossible("the model does not fit", where=self.target.name)
        return best

    def again(self, found: FoundDevices, rate: float = 1.0, slower: float = 1.0) -> RunFigures:
        """The same devices at `rate` times the load, or with slower passes."""
        load = self.load.at(self.load.rate * rate)
        search = replace(self, load=load, slower=self.slower * slower, _times={})
        return _CopySearch(search, found.tensor).run(found.copies, found.readers).figures

    def times(self, tensor: int) -> PassTimes:
        if tensor not in self._times:
            self._times[tensor] = PassTimes(
                self.shape,
                self.numbers,
                self.target,
                tensor,
                self.pipeline,
                self.slower,
                self.policy.drafting,
            )
        return self._times[tensor]

    def cache_tokens(self, tensor: int) -> int:
        """That fit into one copy; below 0 where its weights do not fit."""
        capacity = float(self.target.memory_bytes or 0)
        rows = max(self.policy.budget, self.policy.max_batch * self.policy.width)
        return floor(
            memory.cache_tokens(self.shape, self.numbers, capacity, rows, tensor, self.pipeline)
        )

    def _tensors(self) -> Sequence[int]:
        """Devices of a copy: powers of two that hold the longest request. Raises Impossible where
        none does."""
        most = min(_LARGEST_GROUP, self.shape.heads)
        sizes = [2**n for n in range(most.bit_length()) if 2**n <= most]
        asked = sizes if self.tensor is None else [self.tensor]
        longest = self.load.longest + self.policy.width
        fits = [size for size in asked if self.cache_tokens(size) >= longest and self._linked(size)]
        if not fits:
            count = asked[-1] * self.pipeline
            raise Impossible(
                f"the weights and a request of {longest:,} tokens do not fit on {count} "
                f"device{'' if count == 1 else 's'} of one copy",
                where=self.target.name,
                hint="a narrower precision, --pp, shorter requests, or devices with more memory",
            )
        return fits

    def _linked(self, tensor: int) -> bool:
        """Whether the link between the devices of a copy is known."""
        if tensor * self.pipeline == 1:
            return True
        try:
            return link_of(self.target, tensor * self.pipeline).rate > 0
        except ToolchainMissing:
            return False


class _CopySearch:
    """For one size of a copy. `best`: devices that are known to do; more are not looked for."""

    def __init__(self, search: DeviceSearch, tensor: int, best: FoundDevices | None = None) -> None:
        self._search, self._tensor, self._best = search, tensor, best
        self._times = search.times(tensor)
        self._cache = search.cache_tokens(tensor)
        self._runs: dict[tuple[int, int], FoundDevices] = {}

    def fewest(self) -> FoundDevices | None:
        """None where more devices than those of `best` would be needed."""
        self._check_one_request()
        split = self._search.policy.split
        copies, readers = self._least_copies, self._least_readers if split else 0
        if self._is_worse(copies, readers):
            return None
        low = copies - 1
        while not self._holds(copies, readers):
            if split and self._reads_too_slowly(copies, readers):
                readers += 1
            else:
                low, copies = copies, max(copies + 1, ceil(copies * 1.4))
            if self._is_worse(low + 1, readers):
                return None
            if copies + readers > self._enough:
                raise self._refusal()
        while copies - low > 1:
            middle = (low + copies) // 2
            low, copies = (low, middle) if self._holds(middle, readers) else (middle, copies)
        while copies > 1 and self._holds(copies - 1, readers):
            copies -= 1
        return self.run(copies, readers)

    def confirmed(self, rough: FoundDevices) -> FoundDevices:
        """As many devices as before, or more where a longer simulation breaks a limit."""
        copies, readers = rough.copies, rough.readers
        while not self._holds(copies, readers):
            if readers and self._reads_too_slowly(copies, readers):
                readers += 1
            else:
                copies += 1
            if copies + readers > self._enough:
                raise self._refusal()
        return self.run(copies, readers)

    def run(self, copies: int, readers: int) -> FoundDevices:
        key = (copies, readers)
        if key not in self._runs:
            search = self._search
            simulated = copies if readers else min(copies, _SIMULATED)
            part = simulated / copies
            stay = search.load.rate * part * self._residence
            count = ceil(min(_MOST, max(_FEWEST, _RESIDENCES * stay)) * search.length)
            arrivals = search.load.arrivals(part, count)
            blocks = self._cache // search.policy.block
            system = ServingSystem(self._times, search.policy, blocks, simulated, readers)
            figures = figures_of(simulate(arrivals, system), search.needs.percentile)
            self._runs[key] = FoundDevices(
                copies,
                readers,
                self._tensor,
                search.pipeline,
                self._cache,
                simulated,
                len(arrivals),
                figures,
            )
        return self._runs[key]

    def _holds(self, copies: int, readers: int) -> bool:
        return self._search.needs.hold(self.run(copies, readers).figures)

    def _is_worse(self, copies: int, readers: int) -> bool:
        group = self._tensor * self._search.pipeline
        return self._best is not None and (copies + readers) * group >= self._best.devices

    def _reads_too_slowly(self, copies: int, readers: int) -> bool:
        """Whether the prompts are late rather than the answers."""
        found, needs = self.run(copies, readers).figures, self._search.needs
        if needs.first is not None and found.first.at > needs.first:
            return True
        return not found.stable and (needs.token is None or found.token.at <= needs.token)

    @cached_property
    def _prompt(self) -> float:
        """Tokens of a mean prompt that are not shared."""
        load = self._search.load
        return max(1.0, load.means[0] * (1 - load.shared))

    @cached_property
    def _reading(self) -> float:
        """Seconds of engine time that a mean prompt takes beside others."""
        return self._read(self._prompt)

    @cached_property
    def _writing(self) -> float:
        """Seconds of engine time that a mean answer takes in a full batch."""
        return self._token(self._full_batch) * self._search.load.means[1] / self._full_batch

    @cached_property
    def _full_batch(self) -> int:
        search = self._search
        prompt, new = search.load.means
        held = max(1.0, search.shape.cached(prompt + new / 2))
        return max(1, min(search.policy.max_batch, floor(self._cache / held)))

    @cached_property
    def _residence(self) -> float:
        """Seconds that a mean request stays, at a third of the largest batch."""
        new = self._search.load.means[1]
        return self._reading + new * self._token(max(1, self._full_batch // 3))

    @property
    def _least_copies(self) -> int:
        """A number below which the devices surely compute for longer than there is time."""
        each = self._writing + (0.0 if self._search.policy.split else self._reading)
        return max(1, floor(0.8 * self._search.load.rate * each / self._search.pipeline))

    @property
    def _least_readers(self) -> int:
        return max(1, floor(0.8 * self._search.load.rate * self._reading / self._search.pipeline))

    @property
    def _enough(self) -> int:
        """So many copies that a request hardly ever meets another one."""
        return 20 + ceil(20 * self._search.load.rate * self._residence)

    def _token(self, batch: int) -> float:
        """Seconds per token of a sequence beside so many of mean length."""
        search = self._search
        prompt, new = search.load.means
        cached = batch * search.shape.cached(prompt + new / 2)
        work = EnginePass(batch=batch, cached=cached, width=search.policy.width)
        return self._times.of(work)[0] / search.policy.tokens

    def _read(self, tokens: float) -> float:
        """Seconds in which a prompt alone is read."""
        pairs = self._search.shape.causal_pairs(tokens)
        return self._times.of(EnginePass(read=max(1, round(tokens)), pairs=pairs, ends=1))[0]

    def _check_one_request(self) -> None:
        """Raises Impossible where a request alone breaks a limit."""
        needs, load = self._search.needs, self._search.load
        prompt = max(1.0, load.prompt_at(needs.percentile) * (1 - load.shared))
        alone = {
            "the first token": (self._read(prompt), needs.first, f"of {prompt:,.0f} tokens"),
            "a token": (self._token(1), needs.token, "alone"),
        }
        for what, (seconds, limit, of) in alone.items():
            if limit is not None and seconds > limit:
                raise Impossible(
                    f"{what} of a request {of} takes {seconds * 1e3:.3g} ms, more than the limit "
                    f"of {limit * 1e3:g} ms: more devices do not help",
                    where=self._search.target.name,
                    hint="a higher limit, a narrower precision, or a faster device",
                )

    def _refusal(self) -> Impossible:
        return Impossible(
            f"no number of copies up to {self._enough:,} holds the limits",
            where=self._search.target.name,
            hint="a higher limit, or a smaller --chunk or --max-batch",
        )

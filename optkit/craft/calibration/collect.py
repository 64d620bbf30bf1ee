"""The calibration loop: one forward pass per part of the data serves all observers.

    forward of part n + 1 (threads of the runtime)   while   part n is counted (two threads)

Second moments take about 12 K² bytes per value. Those that do not fit in half of the memory get
separate passes, and the results wait in files (in the extreme case: layer by layer).
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from operator import length_hint
from pathlib import Path
from types import MappingProxyType

import numpy as np

from optkit.craft.calibration.calibration_clock import CalibrationClock
from optkit.craft.calibration.checkpoint import (
    Checkpoint,
    Position,
    State,
    read_moments,
    write_moments,
)
from optkit.craft.calibration.feeds import Cutter
from optkit.craft.calibration.fills import NO_FILLS, Fills
from optkit.craft.calibration.observer import MomentSum, Observer, rows_of
from optkit.craft.calibration.part import Data, SamplePart, data
from optkit.craft.calibration.patches import PatchView
from optkit.facts.errors import InputRefused, IntegrityError
from optkit.facts.tensors import Feed
from optkit.ground.data.identity import sample_digests
from optkit.ground.data.padding import mask_input, real_tokens
from optkit.ground.runtimes import Progress, Session
from optkit.ground.statistics import (
    CHUNK,
    ROWS,
    Moments,
    Statistics,
    Tap,
    ValueStatistics,
    Window,
    data_digest,
    of_expert,
)

_THREADS = 2  # threads that count, in addition to those of the runtime
_PRODUCT_BYTES = 12  # per element of a matrix of second moments: float64, and float32 of the chunk


def observe(
    session: Session,
    feeds: Iterable[Feed],
    taps: Sequence[Tap],
    *,
    memory_bytes: int,
    progress: Progress,
    fills: Mapping[str, Fills] = MappingProxyType({}),
    derived: Collection[str] = (),
    first: int = 0,
    total: int | None = None,
    checkpoint: Path | None = None,
) -> Statistics:
    """Run every feed and return the statistics of the observed values.

    session: runs a graph in which these values are outputs (`graph.expose`) or inputs.
    memory_bytes: a batch that needs more is run in parts, if the batch axis of the model is
    dynamic. derived: inputs that follow from the others, so they do not identify a sample. first:
    number of the first sample, for a shard. total: expected number of samples, for the estimate of
    the remaining time. checkpoint: folder for the state, written every few seconds. The same call
    continues from it and ends with the same bits; the caller removes it when the
    result is stored. `feeds` is read again after an interruption and for separate passes of
    moments, so it must then not be an iterator.

    Raises InputRefused for an empty set, inputs of different length, or a sample or matrix of
    moments that does not fit in memory; IntegrityError for a checkpoint of other samples. An
    observed value with NaN or infinities, or without data, is `unbounded` in the result.
    """
    identity = [
        [asdict(tap) for tap in taps],
        {name: asdict(fill) for name, fill in fills.items()},
        [asdict(info) for info in session.inputs],
        first,
    ]
    kept = Checkpoint(checkpoint, identity)
    clock = CalibrationClock(progress, total, length_hint(feeds))
    run = _Run(session, feeds, taps, fills, derived, Cutter(session, memory_bytes), first, clock)
    if (state := kept.read()) is not None:
        run.resume(state)
    with tempfile.TemporaryDirectory() as folder:
        return run.finish(kept, checkpoint or Path(folder))


class _Run:
    """One calibration: passes over the data, of which the first observes all values."""

    def __init__(
        self,
        session: Session,
        feeds: Iterable[Feed],
        taps: Sequence[Tap],
        fills: Mapping[str, Fills],
        derived: Collection[str],
        cutter: Cutter,
        first: int,
        clock: CalibrationClock,
    ) -> None:
        self._session, self._feeds, self._first = session, feeds, first
        self._taps = {tap.name: tap for tap in taps}
        self._fills, self._cutter, self._clock = fills, cutter, clock
        self._derived = derived
        self._mask = mask_input(session.inputs)
        self._observers = {
            name: Observer(axis if tap.chosen is None else None, rows=tap.rows, windows=tap.windows)
            for tap in taps
            for axis in (tap.channel_axis,)
            for name in (tap.name, *(of_expert(tap.name, each) for each in range(tap.experts)))
        }
        # the second moments by key: the rows of a value, of those that an expert reads, or its
        # patches in a window
        self._multiplied: dict[str, tuple[str, Window | int | None]] = {
            f"{place} {tap.name}": (tap.name, part)
            for tap in taps
            if tap.moments
            for place, part in enumerate(
                range(tap.experts) if tap.chosen else tap.windows or [None]
            )
        }
        self._products: dict[str, MomentSum] = {}
        # the keys whose moments a pass sums; empty while unknown
        self._groups: list[list[str]] = []
        self._pass, self._done, self._data = 0, 0, data_digest([])

    def finish(self, checkpoint: Checkpoint, folder: Path) -> Statistics:
        """Do the passes that are left, and merge their results."""
        while True:
            self._run_pass(checkpoint)
            by_name = {k: m for k, p in self._products.items() if (m := p.result()) is not None}
            if self._pass + 1 >= len(self._groups):
                break
            write_moments(folder, self._pass, by_name)
            self._pass, self._done, self._data = self._pass + 1, 0, data_digest([])
            self._start_products()
            checkpoint.write(self.state())
        by_name |= read_moments(folder, range(self._pass))
        values = {name: observer.result() for name, observer in sorted(self._observers.items())}
        for key, moments in by_name.items():
            name, part = self._multiplied[key]
            name, window = (of_expert(name, part), None) if isinstance(part, int) else (name, part)
            values[name] = _with_moments(values[name], window, moments)
        return Statistics(values, self._done, self._data)

    def state(self) -> State:
        """The state that `resume` needs."""
        return State(
            Position(self._pass, self._done, self._data, self._groups, self._cutter.sizes),
            {name: observer.result() for name, observer in self._observers.items()},
            {name: p.sums for name, p in self._products.items() if p.sums is not None},
        )

    def resume(self, state: State) -> None:
        """Continue from this state. Raises IntegrityError if the samples have changed."""
        position = state.position
        self._pass, self._done = position.passes, position.done
        self._data, self._groups = position.data, position.groups
        self._cutter.sizes = position.sizes
        if self._digest_of_first(self._done) != self._data:
            raise IntegrityError(
                "the checkpoint belongs to other samples",
                where="calibration",
                hint="remove its folder, or give the same samples again",
            )
        for name, value in state.values.items():
            self._observers[name].resume(value)
        self._start_products()
        for name, sums in state.products.items():
            self._products[name].sums = sums

    def _run_pass(self, checkpoint: Checkpoint) -> None:
        self._clock.start(self._done)
        with ThreadPoolExecutor(_THREADS) as beside:
            counted = _Counted()
            for feed, part in self._parts():
                values = feed | self._session.run(feed)
                self._end_part(counted)
                if checkpoint.due:
                    checkpoint.write(self.state())
                names = list(self._taps)
                if self._pass:
                    names = list(dict.fromkeys(self._multiplied[key][0] for key in self._products))
                # a value is released when it is counted: the next part needs the memory
                chosen = {
                    n: values[tap.chosen] for n, tap in self._taps.items() if tap.chosen is not None
                }
                tasks = [
                    beside.submit(self._count, n, values.pop(n), part, chosen.get(n)) for n in names
                ]
                counted = _Counted(part, tasks)
                del values
                self._clock.tell(part.last - self._first, self._pass, max(len(self._groups), 1))
            self._end_part(counted)
        if not self._done:
            raise InputRefused(
                "the calibration set is empty",
                where="calibration",
                hint="the sample source yielded nothing; 128 to 512 samples are usual",
            )

    def _parts(self) -> Iterator[tuple[Feed, SamplePart]]:
        """The parts of the data that are left in this pass, checked."""
        cutter, number, skip = self._cutter, self._first, self._first + self._done
        for feeds, feed in enumerate(self._feeds, start=1):
            _check_lengths(self._session, feed, cutter.batched)
            end = number + cutter.count(feed)
            at = max(number, skip)
            if at < end:
                cutter.measure(feed)
                self._plan()
            for cut in cutter.parts(feed, number, at - number):
                digests = self._digests(cut)
                self._clock.feeds = feeds if at + len(digests) == end else feeds - 1
                yield cut, SamplePart(at, digests, real_tokens(cut, self._mask))
                at += len(digests)
            number = end

    def _digests(self, feed: Feed) -> list[bytes]:
        """The digest of each sample."""
        known = {name: array for name, array in feed.items() if name not in self._derived}
        return [bytes.fromhex(digest) for digest in sample_digests(known, self._cutter.batched)]

    def _digest_of_first(self, count: int) -> str:
        """`Statistics.data` of the first `count` samples."""
        data, left = data_digest([]), count
        for feed in self._feeds:
            if left <= 0:
                break
            digests = self._digests(self._cutter.cut(feed, 0, left))
            data, left = data_digest([bytes.fromhex(data), *digests]), left - len(digests)
        return data

    def _plan(self) -> None:
        """Divide the memory between values and second moments, when their sizes are known."""
        if self._groups:
            return
        shapes, cutter = self._cutter.shapes, self._cutter
        channels = {
            name: shapes[name][tap.channel_axis]
            for name, tap in self._taps.items()
            if tap.channel_axis is not None and shapes[name]
        }
        rows = 4 * ROWS * sum(k * _sampled(self._taps[name]) for name, k in channels.items())
        products = {
            key: _product_bytes(channels[name], None if isinstance(window, int) else window)
            for key, (name, window) in self._multiplied.items()
            if name in channels
        }
        free = cutter.memory_bytes - cutter.need - rows
        for key, size in products.items():
            if size > free:
                raise InputRefused(
                    f"its second moments need {size >> 20} MiB of memory, {free >> 20} are free",
                    where=f"tensor {self._multiplied[key][0]!r}",
                    hint="raise --memory",
                )
        self._groups = _grouped(products, free // 2)
        cutter.reserved = rows + max(sum(products[k] for k in group) for group in self._groups)
        self._start_products()

    def _start_products(self) -> None:
        self._products = {key: MomentSum() for key in self._groups[self._pass]}

    def _count(
        self, name: str, value: np.ndarray, part: SamplePart, chosen: np.ndarray | None
    ) -> None:
        """Count one value of a part: for all observers in the first pass, later only for its
        moments. `chosen`: the expert of each row."""
        axis = self._taps[name].channel_axis
        if chosen is not None:
            self._count_by_expert(name, value, part, chosen.reshape(-1))
            return
        counted = data(value, part, self._fills.get(name, NO_FILLS), axis)
        if not self._pass:
            self._observers[name].update(counted, part)
        if counted.verdict is not None or axis is None or not counted.x.size:
            return
        for key, products in self._products.items():
            of, window = self._multiplied[key]
            if of == name and not isinstance(window, int):
                products.update(_multiplied(counted, part, axis, window))

    def _count_by_expert(
        self, name: str, value: np.ndarray, part: SamplePart, chosen: np.ndarray
    ) -> None:
        """Count the rows of each expert apart, without those of padding."""
        rows = value.reshape(len(chosen), -1)
        if part.real is not None and len(rows) % part.real.size == 0:
            real = np.repeat(part.real.reshape(-1), len(rows) // part.real.size)
            rows, chosen = rows[real], chosen[real]
        whole = SamplePart(part.first, part.digests)
        for expert in range(self._taps[name].experts):
            counted = data(rows[chosen == expert], whole, NO_FILLS, -1)
            if not self._pass:
                for of in (name, of_expert(name, expert)):
                    self._observers[of].update(counted, whole)
            products = self._products.get(f"{expert} {name}")
            if products is not None and counted.verdict is None:
                products.update(counted.x)

    def _end_part(self, counted: _Counted) -> None:
        """Wait until the part is counted, and record that it is done."""
        for task in counted.tasks:
            task.result()
        if (part := counted.part) is None:
            return
        if part.last % CHUNK == 0:
            for products in self._products.values():
                products.end_chunk()
        self._done += part.samples
        self._data = data_digest([bytes.fromhex(self._data), *part.digests])


def _sampled(tap: Tap) -> int:
    """How many numbers of a channel each kept row contains: its own, and those of patches."""
    return int(tap.rows) + sum(window.taps for window in tap.windows)


def _product_bytes(channels: int, window: Window | None) -> int:
    """The bytes that the second moments of a value, or of its patches, take during the
    summation."""
    k = window.size(channels) if window else channels
    return (window.groups if window else 1) * _PRODUCT_BYTES * k * (k + ROWS)


@dataclass(frozen=True)
class _Counted:
    """A part that is being counted, value by value."""

    part: SamplePart | None = None
    tasks: Sequence[Future[None]] = ()


def _grouped(sizes: Mapping[str, int], budget: int) -> list[list[str]]:
    """Names in order, divided into groups whose sizes fit in the budget; at least one group."""
    groups: list[list[str]] = [[]]
    held = 0
    for name, size in sizes.items():
        if groups[-1] and held + size > budget:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += size
    return groups


def _multiplied(counted: Data, part: SamplePart, axis: int, window: Window | None) -> np.ndarray:
    """The rows [m, K], or patches [groups, m, K], whose second moments are summed."""
    return (
        rows_of(counted, axis) if window is None else PatchView(counted, part, window).for_moments()
    )


def _with_moments(
    value: ValueStatistics, window: Window | None, moments: Moments
) -> ValueStatistics:
    if value.unbounded is not None:
        return value
    if window is None:
        return replace(value, moments=moments)
    seen = replace(value.patches[window], moments=moments)
    return replace(value, patches={**value.patches, window: seen})


def _check_lengths(session: Session, feed: Feed, batch: Collection[str]) -> None:
    missing = [spec.name for spec in session.inputs if spec.name not in feed]
    if missing:
        raise InputRefused("the sample has no such array", where=f"input {missing[0]!r}")
    lengths = {spec.name: len(feed[spec.name]) for spec in session.inputs if spec.name in batch}
    if len(set(lengths.values())) > 1:
        raise InputRefused(f"inputs differ in length: {lengths}", where="calibration sample")

"""A few samples at one point of the declared sizes.

What they take is bounded: those of an end at most half of what one pass over the given samples
takes, in multiply-adds and bytes of values, and those between at most a quarter; or `_ALWAYS` if
that is more. If a single sample at the largest sizes takes more, the sizes are halved until one
fits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from math import prod, sqrt
from pathlib import Path

import numpy as np
import onnx_ir as ir

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import (
    AxisRange,
    Feed,
    InputSpec,
    TensorInfo,
    axes_of,
    count_samples,
    size_of,
)
from optkit.ground import graph
from optkit.ground.data import spool_writer
from optkit.ground.data.resizing import resized, sizes_of, unchangeable
from optkit.ground.data.spool import Spool
from optkit.ground.data.spool_writer import SpoolInfo
from optkit.ground.execute.step import Progress
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.resize import ENDS, Resize, ResizedSamples

_MOST = 64  # samples: fewer do not show the extremes of short samples
_ALWAYS = 1 << 32  # multiply-adds and bytes, about a second on one core
_SHARE = 2  # 1 / the share of the given samples' work
_BYTES = 2 << 30  # of the values of one sample
_SPOOLED = 256 << 20  # of the inputs of all samples
_GOLDEN = 0.618034  # its multiples, modulo 1, are spread evenly, however many there are
_FAR = 4  # times: a nearer end and the samples' own size have nothing between that is far from both


def run(step: Resize, out: Path, progress: Progress) -> ResizedSamples:
    samples = Spool(step.samples.path)
    seen = [(count_samples(feed), sizes_of(feed, samples.inputs)) for feed, _ in samples]
    reached = _reached(seen, step.axes)
    between = step.at not in ENDS
    goal = _ends(step)
    if all(reached.get(name) == (size, size) for name, size in goal.items()):
        return ResizedSamples(reached=reached, sizes=goal)
    feeds = list(_few(samples, step.whole))
    told = {
        name: f"they cannot have the size {goal[name]}: {why}"
        for feed in feeds
        for name, why in unchangeable(feed, step.specs, goal).items()
    }
    goal = {name: size for name, size in goal.items() if name not in told}
    if not goal:
        warnings = () if between else _warnings(step, reached, told)
        return ResizedSamples(reached=reached, told=told, warnings=warnings)
    progress("finding what a run takes", 0.1)
    work = _Work(graph.load(step.graph.path / GRAPH), feeds[0], samples)
    given = len(samples) / count_samples(feeds[0])
    budget = max(work.of({})[0] * given / _SHARE, _ALWAYS)
    sizes = _affordable(work, step.axes, goal, budget)
    told |= {
        name: f"only {sizes[name]} is tried, because more takes too long or too much memory"
        for name, size in goal.items()
        if sizes[name] < size
    }
    if between:  # those of the end tell what is left out
        halfway = _halfway(step, sizes, reached)
        if halfway is None:
            return ResizedSamples(reached=reached, sizes=sizes)
        sizes, told, budget = halfway, {}, budget / 2
    most = budget // max(work.of(sizes)[0], 1)
    written = _written(step, out, samples, feeds, sizes, most, progress)
    return ResizedSamples(
        info=written,
        reached=reached,
        sizes=sizes,
        told=told,
        distinct=_distinct(seen, sizes, written.samples),
        warnings=_warnings(step, reached, told),
    )


def _written(
    step: Resize,
    out: Path,
    samples: Spool,
    feeds: Sequence[Feed],
    sizes: Mapping[str, int],
    most: float,
    progress: Progress,
) -> SpoolInfo:
    """The feeds with these sizes in a spool: at least one, at most so many, and as many as fit."""
    longer = _longer(feeds, step.specs, sizes)
    made = (
        resized(feed, step.specs, sizes, at=_place(number, last=step.last))
        for number, feed in enumerate(longer)
    )
    first = next(made)
    fit = _SPOOLED // max(sum(array.nbytes for array in first.values()), 1)
    count = max(int(min(len(feeds), most, fit)), 1)
    return spool_writer.write(
        [first, *islice(made, count - 1)],
        out,
        samples.inputs,
        limit_samples=None,
        memory_bytes=max(step.memory, _SPOOLED),
        progress=progress,
        optional=step.optional,
    )


def _place(number: int, *, last: bool) -> float | None:
    """Where sample `number` is cut: every second one at its beginning (or its end), the others at
    many places of this half. All texts may begin with the same token, and all recordings with
    silence."""
    if number % 2 == 0:
        return 1.0 if last else None
    inside = number * _GOLDEN % 1 / 2
    return inside + 0.5 if last else inside


def _ends(step: Resize) -> dict[str, int]:
    """The least or the largest sizes of the axes."""
    if _is_short(step):
        return {name: max(axis.min, axis.multiple) for name, axis in step.axes.items()}
    return {name: axis.max for name, axis in step.axes.items()}


def _is_short(step: Resize) -> bool:
    return step.at in ("least", "shorter")


def _halfway(
    step: Resize, sizes: Mapping[str, int], reached: Mapping[str, tuple[int, int]]
) -> dict[str, int] | None:
    """The sizes between those of an end and the nearest ones of the samples; None if none of them
    is far from both."""
    own = {name: reached[name][0 if _is_short(step) else 1] for name in sizes}
    if not any(_far(size, own[name]) for name, size in sizes.items()):
        return None
    return {name: step.axes[name].nearest(sqrt(size * own[name])) for name, size in sizes.items()}


def _far(size: int, own: int) -> bool:
    return max(size, own) >= _FAR * min(size, own)


def _reached(
    seen: Sequence[tuple[int, Mapping[str, int]]], axes: Collection[str]
) -> dict[str, tuple[int, int]]:
    """The smallest and the largest size of each axis in all samples."""
    found: dict[str, tuple[int, int]] = {}
    for _, sizes in seen:
        for name, size in sizes.items():
            if name in axes:
                low, high = found.get(name, (size, size))
                found[name] = min(low, size), max(high, size)
    return found


def _distinct(
    seen: Sequence[tuple[int, Mapping[str, int]]], sizes: Mapping[str, int], count: int
) -> int | None:
    """How many samples of these sizes the values of all given samples fill once; None if there are
    enough of them for `count`."""
    shares = (prod(min(old[name] / size, 1.0) for name, size in sizes.items()) for _, old in seen)
    found = sum(samples * share for (samples, _), share in zip(seen, shares, strict=True))
    return max(int(found), 1) if found < count else None


def _few(samples: Spool, whole: bool) -> Iterator[Feed]:
    """At most `_MOST` samples at equal distances, or batches as they were written."""
    if whole:
        return (feed for feed, _ in islice(samples, _MOST))
    return samples.spread(_MOST)


def _longer(
    feeds: Sequence[Feed], specs: Sequence[InputSpec], sizes: Mapping[str, int]
) -> Iterator[Feed]:
    """Each feed with others behind it along the only axis that grows, so that a longer sample has
    more different values, as long samples have. The feeds as they are if more axes grow, or if an
    input has the axis in another way than as one of its dimensions."""
    infos = [spec.info for spec in specs]
    old = sizes_of(feeds[0], infos)
    grown = [name for name, size in sizes.items() if size > old.get(name, size)]
    if len(feeds) == 1 or len(grown) != 1 or not _joinable(infos, grown[0]):
        yield from feeds
        return
    axis = grown[0]
    at = {info.name: info.shape.index(axis) for info in infos if axis in axes_of(info.shape)}
    for first in range(len(feeds)):
        turn = [*feeds[first:], *feeds[:first]]
        held, taken = 0, []
        for feed in turn:
            if held <= sizes[axis] and _shape_across(feed, at) == _shape_across(turn[0], at):
                held += sizes_of(feed, infos)[axis]
                taken.append(feed)
        joined = {n: np.concatenate([feed[n] for feed in taken], axis=at[n]) for n in at}
        yield turn[0] | joined


def _joinable(infos: Sequence[TensorInfo], axis: str) -> bool:
    """Whether samples can be put behind each other along the axis. An input named a length tells
    that of the sample."""
    along = [info for info in infos if axis in axes_of(info.shape)]
    plain = all(info.shape.count(axis) == 1 and len(info.shape) < 4 for info in along)
    return plain and not any("len" in info.name.lower() for info in infos)


def _shape_across(feed: Feed, at: Mapping[str, int]) -> list[tuple[int, ...]]:
    """The shapes without the axis that is at these places."""
    return [feed[n].shape[:axis] + feed[n].shape[axis + 1 :] for n, axis in at.items()]


class _Work:
    """What a run of one feed takes, at other sizes of its axes."""

    def __init__(self, model: ir.Model, feed: Feed, samples: Spool) -> None:
        self._model, self._inputs, self._feed = model, samples.inputs, feed
        self._base = sizes_of(feed, samples.inputs)
        self._known: dict[tuple[int, ...], tuple[float, float]] = {}

    @property
    def base(self) -> Mapping[str, int]:
        """The sizes of the feed."""
        return self._base

    def of(self, sizes: Mapping[str, int]) -> tuple[float, float]:
        """Multiply-adds plus bytes, and bytes alone, of all values."""
        axes = {**self._base, **sizes}
        key = tuple(axes.values())
        if key not in self._known:
            self._known[key] = self._computed(axes)
        return self._known[key]

    def input_bytes(self, sizes: Mapping[str, int]) -> int:
        axes = {**self._base, **sizes}
        shapes = ((info, [size_of(dim, axes) for dim in info.shape]) for info in self._inputs)
        return sum(np.dtype(info.dtype).itemsize * prod(shape) for info, shape in shapes)

    def _computed(self, axes: Mapping[str, int]) -> tuple[float, float]:
        try:
            costs = graph.costs(self._model, axes).values()
        except InputRefused:  # shapes that do not follow from the axes: by the size of the inputs
            elements = prod(axes.values())
            return float(elements), 4.0 * elements
        macs = sum((c.macs or 0) + (c.recurrence.macs if c.recurrence else 0) for c in costs)
        moved = sum(c.out_bytes or 0 for c in costs)
        return float(macs + moved), float(moved)


def _affordable(
    work: _Work, axes: Mapping[str, AxisRange], goal: Mapping[str, int], budget: float
) -> dict[str, int]:
    """The sizes at which one sample fits in the budget: those of the goal, or half of them, a
    quarter, …; never less than those of the samples."""
    sizes = dict(goal)
    while True:
        taken, held = work.of(sizes)
        smaller = {
            n: max(axes[n].nearest(s // 2), min(s, work.base.get(n, s))) for n, s in sizes.items()
        }
        fits = taken <= budget and held <= _BYTES and work.input_bytes(sizes) <= _SPOOLED
        if fits or smaller == sizes:
            return sizes
        sizes = smaller


def _warnings(
    step: Resize, reached: Mapping[str, tuple[int, int]], told: Mapping[str, str]
) -> tuple[str, ...]:
    """A sentence for each axis whose end is not tried."""
    return tuple(
        f"axis {name} is declared {_span(step.axes[name].min, step.axes[name].max)}, the samples "
        f"have {_span(*reached[name]) if name in reached else 'unknown sizes'}: {why}"
        for name, why in told.items()
    )


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"

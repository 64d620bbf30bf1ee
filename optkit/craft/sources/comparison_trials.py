"""What an exported graph and its model are run on: the user's samples at their own sizes and at the
compared ones, or random values where there are no samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from optkit.craft.sources.compared_sizes import Sizes, compared_sizes
from optkit.facts.tensors import AxisRange, Feed, InputSpec, batch_axis, batched
from optkit.ground.data import mask_styles
from optkit.ground.data.resizing import resized, sizes_of, unchangeable
from optkit.ground.data.synthetic import random_feed

Values = Literal["samples", "random"]


@dataclass(frozen=True)
class ComparisonTrial:
    """One run of both. `feed` makes the inputs. `masks`: how masks are filled, if not as in the
    samples; `reason`: why it cannot be made."""

    sizes: Sizes
    values: Values
    feed: Callable[[], Feed]
    masks: mask_styles.Style | None = None
    reason: str | None = None


def trials(
    specs: Sequence[InputSpec], axes: Mapping[str, AxisRange], samples: Sequence[Feed] = ()
) -> Iterator[ComparisonTrial]:
    """The runs, the most important ones first: the samples as they are, the compared sizes, then
    the other ways to fill masks. `samples`: one sample each, of several sizes, or batches of the
    fixed size."""
    source = _source(specs, axes, samples)
    yield from source.as_they_are()
    places = [
        {name: axes[name].nearest(size) for name, size in one.items()}
        for one in compared_sizes(axes, source.batch)
    ]
    places = [sizes for index, sizes in enumerate(places) if sizes not in places[:index]]
    for seed, sizes in enumerate(places):
        yield source.at(sizes, seed)
    first = places[min(1, len(places) - 1)]
    for style in mask_styles.styles(specs):
        yield source.filled(first, style, len(places))


def feed_at(
    specs: Sequence[InputSpec], axes: Mapping[str, AxisRange], samples: Sequence[Feed], sizes: Sizes
) -> Feed:
    """The samples at these sizes, or random values if they cannot have them."""
    return _source(specs, axes, samples).at(sizes, 0).feed()


def _source(
    specs: Sequence[InputSpec], axes: Mapping[str, AxisRange], samples: Sequence[Feed]
) -> _Samples:
    batch = batch_axis(spec.info for spec in specs)
    seen = _with_seen_ranges(specs, samples)
    return _Samples(seen, axes, samples, batch if isinstance(batch, str) else None)


class _Samples:
    """Feeds of any sizes from a few samples."""

    def __init__(
        self,
        specs: Sequence[InputSpec],
        axes: Mapping[str, AxisRange],
        samples: Sequence[Feed],
        batch: str | None,
    ) -> None:
        self._specs, self._axes, self._samples, self.batch = specs, axes, samples, batch
        self._infos = [spec.info for spec in specs]
        self.batched = batched(self._infos)
        self._joins = all(i.name in self.batched for i in self._infos)

    def as_they_are(self) -> Iterator[ComparisonTrial]:
        """The samples in the declared ranges, those of one size together if they can be joined."""
        left = list(self._samples)
        while left:
            first = left.pop(0)
            sizes, joined = self._sizes(first), [first]
            if self.batch is not None and self._joins:
                joined += [other for other in left if self._sizes(other) == sizes]
                left = [other for other in left if self._sizes(other) != sizes]
                axis = self._axes[self.batch]
                joined = joined[: max(axis.max, 1)]
                sizes[self.batch] = max(axis.min, len(joined))
            elif self.batch is not None:
                sizes[self.batch] = max(self._axes[self.batch].min, 1)
            if all(sizes[name] in axis for name, axis in self._axes.items()):
                yield ComparisonTrial(sizes, "samples", partial(self._rows, joined, sizes))

    def at(self, sizes: Sizes, seed: int) -> ComparisonTrial:
        """The samples at these sizes, each in turn the first one of the batch; random values if
        there are none, or if an axis is empty in all of them."""
        rest = {name: size for name, size in sizes.items() if name != self.batch}
        turn = seed % max(len(self._samples), 1)
        taken = [*self._samples[turn:], *self._samples[:turn]]
        reasons = [unchangeable(one, self._specs, rest) for one in taken]
        fitting = [one for one, reason in zip(taken, reasons, strict=True) if not reason]
        if fitting:
            return ComparisonTrial(sizes, "samples", partial(self._rows, fitting, sizes))
        trial = ComparisonTrial(sizes, "random", partial(random_feed, self._specs, sizes, seed))
        if reasons and not any(0 in self._sizes(one).values() for one in taken):
            axis, reason = next(iter(reasons[0].items()))
            return replace(trial, reason=f"the samples cannot have other sizes of {axis}: {reason}")
        return trial

    def filled(self, sizes: Sizes, style: mask_styles.Style, seed: int) -> ComparisonTrial:
        """The feed at these sizes, its masks filled in another way."""
        trial = self.at(sizes, seed)
        feed = trial.feed
        return replace(
            trial, masks=style, feed=lambda: mask_styles.filled(feed(), self._specs, style)
        )

    def _sizes(self, feed: Feed) -> Sizes:
        found = sizes_of(feed, self._infos)
        return {name: found.get(name, axis.min) for name, axis in self._axes.items()}

    def _rows(self, samples: Sequence[Feed], sizes: Sizes) -> Feed:
        """The samples at these sizes, joined along the batch, again and again if they are fewer."""
        rest = {name: size for name, size in sizes.items() if name != self.batch}
        count = sizes.get(self.batch or "")
        if count is None:
            return resized(samples[0], self._specs, rest)
        parts = [resized(one, self._specs, rest) for one in samples[: max(count, 1)]]
        return {
            name: np.resize(
                joined := np.concatenate([part[name] for part in parts]), (count, *joined.shape[1:])
            )
            if name in self.batched
            else array
            for name, array in parts[0].items()
        }


def _with_seen_ranges(specs: Sequence[InputSpec], samples: Sequence[Feed]) -> list[InputSpec]:
    """The inputs with the ranges of the samples' integers, where the recipe declares none."""
    found = []
    for spec in specs:
        arrays = [one[spec.info.name] for one in samples if one[spec.info.name].size]
        if spec.range is None and arrays and arrays[0].dtype.kind in "iu":
            low, high = min(a.min() for a in arrays), max(a.max() for a in arrays)
            spec = replace(spec, range=(int(low), int(high)))
        found.append(spec)
    return found

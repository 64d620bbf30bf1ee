"""Fidelity: how closely a session's outputs follow a reference's on the same inputs.

    SQNR = 10·log10( Σ r² / Σ (r - c)² )  dB        cosine = Σ r·c / √(Σ r² · Σ c²)

for each output, for each part of an output whose values have a unit of their own (`output_parts`),
and pooled over all outputs; over all samples, summed in float64, one batch in memory at a time. The
pooled figure hides a small output behind a large one, so what is judged is the worst of them. The
interval of an SQNR is a bootstrap over samples: a few of them may hold most of the noise.

- Integer and bool outputs (class indices, masks) have the share of equal values, and no SQNR where
  the model also gives floats: a distance of two indices means nothing, and it would drown the
  floats. So have caches of floats that the candidate stores as codes no figure.
- Padding is left out: nothing reads it. So are NaN and infinities that both have at the same place.
- A cache of a decoder counts in the pooled figure and has none of its own: the next run reads it,
  and the logits show its error.
- The error of an output that is zero in the reference is compared with the signal of all outputs.
  A constant one has an SQNR as any other, from its power; `varying` says that it tells little.

    varying = Σ_b var(p_b) / Σ_b mean(p_b²)        p_b = Σ s_i·r_i over the elements i of bucket b

is the share of the reference's power that differs between samples: near 1 for outputs of mean zero,
0 for outputs that do not depend on the input. The signs s_i = ±1 are random, so both sums have the
expectation of those over all elements (Charikar et al., "Finding frequent items in data streams",
2002), with a relative error of √(2/buckets), and a sample is kept as few numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import log10, sqrt
from typing import NamedTuple

import numpy as np

from optkit.craft.benchmarking.intervals import bootstrap
from optkit.craft.benchmarking.output_parts import named, parts
from optkit.craft.benchmarking.output_sums import Layout, Totals, fill, layouts
from optkit.craft.benchmarking.partial_results import PartialScores
from optkit.facts.codec import from_json, to_json
from optkit.facts.errors import InputRefused
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import ChannelSpread, Fidelity, Interval, OutputFidelity
from optkit.facts.tensors import Feed, count_samples, narrowed
from optkit.ground.data.padding import TokenAxes
from optkit.ground.data.spool import Batch, counting
from optkit.ground.decoder import Decoder
from optkit.ground.runtimes import Session

_LEAST = 20  # units that an interval needs
_REFERENCE = (
    "the model itself returns it, before any change of precision: look at these samples, and in "
    "the model for a division by 0, a logarithm of 0 or an overflow"
)
_COMPARED = (
    "the reference is finite there: look for values that are too large for FP16 (above 65504) if "
    "the graph has FP16, and for a division by, or a logarithm of, a value that its codes round to "
    "0"
)


def fidelity(
    reference: Session,
    candidate: Session,
    batches: Iterable[Batch],
    *,
    name: str,
    evidence: Evidence,
    kept: PartialScores | None = None,
) -> Fidelity:
    """The fidelity of all `batches` of a spool: `run`, then `pool`."""
    kept = kept or PartialScores(None)
    run(reference, candidate, batches, kept)
    return pool(kept, name=name, evidence=evidence)


def run(
    reference: Session, candidate: Session, batches: Iterable[Batch], kept: PartialScores
) -> None:
    """Compare two sessions on the feeds of a spool's `batches`, and add the sums to `kept`. `kept`
    contains those of an earlier run, whose batches are not in `batches`.

    Raises InputRefused for a value of the reference that is not finite, unless both have it at the
    same place or it is padding, and for outputs that do not match.
    """
    samples = kept.first + int(sum(rows[:, _SAMPLES].sum() for rows in kept.scores))
    for feed, labels in batches:
        outputs = reference.run(feed)
        hidden = counting(padding(reference, feed, outputs), feed, labels)
        expected = counting(outputs, feed, labels)
        actual = counting(candidate.run(narrowed(feed, candidate.inputs)), feed, labels)
        if kept.layout is None:
            decoder = Decoder.of(reference.inputs, reference.outputs)
            states = decoder.carried if decoder is not None else ()
            kept.layout = to_json(layouts(expected, actual, reference.outputs, tuple(states)))
        count = count_samples(feed) if labels is None else len(labels)
        columns = _layouts(kept)
        kept.add(_rows(columns, expected, actual, hidden, count, first=samples))
        samples += count


def padding(session: Session, feed: Feed, outputs: Feed) -> Feed:
    """The elements of a session's outputs for a feed that are padding: bool [samples, …] that
    broadcasts to the output, for the outputs that have padding."""
    tokens = TokenAxes.of(session.inputs)
    if tokens is None:
        return {}
    found = {
        info.name: tokens.hidden(feed, info, outputs[info.name].shape)
        for info in session.outputs
        if info.name in outputs
    }
    return {name: hidden for name, hidden in found.items() if hidden is not None}


def pool(kept: PartialScores, *, name: str, evidence: Evidence, intervals: bool = True) -> Fidelity:
    """The Fidelity from all kept sums. `name`: the reference, e.g. "fp32". Raises InputRefused if
    there is nothing to compare, because there are no samples, the reference is zero, or the
    compared graph is finite for no sample."""
    columns = _layouts(kept)
    width = _HEAD + sum(layout.width for layout in columns)
    rows = np.concatenate([np.zeros((0, width)), *kept.scores])
    samples, lost = (int(rows[:, column].sum()) for column in (_SAMPLES, _LOST_SAMPLES))
    if samples:
        _check_finite(samples - lost, columns)
    units, power, dot, most = _whole(columns, rows)
    signal, noise = (float(total) for total in units.sum(axis=0))
    if not samples or (signal == 0 and noise > 0):
        what = "all its outputs are zero" if samples else "there are no samples"
        raise InputRefused(f"fidelity to {name} is not defined: {what}", where=name)
    return Fidelity(
        evidence=evidence,
        reference=name,
        sqnr_db=_decibels(signal, noise),
        ci95=_interval(units) if intervals else None,
        cosine=_cosine(signal, noise, power, dot),
        max_abs_error=most,
        samples=samples,
        all_zero=True if signal == noise == 0 else None,
        varying=_varying(rows),
        not_finite=lost or None,
        outputs=_outputs(columns, rows, beside=signal, intervals=_INTERVALS if intervals else 0),
    )


def _check_finite(finite: int, columns: Sequence[Layout]) -> None:
    """Raise InputRefused if the compared graph is finite for no sample."""
    if not finite:
        raise InputRefused(
            "the compared graph returns values that are not finite for every sample",
            where=f"outputs {', '.join(repr(each.output) for each in columns if each.judged)}",
            hint=_COMPARED,
        )


def _whole(columns: Sequence[Layout], rows: np.ndarray) -> tuple[np.ndarray, float, float, float]:
    """Over all judged outputs: signal and noise of each row, float64 [rows, 2], the power of the
    candidate, its product with the reference, and the largest error."""
    units = np.zeros((len(rows), 2))
    power = dot = most = 0.0
    for layout, own in _split(columns, rows):
        if layout.judged:
            _, whole = next(layout.blocks(own))
            units += whole[:, :2, 0]
            sums = Totals.of(whole)
            power, dot = power + float(sums.power[0]), dot + float(sums.dot[0])
            most = max(most, float(sums.most[0]))
    return units, power, dot, most


_BUCKETS = 32
_SAMPLES, _LOST_SAMPLES, _SKETCH = 0, 1, 2
_HEAD = _SKETCH + _BUCKETS
_VARIES = 1e-3  # the least variance, as a share of the power, that a candidate can lose
_LOST = 0.01  # of the variance
_INTERVALS = 8  # of so many outputs, the worst: a bootstrap of each takes a fifth of a second


def _layouts(kept: PartialScores) -> tuple[Layout, ...]:
    return from_json(tuple[Layout, ...], kept.layout or ())


def _split(columns: Sequence[Layout], rows: np.ndarray) -> Iterator[tuple[Layout, np.ndarray]]:
    """Each output with its columns of the rows, in place."""
    start = _HEAD
    for layout in columns:
        yield layout, rows[:, start : start + layout.width]
        start += layout.width


def _rows(
    columns: Sequence[Layout], expected: Feed, actual: Feed, hidden: Feed, count: int, *, first: int
) -> np.ndarray:
    """The number of samples, that of samples with values that are not finite, the sketch of the
    judged outputs and the columns of all outputs, float64 [rows, …]: for each sample, or for the
    whole batch if a judged output does not have one row per sample."""
    judged = [layout.output for layout in columns if layout.judged]
    apart = all(expected[name].shape[:1] == (count,) for name in judged)
    rows = count if apart else 1
    found = np.zeros((rows, _HEAD + sum(layout.width for layout in columns)))
    found[:, _SAMPLES] = 1 if apart else count
    for layout, own in _split(columns, found):
        name = layout.output
        values, other = expected[name], actual.get(name)
        if not layout.judged:
            same = other is not None and other.shape == values.shape
            equal = np.count_nonzero(values == other) if same else 0
            own[0] = values.size, equal
            continue
        r, c, seen = _pair(name, values, actual, hidden.get(name), first=first)
        lead = len(values) if values.ndim else 1
        shape = (rows, lead // rows, *values.shape[1:])
        lost = ~np.isfinite(c)
        c[lost] = 0.0  # nothing of the value is left
        found[lost.reshape(rows, -1).any(axis=1), _LOST_SAMPLES] = found[0, _SAMPLES]
        fill(layout, own, r.reshape(shape), c.reshape(shape), seen.reshape(shape))
        number = judged.index(name)
        found[:, _SKETCH:_HEAD] += _sketch(r.reshape(rows, -1), number)
    return found


class _Figure(NamedTuple):
    """The figure of an output or a part, and its signal and noise [rows, 2]."""

    output: OutputFidelity
    units: np.ndarray


def _outputs(
    columns: Sequence[Layout], rows: np.ndarray, *, beside: float, intervals: int
) -> tuple[OutputFidelity, ...]:
    """The figures of all outputs, with intervals of so many of the worst."""
    figures = [
        figure
        for layout, own in _split(columns, rows)
        for figure in _figures(layout, own, beside=beside)
    ]
    known = [at for at, one in enumerate(figures) if one.output.sqnr_db is not None]
    known.sort(key=lambda at: figures[at].output.sqnr_db or 0.0)
    told = {at for at in known[:intervals] if not figures[at].output.silent}
    return tuple(
        replace(one.output, ci95=_interval(one.units)) if at in told else one.output
        for at, one in enumerate(figures)
    )


def _figures(layout: Layout, rows: np.ndarray, *, beside: float) -> Iterator[_Figure]:
    """The figures of an output and of its parts, from its columns; none of a state, whose error
    shows in what the next run returns. `beside`: the signal of all outputs."""
    if layout.state:
        return
    if not layout.judged:
        count, equal = (float(total) for total in rows.sum(axis=0))
        found = OutputFidelity(layout.output, equal=equal / count if count else 1.0)
        yield _Figure(found, np.zeros((0, 2)))
        return
    (_, whole), *axes = layout.blocks(rows)
    blocks = {axis: block for axis, block in axes if axis is not None}
    sums = {axis: Totals.of(block) for axis, block in blocks.items()}
    apart = parts(sums, layout.rank)
    every = Totals.of(whole) if apart is None else sums[apart.axis]
    spread = None if apart is None else _spread(apart.axis, every)
    figure = _figure(layout, whole, every)
    if figure.silent:
        figure = replace(figure, sqnr_db=_decibels(beside, float(whole[:, 1].sum())))
    yield _Figure(replace(figure, channels=spread), whole[:, :2, 0])
    for channels in apart.channels if apart is not None else ():
        assert apart is not None
        block = blocks[apart.axis][:, :, channels]
        figure = _figure(layout, block, Totals.of(block))
        yield _Figure(replace(figure, part=named(channels)), block[:, :2].sum(axis=2))


def _figure(layout: Layout, block: np.ndarray, by_channel: Totals) -> OutputFidelity:
    """The figure of all columns of a block. `by_channel`: the sums of the same values for each
    channel, as far as channels are known."""
    sums = Totals.of(block)
    signal, noise, power, dot = (
        float(total.sum()) for total in (sums.signal, sums.noise, sums.power, sums.dot)
    )
    return OutputFidelity(
        layout.output,
        sqnr_db=_decibels(signal, noise) if signal > 0 else None,
        cosine=_cosine(signal, noise, power, dot),
        max_abs_error=float(sums.most.max()),
        equal=float(sums.equal.sum() / max(sums.count.sum(), 1)) if layout.exact else None,
        silent=True if signal == 0 else None,
        constant=True if _constant(by_channel) else None,
    )


def _constant(sums: Totals) -> bool:
    """Whether the values of the reference vary about the means of their channels, and those of the
    candidate do not."""
    count = np.maximum(sums.count, 1)
    varies, left = (
        float((squares - total**2 / count).sum())
        for squares, total in ((sums.signal, sums.mean), (sums.power, sums.other))
    )
    return varies > _VARIES * float(sums.signal.sum()) and left < _LOST * varies


def _spread(axis: int, sums: Totals) -> ChannelSpread | None:
    """The SQNR of the channels, each by itself; None for channels that are all zero."""
    loud = sums.signal > 0
    if not loud.any():
        return None
    with np.errstate(divide="ignore"):
        decibels = 10 * np.log10(sums.signal[loud] / sums.noise[loud])
    ends = np.percentile(decibels, (0, 5, 50), method="lower")
    least, p5, median = (float(end) if np.isfinite(end) else None for end in ends)
    return ChannelSpread(axis, int(loud.sum()), least, p5, median)


def _decibels(signal: float, noise: float) -> float | None:
    return 10 * log10(signal / noise) if noise > 0 else None


def _sketch(values: np.ndarray, number: int) -> np.ndarray:
    """Sums of the values [units, n] with random signs: float64 [units, buckets]. The signs are
    those of output `number`."""
    size = values.shape[1]
    signs = np.random.default_rng(number).integers(0, 2, size, dtype=np.int8) * 2 - 1
    signed = np.pad(values * signs, ((0, 0), (0, -size % _BUCKETS)))
    sums: np.ndarray = signed.reshape(len(values), -1, _BUCKETS).sum(axis=1)
    return sums


def _varying(rows: np.ndarray) -> float | None:
    """The share of the power that differs between samples; None for fewer than two samples, for
    outputs that do not have one row per sample, and for outputs that are all zero."""
    samples = rows[rows[:, _SAMPLES] == 1, _SKETCH:_HEAD]
    power = float(np.square(samples).mean(axis=0).sum()) if len(samples) > 1 else 0.0
    return min(1.0, float(samples.var(axis=0).sum()) / power) if power > 0 else None


def _interval(units: np.ndarray) -> Interval | None:
    """The interval of the pooled SQNR in dB, from the sums [units, 2] of signal and noise; None
    without noise."""
    if len(units) < _LEAST or not units[:, 1].any():
        return None
    least = float(units[units > 0].min())  # a resample may have no noise at all

    def pooled(drawn: np.ndarray) -> float:
        signal, noise = units[drawn].sum(axis=0)
        return 10 * log10(max(signal, least) / max(noise, least))

    return bootstrap(len(units), pooled)


def _cosine(signal: float, noise: float, power: float, dot: float) -> float:
    if noise == 0:
        return 1.0
    return max(-1.0, min(1.0, dot / sqrt(signal * power))) if signal * power > 0 else 0.0


def _pair(
    output: str, values: np.ndarray, actual: Feed, hidden: np.ndarray | None, *, first: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The two sides of one output in float64, and which of their values count: those that are not
    `hidden`, nor NaN or the same infinity on both sides; the others are 0."""
    if output not in actual or actual[output].shape != values.shape:
        got = list(actual[output].shape) if output in actual else "nothing"
        raise InputRefused(
            f"expected shape {list(values.shape)}, the compared graph gives {got}",
            where=f"output {output!r}",
            hint="if values decide this size (a loop that ends at a token, detections that are "
            "kept), the two graphs decided otherwise: calibrate on real samples, or keep layers "
            "before the decision in floats (quantization.nodes)",
        )
    r = np.array(values, dtype=np.float64)
    c = np.array(actual[output], dtype=np.float64)
    seen = ~((np.isinf(r) & (r == c)) | (np.isnan(r) & np.isnan(c)))
    if hidden is not None:
        seen &= ~hidden
    r[~seen] = c[~seen] = 0.0
    if not np.isfinite(r).all():
        raise InputRefused(
            "the reference returns a value that is not finite",
            where=f"output {output!r}, samples from {first}",
            hint=_REFERENCE,
        )
    return r, c, seen

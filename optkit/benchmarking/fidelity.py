"""Fidelity: how closely a session's outputs follow a reference's on the same inputs.

    SQNR = 10·log10( Σ r² / Σ (r - c)² )  dB        cosine = Σ r·c / √(Σ r² · Σ c²)

pooled over all outputs and samples, summed in float64, one batch in memory at a time. The interval
of the SQNR is a bootstrap over samples: a few of them may hold most of the noise. Integer and bool
outputs (class indices, masks) are left out where the model also gives floats: a distance of
two indices means nothing, and it would drown the floats. So are caches of floats that the
candidate stores as codes. Padding is left out: nothing reads it.

    varying = Σ_b var(p_b) / Σ_b mean(p_b²)        p_b = Σ s_i·r_i over the elements i of bucket b

is the share of the reference's power that differs between samples: near 1 for outputs of mean zero,
0 for outputs that do not depend on the input. The signs s_i = ±1 are random, so both sums have the
expectation of those over all elements (Charikar et al., "Finding frequent items in data streams",
2002), with a relative error of √(2/buckets), and a sample is kept as few numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log10, sqrt

import numpy as np

from optkit.benchmarking.intervals import bootstrap
from optkit.benchmarking.partial_results import Kept
from optkit.data.padding import Tokens
from optkit.data.spool import Batch, counting
from optkit.errors import InputRefused
from optkit.evidence import Evidence
from optkit.measurement import Fidelity, Interval
from optkit.runtimes import Session
from optkit.tensors import Feed, count_samples, narrowed

_LEAST = 20  # units that an interval needs
_NOT_FINITE = {
    "reference": "the model itself returns it, before any change of precision: look at these "
    "samples, and in the model for a division by 0, a logarithm of 0 or an overflow",
    "compared graph": "the reference is finite there: look for values that are too large for FP16 "
    "(above 65504) if the graph has FP16, and for a division by, or a logarithm of, a value that "
    "its codes round to 0",
}


def fidelity(
    reference: Session,
    candidate: Session,
    batches: Iterable[Batch],
    *,
    name: str,
    evidence: Evidence,
    kept: Kept | None = None,
) -> Fidelity:
    """The fidelity of all `batches` of a spool: `run`, then `pool`."""
    kept = kept or Kept(None)
    run(reference, candidate, batches, kept)
    return pool(kept, name=name, evidence=evidence)


def run(reference: Session, candidate: Session, batches: Iterable[Batch], kept: Kept) -> None:
    """Compare two sessions on the feeds of a spool's `batches`, and add the sums to `kept`. `kept`
    contains those of an earlier run, whose batches are not in `batches`.

    Padding is left out, and so are infinities that both have at the same place (attention masks).
    Raises InputRefused for any other value that is not finite, and for outputs that do not match.
    """
    samples = kept.first + int(sum(rows[:, _SAMPLES].sum() for rows in kept.scores))
    for feed, labels in batches:
        outputs = reference.run(feed)
        hidden = counting(padding(reference, feed, outputs), feed, labels)
        expected = counting(outputs, feed, labels)
        actual = counting(candidate.run(narrowed(feed, candidate.inputs)), feed, labels)
        count = count_samples(feed) if labels is None else len(labels)
        kept.add(_rows(_judged(expected, actual), actual, hidden, count, first=samples))
        samples += count


def padding(session: Session, feed: Feed, outputs: Feed) -> Feed:
    """The elements of a session's outputs for a feed that are padding: bool [samples, …] that
    broadcasts to the output, for the outputs that have padding."""
    tokens = Tokens.of(session.inputs)
    if tokens is None:
        return {}
    found = {
        info.name: tokens.hidden(feed, info, outputs[info.name].shape)
        for info in session.outputs
        if info.name in outputs
    }
    return {name: hidden for name, hidden in found.items() if hidden is not None}


def pool(kept: Kept, *, name: str, evidence: Evidence) -> Fidelity:
    """The Fidelity from all kept sums. `name`: the reference, e.g. "fp32". Raises InputRefused if
    there is nothing to compare."""
    rows = np.concatenate([np.zeros((0, _SKETCH + _BUCKETS)), *kept.scores])
    samples = int(rows[:, _SAMPLES].sum())
    signal, noise, power, dot = (float(total) for total in rows[:, :_LARGEST].sum(axis=0))
    if not samples or (signal == 0 and noise > 0):
        what = "all its outputs are zero" if samples else "there are no samples"
        raise InputRefused(f"fidelity to {name} is not defined: {what}", where=name)
    return Fidelity(
        evidence=evidence,
        reference=name,
        sqnr_db=10 * log10(signal / noise) if noise > 0 else None,
        ci95=_interval(rows[:, :2]) if noise > 0 else None,
        cosine=_cosine(signal, power, dot) if noise > 0 else 1.0,
        max_abs_error=float(rows[:, _LARGEST].max()),
        samples=samples,
        all_zero=True if signal == 0 and noise == 0 else None,
        varying=_varying(rows),
    )


_LARGEST, _SAMPLES, _SKETCH = 4, 5, 6
_BUCKETS = 32


def _rows(expected: Feed, actual: Feed, hidden: Feed, count: int, *, first: int) -> np.ndarray:
    """Σr², Σ(r-c)², Σc², Σr·c, max |r-c|, the number of samples and the sketch of r, float64
    [units, 6 + buckets]: for each sample, or for the whole batch if an output does not have one row
    per sample."""
    apart = all(values.shape[:1] == (count,) for values in expected.values())
    found = np.zeros((count if apart else 1, _SKETCH + _BUCKETS))
    found[:, _SAMPLES] = 1 if apart else count
    for number, (output, values) in enumerate(expected.items()):
        sides = _pair(output, values, actual, hidden.get(output), first=first)
        r, c = (x.reshape(len(found), -1) for x in sides)
        error = r - c
        for column, (x, y) in enumerate(((r, r), (error, error), (c, c), (r, c))):
            found[:, column] += np.einsum("nk,nk->n", x, y)
        found[:, _SKETCH:] += _sketch(r, number)
        most = np.abs(error).max(axis=1, initial=0.0)
        found[:, _LARGEST] = np.maximum(found[:, _LARGEST], most)
    return found


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
    samples = rows[rows[:, _SAMPLES] == 1, _SKETCH:]
    power = float(np.square(samples).mean(axis=0).sum()) if len(samples) > 1 else 0.0
    return min(1.0, float(samples.var(axis=0).sum()) / power) if power > 0 else None


def _interval(units: np.ndarray) -> Interval | None:
    """The interval of the pooled SQNR in dB, from the sums [units, 2] of signal and noise."""
    if len(units) < _LEAST:
        return None
    least = float(units[units > 0].min())  # a resample may have no noise at all

    def pooled(drawn: np.ndarray) -> float:
        signal, noise = units[drawn].sum(axis=0)
        return 10 * log10(max(signal, least) / max(noise, least))

    return bootstrap(len(units), pooled)


def _judged(outputs: Feed, actual: Feed) -> Feed:
    """The outputs that are compared: floats in both graphs, or all if the reference has none."""
    floats = {name: values for name, values in outputs.items() if values.dtype.kind == "f"}
    codes = {name for name in floats if name in actual and actual[name].dtype.kind in "iu"}
    return {name: values for name, values in floats.items() if name not in codes} or outputs


def _cosine(signal: float, power: float, dot: float) -> float:
    return max(-1.0, min(1.0, dot / sqrt(signal * power))) if power > 0 else 0.0


def _pair(
    output: str, values: np.ndarray, actual: Feed, hidden: np.ndarray | None, *, first: int
) -> tuple[np.ndarray, np.ndarray]:
    """The two sides of one output as flat float64 vectors, with zeros where both have an infinity,
    or where it is `hidden`."""
    if output not in actual or actual[output].shape != values.shape:
        got = list(actual[output].shape) if output in actual else "nothing"
        raise InputRefused(
            f"expected shape {list(values.shape)}, the compared graph gives {got}",
            where=f"output {output!r}",
        )
    r = np.array(values, dtype=np.float64).ravel()
    c = np.array(actual[output], dtype=np.float64).ravel()
    both = np.isinf(r) & (r == c)
    if hidden is not None:
        both |= np.broadcast_to(hidden, values.shape).ravel()
    r[both] = c[both] = 0.0
    for side, array in (("reference", r), ("compared graph", c)):
        if not np.isfinite(array).all():
            raise InputRefused(
                f"the {side} returns a value that is not finite",
                where=f"output {output!r}, samples from {first}",
                hint=_NOT_FINITE[side],
            )
    return r, c

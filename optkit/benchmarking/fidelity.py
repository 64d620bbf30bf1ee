"""Fidelity: how closely a session's outputs follow a reference's on the same inputs.

    SQNR = 10·log10( Σ r² / Σ (r - c)² )  dB        cosine = Σ r·c / √(Σ r² · Σ c²)

pooled over all outputs and samples, summed in float64, one batch in memory at a time. The interval
of the SQNR is a bootstrap over samples: a few of them may hold most of the noise. Integer and bool
outputs (class indices, masks) are left out where the model also gives floats: a distance of
two indices means nothing, and it would drown the floats.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log10, sqrt

import numpy as np

from optkit.benchmarking.intervals import bootstrap
from optkit.data.spool import Batch, counting
from optkit.errors import InputRefused
from optkit.measurement import Fidelity, Interval
from optkit.runtime import Evidence, Feed, Session, count_samples, narrowed

_LEAST = 20  # units that an interval can be drawn from


def fidelity(
    reference: Session,
    candidate: Session,
    batches: Iterable[Batch],
    *,
    name: str,
    evidence: Evidence,
) -> Fidelity:
    """Compare two sessions over the feeds of a spool's `batches`; `name` says what the reference
    is, e.g. "fp32".

    Infinities that both hold at the same place (attention masks) are left out. Raises InputRefused
    for any other value that is not finite, for outputs that do not match, and when there is
    nothing to compare.
    """
    sums = np.zeros(4)  # Σr², Σc², Σrc, Σ(r-c)²
    units: list[np.ndarray] = []  # Σr² and Σ(r-c)² of each sample, or of batches of several
    largest = 0.0
    samples = 0
    for feed, labels in batches:
        expected = counting(reference.run(feed), feed, labels)
        actual = counting(candidate.run(narrowed(feed, candidate.inputs)), feed, labels)
        count = count_samples(feed) if labels is None else len(labels)
        judged = _judged(expected)
        apart = all(values.shape[:1] == (count,) for values in judged.values())
        parts = np.zeros((count if apart else 1, 2))
        for output, values in judged.items():
            r, c = _pair(output, values, actual, first=samples)
            error = r - c
            sums += (r @ r, c @ c, r @ c, error @ error)
            for column, x in enumerate((r.reshape(len(parts), -1), error.reshape(len(parts), -1))):
                parts[:, column] += np.einsum("nk,nk->n", x, x)
            largest = max(largest, float(np.abs(error).max(initial=0.0)))
        units.append(parts)
        samples += count
    if not samples or (sums[0] == 0 and sums[3] > 0):
        what = "all its outputs are zero" if samples else "there are no samples"
        raise InputRefused(f"fidelity to {name} has no meaning: {what}", where=name)
    signal, power, dot, noise = (float(s) for s in sums)
    return Fidelity(
        evidence=evidence,
        reference=name,
        sqnr_db=10 * log10(signal / noise) if noise > 0 else None,
        ci95=_interval(np.concatenate(units)) if noise > 0 else None,
        cosine=_cosine(signal, power, dot) if noise > 0 else 1.0,
        max_abs_error=largest,
        samples=samples,
    )


def _interval(units: np.ndarray) -> Interval | None:
    """Of the pooled SQNR in dB, from the sums [units, 2] of signal and noise."""
    if len(units) < _LEAST:
        return None
    least = float(units[units > 0].min())  # a draw may hold no noise at all

    def pooled(drawn: np.ndarray) -> float:
        signal, noise = units[drawn].sum(axis=0)
        return 10 * log10(max(signal, least) / max(noise, least))

    return bootstrap(len(units), pooled)


def _judged(outputs: Feed) -> Feed:
    floats = {name: values for name, values in outputs.items() if values.dtype.kind == "f"}
    return floats or outputs


def _cosine(signal: float, power: float, dot: float) -> float:
    return max(-1.0, min(1.0, dot / sqrt(signal * power))) if power > 0 else 0.0


def _pair(
    output: str, values: np.ndarray, actual: Feed, *, first: int
) -> tuple[np.ndarray, np.ndarray]:
    """The two sides of one output as flat float64 vectors, zero where both have an infinity."""
    if output not in actual or actual[output].shape != values.shape:
        got = list(actual[output].shape) if output in actual else "nothing"
        raise InputRefused(
            f"expected shape {list(values.shape)}, the compared graph gives {got}",
            where=f"output {output!r}",
        )
    r = np.array(values, dtype=np.float64).ravel()
    c = np.array(actual[output], dtype=np.float64).ravel()
    both = np.isinf(r) & (r == c)
    r[both] = c[both] = 0.0
    for side, array in (("reference", r), ("compared graph", c)):
        if not np.isfinite(array).all():
            raise InputRefused(
                f"the {side} gives a value that is not finite",
                where=f"output {output!r}, samples from {first}",
                hint="look for an overflow: FP16 ends at 65504",
            )
    return r, c

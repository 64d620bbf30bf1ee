"""How often gates pass wrongly: simulated evaluations of candidates that lie on the limit.

    python experiments/gates/calibration.py [--evaluations 2000] [--workers 2]

Writes calibration.json beside itself. Every row is one situation: the share of `pass`, `fail` and
`inconclusive` over that many evaluations, drawn with a fixed seed. Where `truth` is "at the limit",
`pass` is wrong, and may happen in 5 % at most.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from optkit.benchmarking import sequential as looks
from optkit.benchmarking.gates import certain, judge
from optkit.benchmarking.intervals import wilson
from optkit.benchmarking.paired_drop import drop
from optkit.evidence import Evidence
from optkit.measurement import Interval, Score
from optkit.recipe.schema import Limits

LIMIT = 0.01
SLICE_LIMIT = 0.02
VALUE = 0.95
ERROR = 0.05
Pair = tuple[np.ndarray, np.ndarray]
Draw = Callable[[np.random.Generator, int], Pair]


@dataclass(frozen=True)
class Case:
    """`truth`: "at the limit", or how far from it. `draw`: baseline and candidate, [samples]."""

    gate: str
    data: str
    truth: str
    samples: int
    draw: Draw
    limits: Limits
    slices: int = 0
    early: bool = False
    more: dict[str, Any] = field(default_factory=dict)


def flips(rng: np.random.Generator, n: int, lost: float, gained: float) -> Pair:
    """Right or wrong, at these rates of samples that were right and are wrong, and the reverse."""
    kind = rng.choice(4, n, p=(lost, gained, 0.9 * (1 - lost - gained), 0.1 * (1 - lost - gained)))
    return (kind != 1) & (kind != 3), (kind != 0) & (kind != 3)


def graded(rng: np.random.Generator, n: int, mean: float, shape: str) -> Pair:
    """Scores around 0.8 that lose `mean` of it on average, the losses of a certain shape."""
    before = np.clip(rng.normal(0.8, 0.1, n), 0.3, 1.3)
    spread = 0.04
    if shape == "normal":
        loss = rng.normal(0, spread, n)
    elif shape == "skewed":  # a few much worse
        loss = rng.exponential(spread, n) - spread
    elif shape == "neighbours alike":
        loss = alike(rng, n, spread, 0.5)
    elif shape == "neighbours much alike":
        loss = alike(rng, n, spread, 0.9)
    elif shape == "heavy tails":  # lognormal: a tenth of the samples makes two thirds of the mean
        loss = 0.8 * mean * (rng.lognormal(0, 1.5, n) / np.exp(1.5**2 / 2) - 1)
    elif shape.startswith("rare, noise elsewhere"):
        share = float(shape.split()[-1].rstrip("%")) / 100
        large = (rng.random(n) < share) * rng.exponential(0.8 * mean / share, n)
        loss = large - 0.8 * mean + rng.normal(0, spread / 8, n)
    else:  # rare: one in twenty loses, all others do not
        share = 0.05
        hit = rng.random(n) < share
        return before, before - hit * rng.exponential(0.8 * mean / share, n)
    return before, before - loss - 0.8 * mean


def alike(rng: np.random.Generator, n: int, spread: float, correlation: float) -> np.ndarray:
    """An autoregression [n] with mean 0."""
    noise = rng.normal(0, spread * np.sqrt(1 - correlation**2), n)
    found = np.empty(n)
    found[0] = rng.normal(0, spread)
    for index in range(1, n):
        found[index] = correlation * found[index - 1] + noise[index]
    return found


def errors(rng: np.random.Generator, n: int, mean: float, shape: str) -> Pair:
    """Errors that are to be small, [n], of that mean and a certain shape."""
    if shape.startswith("mostly zero"):
        share = float(shape.split()[-1].rstrip("%")) / 100
        found = (rng.random(n) < share) * rng.exponential(mean / share, n)
    elif shape == "heavy tails":
        found = mean * rng.lognormal(0, 1.5, n) / np.exp(1.5**2 / 2)
    else:
        found = mean + alike(rng, n, mean / 2, 0.9)
    return found, found


def valued(rng: np.random.Generator, n: int, value: float) -> Pair:
    right = rng.random(n) < value
    return right, right


def sliced(rng: np.random.Generator, n: int, slices: int, broken: int) -> Pair:
    """Samples in turn of each slice; in the first `broken` of them the drop is at the limit."""
    of = np.arange(n) % slices < broken
    before, after = flips(rng, n, 0.002, 0.002)
    at, lost = flips(rng, n, SLICE_LIMIT + 0.01, 0.01)
    return np.where(of, at, before), np.where(of, lost, after)


def cases() -> Iterator[Case]:
    drops = Limits(max_drop=LIMIT)
    for discordance in (0.01, 0.04, 0.2):
        rates = {"lost": (discordance + LIMIT) / 2, "gained": (discordance - LIMIT) / 2}
        for n in (200, 1000, 5000):
            yield Case("max_drop", f"proportion, {discordance:.0%} of samples differ",
                       "at the limit", n, partial(flips, **rates), drops)  # fmt: skip
    for drop_, told in ((0.0, "no drop"), (0.03, "drop of three limits")):
        for n in (200, 500, 1000, 2000, 5000):
            rates = {"lost": 0.02 + drop_ / 2, "gained": 0.02 - drop_ / 2}
            yield Case("max_drop", "proportion, 4% of samples differ", told, n,
                       partial(flips, **rates), drops)  # fmt: skip
    shapes = ("normal", "skewed", "neighbours alike", "rare", "neighbours much alike",
              "heavy tails", "rare, noise elsewhere 1%", "rare, noise elsewhere 2%",
              "rare, noise elsewhere 5%")  # fmt: skip
    for shape in shapes:
        for n in (50, 200, 1000):
            yield Case("max_drop", f"mean, losses {shape}", "at the limit", n,
                       partial(graded, mean=LIMIT, shape=shape), drops)  # fmt: skip
    for n in (50, 200, 1000):
        yield Case("max_drop", "mean, losses normal", "no drop", n,
                   partial(graded, mean=0.0, shape="normal"), drops)  # fmt: skip
    for n in (100, 500, 2000):
        limits = Limits(max_drop=None, min_value=VALUE)
        yield Case("min_value", "proportion", "at the limit", n, partial(valued, value=VALUE),
                   limits)  # fmt: skip
    for shape in ("mostly zero, but 2%", "mostly zero, but 5%", "mostly zero, but 10%",
                  "heavy tails", "neighbours much alike"):  # fmt: skip
        for n in (50, 200, 1000):
            limits = Limits(max_drop=None, max_value=ERROR)
            yield Case("max_value", f"mean, errors {shape}", "at the limit", n,
                       partial(errors, mean=ERROR, shape=shape), limits)  # fmt: skip
    for slices in (5, 20):
        for broken, told in ((1, "one slice at the limit"), (slices, "all slices at the limit")):
            yield Case("max_slice_drop", f"proportion, {slices} slices", "at the limit",
                       slices * 500, partial(sliced, slices=slices, broken=broken),
                       Limits(max_drop=None, max_slice_drop=SLICE_LIMIT), slices,
                       more={"which": told})  # fmt: skip
    for discordance in (0.01, 0.04, 0.2):
        rates = {"lost": (discordance + LIMIT) / 2, "gained": (discordance - LIMIT) / 2}
        yield Case("max_drop", f"proportion, {discordance:.0%} of samples differ", "at the limit",
                   5_000, partial(flips, **rates), drops, early=True)  # fmt: skip
    for drop_, told in ((0.0, "no drop"), (0.03, "drop of three limits")):
        rates = {"lost": 0.02 + drop_ / 2, "gained": 0.02 - drop_ / 2}
        yield Case("max_drop", "proportion, 4% of samples differ", told, 5_000,
                   partial(flips, **rates), drops, early=True)  # fmt: skip
    for shape in ("skewed", "neighbours alike"):
        yield Case("max_drop", f"mean, losses {shape}", "at the limit", 4_000,
                   partial(graded, mean=LIMIT, shape=shape), drops, early=True)  # fmt: skip


def run(case: Case, evaluations: int) -> dict[str, Any]:
    seed = f"{case.gate}, {case.data}, {case.truth}, {case.samples}, {case.slices}, {case.early}"
    rng = np.random.default_rng(zlib.crc32(f"{seed}, {case.more}".encode()))
    order = looks.order(case.samples) if case.early else np.arange(case.samples)
    names = [str(index % case.slices) for index in range(case.samples)] if case.slices else []
    outcomes: Counter[str] = Counter()
    used = []
    for _ in range(evaluations):
        before, after = case.draw(rng, case.samples)
        stops = [stop for _, stop in looks.segments(case.samples)] if case.early else [case.samples]
        for stop in stops:
            seen = np.sort(order[:stop])
            pair = _pair(before[seen], after[seen])
            told = [names[index] for index in seen] if names else []
            if case.early and certain(case.limits, pair, told):
                break
        whole = case.limits.max_drop is not None
        verdict = judge(case.limits, drop=drop(*pair) if whole else None,
                        scores=None if whole else pair, slices=told)  # fmt: skip
        outcomes[verdict.rows[0].outcome] += 1
        used.append(stop)
    return {
        "gate": case.gate, "data": case.data, "truth": case.truth, **case.more,
        "samples": case.samples, "stops_early": case.early, "evaluations": evaluations,
        **{word: outcomes[word] / evaluations for word in ("pass", "fail", "inconclusive")},
        "pass_ci95": wilson(outcomes["pass"], evaluations),
        "mean_samples": float(np.mean(used)),
    }  # fmt: skip


def _pair(before: np.ndarray, after: np.ndarray) -> tuple[Score, Score]:
    """Scores without intervals of their own, which no gate on a drop looks at."""
    return _score(before), _score(after)


def _score(values: np.ndarray) -> Score:
    value = float(values.mean())
    return Score(Evidence.SIMULATED, "score", value, Interval(value, value), len(values),
                 values.dtype == bool, tuple(values.astype(float).tolist()))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--evaluations", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    asked = parser.parse_args()
    with ProcessPoolExecutor(asked.workers) as pool:
        rows = []
        for row in pool.map(partial(run, evaluations=asked.evaluations), cases()):
            rows.append(row)
            print(told(row), flush=True)
    asked.out.write_text(json.dumps({"limit": LIMIT, "rows": rows}, indent=1) + "\n")


def told(row: dict[str, Any]) -> str:
    """A row as a line."""
    truth = row.get("which", row["truth"])
    early = f", stops after {row['mean_samples']:.0f}" if row["stops_early"] else ""
    shares = " ".join(f"{word} {row[word]:6.2%}" for word in ("pass", "fail", "inconclusive"))
    return f"{row['gate']:15} {row['data']:36} {truth:24} {row['samples']:6} {shares}{early}"


if __name__ == "__main__":
    main()

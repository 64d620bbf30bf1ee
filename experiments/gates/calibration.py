"""How often gates pass wrongly: simulated evaluations of candidates that lie on the limit.

    python experiments/gates/calibration.py [--evaluations 2000] [--workers 2] [--only TEXT]

Writes calibration.json beside itself. Every row is one situation: the share of `pass`, `fail` and
`inconclusive` over that many evaluations, drawn with a fixed seed. Where `truth` is "at the limit",
`pass` is wrong, and may happen in 5 % at most. "at the limit, unseen": nothing in the scores shows
that samples belong together.
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

from optkit.craft.benchmarking import sequential as looks
from optkit.craft.benchmarking.accuracy import from_samples
from optkit.craft.benchmarking.gates import certain, judge
from optkit.craft.benchmarking.intervals import wilson
from optkit.craft.benchmarking.paired_drop import drop
from optkit.craft.benchmarking.sample_size import samples_to_decide, samples_to_show
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Interval, Score
from optkit.ground.recipe.sections import Limits

LIMIT = 0.01
SLICE_LIMIT = 0.02
VALUE = 0.95
ERROR = 0.05
Pair = tuple[np.ndarray, np.ndarray]
Draw = Callable[[np.random.Generator, int], Pair]


@dataclass(frozen=True)
class Case:
    """`truth`: "at the limit", or how far from it. `draw`: baseline and candidate, [samples].
    `clip`: so many samples belong together and are equal; `shuffled`: not in their order;
    `groups`: which belong together is known."""

    gate: str
    data: str
    truth: str
    samples: int
    draw: Draw
    limits: Limits
    slices: int = 0
    early: bool = False
    clip: int = 1
    shuffled: bool = False
    groups: bool = False
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
    elif shape.startswith("rare, lognormal"):
        share = float(shape.split()[-1].rstrip("%")) / 100
        large = rng.lognormal(0, 1.5, n) / np.exp(1.5**2 / 2) * 0.8 * mean / share
        before = rng.normal(0.8, 0.02, n)
        return before, before - (rng.random(n) < share) * large
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

    yield from together()


def together() -> Iterator[Case]:
    """Frames of a clip, all with the same scores."""
    drops = Limits(max_drop=LIMIT)
    flipped = partial(flips, lost=0.025, gained=0.015)
    lost = partial(graded, mean=LIMIT, shape="normal")
    for n in (500, 2000):
        yield Case("max_drop", "proportion, clips of 10, no groups", "at the limit", n, flipped,
                   drops, clip=10)  # fmt: skip
        yield Case("max_drop", "mean, clips of 10, no groups", "at the limit", n, lost, drops,
                   clip=10)  # fmt: skip
        for clip in (2, 10, 50):
            for told, draw in (("proportion", flipped), ("mean", lost)):
                yield Case("max_drop", f"{told}, clips of {clip}, groups", "at the limit", n, draw,
                           drops, clip=clip, shuffled=True, groups=True)  # fmt: skip
        yield Case("max_drop", "proportion, clips of 10 shuffled, no groups",
                   "at the limit, unseen", n, flipped, drops, clip=10, shuffled=True)  # fmt: skip
    for share in (2, 5):
        for n in (200, 1000):
            shape = f"rare, lognormal {share}%"
            yield Case("max_drop", f"mean, losses {shape}", "at the limit", n,
                       partial(graded, mean=LIMIT, shape=shape), drops)  # fmt: skip


def advised() -> Iterator[tuple[str, str, int, float, Draw]]:
    """Gate, situation, samples of the first evaluation, limit, and how to draw more."""
    for lost, gained in ((0.005, 0.005), (0.02, 0.02), (0.035, 0.005), (0.1, 0.1)):
        for n in (200, 500):
            told = f"proportion, {lost:.1%} lost, {gained:.1%} gained"
            yield "max_drop", told, n, LIMIT, partial(flips, lost=lost, gained=gained)
    for value in (0.97, 0.96, 0.93):
        for n in (100, 500):
            yield "min_value", f"proportion {value}", n, VALUE, partial(valued, value=value)
    yield "max_drop", "mean, no drop", 200, LIMIT, partial(graded, mean=0.0, shape="normal")


def decided(gate: str, data: str, n: int, limit: float, draw: Draw, sets: int) -> dict[str, Any]:
    """How often a fresh set of the advised size decides, over inconclusive evaluations."""
    rng, sizes, enough = np.random.default_rng(zlib.crc32(f"{gate}, {data}, {n}".encode())), [], 0
    while len(sizes) < sets:
        pair = _pair(*draw(rng, n))
        if gate == "max_drop":
            size = None if _excludes(drop(*pair).ci95, limit) else samples_to_decide(*pair, limit)
        else:
            score = _judged(pair[1])
            size = None if _excludes(score.ci95, limit) else samples_to_show(score, limit)
        if size is None:
            continue
        sizes.append(size)
        fresh = _pair(*draw(rng, size))
        found = drop(*fresh).ci95 if gate == "max_drop" else _judged(fresh[1]).ci95
        enough += _excludes(found, limit)
    return {"gate": gate, "data": data, "samples": n, "sets": sets, "decided": enough / sets,
            "median_size": float(np.median(sizes))}  # fmt: skip


def _judged(score: Score) -> Score:
    return from_samples(np.asarray(score.per_sample), metric="score", evidence=score.evidence)


def _excludes(interval: Interval | None, limit: float) -> bool:
    return interval is not None and not interval.low <= limit < interval.high


def run(case: Case, evaluations: int) -> dict[str, Any]:
    seed = f"{case.gate}, {case.data}, {case.truth}, {case.samples}, {case.slices}, {case.early}"
    rng = np.random.default_rng(zlib.crc32(f"{seed}, {case.more}".encode()))
    order = looks.order(case.samples) if case.early else np.arange(case.samples)
    names = [str(index % case.slices) for index in range(case.samples)] if case.slices else []
    outcomes: Counter[str] = Counter()
    used = []
    for _ in range(evaluations):
        before, after = (s.repeat(case.clip) for s in case.draw(rng, case.samples // case.clip))
        clips: np.ndarray | None = None
        if case.shuffled:
            mixed = rng.permutation(case.samples)
            before, after = before[mixed], after[mixed]
            clips = mixed // case.clip if case.groups else None
        stops = [stop for _, stop in looks.segments(case.samples)] if case.early else [case.samples]
        for stop in stops:
            seen = np.sort(order[:stop])
            pair = _pair(before[seen], after[seen], None if clips is None else clips[seen])
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


def _pair(
    before: np.ndarray, after: np.ndarray, groups: np.ndarray | None = None
) -> tuple[Score, Score]:
    """Scores without intervals of their own, which no gate on a drop looks at."""
    return _score(before, groups), _score(after, groups)


def _score(values: np.ndarray, groups: np.ndarray | None) -> Score:
    value = float(values.mean())
    return Score(Evidence.SIMULATED, "score", value, Interval(value, value), len(values),
                 values.dtype == bool, tuple(values.astype(float).tolist()),
                 groups=() if groups is None else tuple(groups.tolist()))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--evaluations", type=int, default=2000)
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--only", help="situations whose name has this text; the others are kept")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    asked = parser.parse_args()
    kept = json.loads(asked.out.read_text()) if asked.only is not None else {}
    known = {_key(row): row for row in kept.get("rows", [])}
    text = asked.only or ""
    chosen = [case for case in cases() if text in f"{case.gate} {case.data} {case.truth}"]
    with ProcessPoolExecutor(asked.workers) as pool:
        for row in pool.map(partial(run, evaluations=asked.evaluations), chosen):
            known[_key(row)] = row
            print(told(row), flush=True)
    sizes = kept.get("advised", [])
    if text in "advised":
        sizes = [decided(*one, asked.sets) for one in advised()]
    rows = [known[key] for key in map(_key_of, cases()) if key in known]
    result = {"limit": LIMIT, "rows": rows, "advised": sizes}
    asked.out.write_text(json.dumps(result, indent=1) + "\n")


def _key(row: dict[str, Any]) -> str:
    parts = ("gate", "data", "truth", "samples", "stops_early")
    return str([*(row[part] for part in parts), row.get("which")])


def _key_of(case: Case) -> str:
    parts = [case.gate, case.data, case.truth, case.samples, case.early, case.more.get("which")]
    return str(parts)


def told(row: dict[str, Any]) -> str:
    """A row as a line."""
    truth = row.get("which", row["truth"])
    early = f", stops after {row['mean_samples']:.0f}" if row["stops_early"] else ""
    shares = " ".join(f"{word} {row[word]:6.2%}" for word in ("pass", "fail", "inconclusive"))
    return f"{row['gate']:15} {row['data']:36} {truth:24} {row['samples']:6} {shares}{early}"


if __name__ == "__main__":
    main()

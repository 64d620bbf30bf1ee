"""Whether a rewritten graph still computes what it did: both run on random inputs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from math import inf, isnan
from pathlib import Path

import numpy as np

from optkit.data import spool, synthetic
from optkit.errors import InputRefused, OptkitError
from optkit.runtimes import Level, Session
from optkit.steps.bodies.sessions import cpu
from optkit.steps.graph import RandomInputs
from optkit.tensors import Feed, axes_of, batch_axis

_GUESSES = (2, 16, 64, 256)  # sizes of an axis that nobody gave a range
TOLERANCE = 1e-4  # float32 rounding through a deep network, relative to the largest output
_LARGEST = 0.1  # of what rounding may explain
_ROUNDINGS = 10.0  # a rewrite rounds at every operator, a rounded input only once
_ULP = 2.0**-23


@dataclass(frozen=True)
class Feeds:
    """What two graphs are run on: some of the samples, where there are any, else random inputs."""

    random: RandomInputs
    samples: Path | None = None


def same_outputs(before: Path, after: Path, feeds: Feeds, what: str) -> float:
    """`difference` of two graphs. Raises OptkitError where it is more than float rounding: more
    than TOLERANCE, and than what rounding the inputs changes in the graph as it was (Higham,
    Accuracy and Stability of Numerical Algorithms, 1.6: conditioning). A detector's sigmoid on
    noise moves by 4 % of its largest value where an input moves by one unit in the last place."""
    name, error = difference(before, after, feeds)
    if not error <= TOLERANCE and not error <= min(
        _LARGEST, _ROUNDINGS * _conditioning(before, feeds, name)
    ):
        raise OptkitError(
            f"{what} changed the result by {error:.2e} of its largest value",
            where=f"output {name!r}",
            hint="please report the model; this is a bug",
        )
    return error


def difference(
    before: Path, after: Path, feeds: Feeds, level: Level = "basic"
) -> tuple[str, float]:
    """The output in which two graphs differ most, and by how much, see `_difference`. One of the
    graphs is in memory at a time. `level`: ONNX Runtime's optimization of `before`.

    Raises OptkitError for outputs of other shapes.
    """
    with _opened(before, level) as old:
        runs = [_accepted_feed(old, feeds, bound, n) for n, bound in enumerate(("opt", "min"))]
    found: list[tuple[str, float]] = []
    with _opened(after, "basic") as new:
        for feed, expected in runs:
            given = new.run(feed)
            for name, values in expected.items():
                if values.shape != given[name].shape:
                    raise OptkitError(
                        f"its shape was {values.shape} and became {given[name].shape}",
                        where=f"output {name!r}",
                        hint="please report the model; this is a bug",
                    )
                found.append((name, _difference(values, given[name])))
    # NaN, which compares with nothing, is the worst
    return max(found, key=lambda one: inf if isnan(one[1]) else one[1], default=("", 0.0))


def _opened(graph: Path, level: Level) -> Session:
    """ONNX Runtime 1.31's optimizer joins the parts of a norm behind a Cast from half precision to
    one whose types do not fit: such a graph runs as it is."""
    try:
        return cpu(graph, level=level)
    except InputRefused:
        return cpu(graph, level="none")


def _conditioning(graph: Path, feeds: Feeds, name: str) -> float:
    """How much an output moves where float inputs move by one unit in the last place."""
    worst = 0.0
    with _opened(graph, "basic") as session:
        for seed, bound in enumerate(("opt", "min")):
            feed, expected = _accepted_feed(session, feeds, bound, seed)
            signs = np.random.default_rng(seed)
            moved = {
                key: x * (1 + _ULP * signs.choice([-1, 1], x.shape).astype(x.dtype))
                if x.dtype.kind == "f"
                else x
                for key, x in feed.items()
            }
            worst = max(worst, _difference(expected[name], session.run(moved)[name]))
    return worst


def _difference(expected: np.ndarray, found: np.ndarray) -> float:
    """Largest difference over the largest value; where both are NaN or the same infinity they
    agree. Of integers and bools, the share that differs: rounding turns the odd class index."""
    if expected.dtype.kind != "f":
        return float(np.mean(expected != found)) if expected.size else 0.0
    a, b = expected.astype(np.float64), found.astype(np.float64)
    differs = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    scale = float(np.abs(a[np.isfinite(a)]).max(initial=0.0)) or 1.0
    return float(np.abs(a[differs] - b[differs]).max(initial=0.0)) / scale


def _accepted_feed(session: Session, feeds: Feeds, bound: str, seed: int) -> tuple[Feed, Feed]:
    """A feed and its outputs: of the samples, where there are any, else a random one. Not every
    graph takes small sizes of an axis without a range, so larger ones are tried."""
    if feeds.samples is not None:
        feed = _sample(feeds.samples, seed)
        return feed, session.run(feed)
    for guess in _GUESSES:
        feed = random_feed(feeds.random, bound, seed, guess)
        try:
            return feed, session.run(feed)
        except InputRefused as error:
            failure = error
    raise InputRefused(
        f"the graph does not run on random inputs: {failure.message}",
        where=failure.where,
        hint=_remedy(feeds.random),
    ) from failure


def _remedy(drawn: RandomInputs) -> str:
    asked = {name: one.what for name, one in drawn.arguments.items() if one.numbers is None}
    if not asked:
        return "give the sizes of its axes: --opt-shapes, or `axes:` in the recipe"
    told = ", ".join(f"input {name!r} is {what}" for name, what in sorted(asked.items()))
    return f"{told}, which random numbers are not: give samples of the inputs (--calibration)"


def _sample(path: Path, number: int) -> Feed:
    """One of the first batches of a spool."""
    feeds = [feed for feed, _ in islice(spool.Spool(path).batches(None), number + 1)]
    return feeds[-1]


def random_feed(drawn: RandomInputs, bound: str, seed: int, guess: int = 2) -> Feed:
    """A feed at one end of the axis ranges; an axis that no range is known for gets size `guess`,
    or 2 where it counts samples. Inputs that are arguments hold what the graph says they are."""
    specs = drawn.inputs
    names = {axis for spec in specs for axis in axes_of(spec.info.shape)}
    batch = batch_axis(spec.info for spec in specs)
    ends = {name: getattr(axis, bound) for name, axis in drawn.axes.items()}
    sizes = {name: ends.get(name, 2 if name == batch else guess) for name in names}
    feed = synthetic.random_feed(specs, sizes, seed)
    for name, argument in drawn.arguments.items():
        if argument.numbers is not None and name in feed:
            feed[name] = np.asarray(argument.numbers, feed[name].dtype).reshape(feed[name].shape)
    return feed

"""Check that a rewritten graph computes the same function: both graphs run on the same inputs."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, isnan
from pathlib import Path

import numpy as np
import onnx_ir as ir

from optkit.facts.errors import InputRefused, OptkitError
from optkit.facts.tensors import Feed, axes_of, batch_axis
from optkit.ground import graph
from optkit.ground.data import spool, synthetic
from optkit.ground.runtimes import Level, Session
from optkit.road.steps.bodies.chosen_rows import choices, given_choices
from optkit.road.steps.bodies.sessions import cpu
from optkit.road.steps.graph import RandomInputs

_GUESSES = (2, 16, 64, 256)  # sizes of an axis without a range
TOLERANCE = 1e-4  # float32 rounding through a deep network, relative to the largest output
_LARGEST = 0.1  # as a multiple of the difference that rounding explains
_ROUNDINGS = 10.0  # a rewrite rounds at every operator, a rounded input only once
_UNIT = 2.0**-23  # in the last place
_UNITS = {ir.DataType.FLOAT16: 2.0**-10, ir.DataType.BFLOAT16: 2.0**-7}
_MOST_SAMPLES = 2  # of a feed: an axis that a rewrite has frozen differs from 1 to 2


@dataclass(frozen=True)
class Feeds:
    """The inputs on which two graphs run: some of the samples if there are any, otherwise random
    inputs."""

    random: RandomInputs
    samples: Path | None = None


def same_outputs(before: Path, after: Path, feeds: Feeds, what: str) -> float:
    """The `difference` of two graphs. Raises OptkitError if it is more than float rounding: more
    than TOLERANCE, and more than the change that rounding of the inputs causes in the original
    graph (Higham, Accuracy and Stability of Numerical Algorithms, 1.6: conditioning). For example,
    the sigmoid of a detector on noise changes by 4 % of its largest value if an input changes by
    one unit in the last place. A graph that rounds to half precision on its way changes by a unit
    of that type where a value lies between two of its numbers."""
    name, error = difference(before, after, feeds)
    if not error <= TOLERANCE and not error <= min(_LARGEST, _explained(before, feeds, name)):
        raise OptkitError(
            f"{what} changed the result by {error:.2e} of its largest value",
            where=f"output {name!r}",
            hint="please report the model; this is a bug",
        )
    return error


def difference(
    before: Path, after: Path, feeds: Feeds, level: Level = "basic"
) -> tuple[str, float]:
    """The output in which two graphs differ most, and its difference, see `_difference`. Only one
    of the graphs is in memory at a time. If they differ by more than TOLERANCE, `before` is run
    again with the choices of `after` among nearly equal values. `level`: ONNX Runtime's
    optimization of `before`.

    Raises OptkitError for outputs of other shapes.
    """
    with _opened(before, level) as old:
        runs = [_accepted_feed(old, feeds, bound, n) for n, bound in enumerate(("opt", "min"))]
    with _opened(after, "basic") as new:
        found = _most([(expected, new.run(feed)) for feed, expected in runs])
    if found[1] <= TOLERANCE:
        return found
    return _of_same_choices(before, after, [feed for feed, _ in runs], level) or found


def _most(pairs: Sequence[tuple[Feed, Feed]]) -> tuple[str, float]:
    """The output of the expected and given ones that differs most, and its difference."""
    found: list[tuple[str, float]] = []
    for expected, given in pairs:
        for name, values in expected.items():
            if values.shape != given[name].shape:
                raise OptkitError(
                    f"its shape was {values.shape} and became {given[name].shape}",
                    where=f"output {name!r}",
                    hint="please report the model; this is a bug",
                )
            found.append((name, _difference(values, given[name])))
    # NaN, which cannot be compared, counts as the largest difference
    return max(found, key=lambda one: inf if isnan(one[1]) else one[1], default=("", 0.0))


def _of_same_choices(
    before: Path, after: Path, feeds: Sequence[Feed], level: Level
) -> tuple[str, float] | None:
    """`difference` on what TopK in `after` chooses. None if the graphs choose nothing, or if
    `before` finds another choice better."""
    old, new = graph.load(before), graph.load(after)
    names = [name for name in choices(new) if name in choices(old)]
    if not names:
        return None
    given = given_choices(old, names)
    with tempfile.TemporaryDirectory() as folder:
        chosen, choosing = Path(folder) / "after.onnx", Path(folder) / "before.onnx"
        graph.save(graph.expose(new, names), chosen)
        with _opened(chosen, "basic") as session:
            found = [session.run(feed) for feed in feeds]
        graph.save(given.model, choosing)
        pairs = []
        with _opened(choosing, level) as session:
            for feed, outputs in zip(feeds, found, strict=True):
                indices = {name: outputs[name] for name in names}
                fed = {given.inputs[name]: array for name, array in indices.items()}
                expected = session.run({**feed, **fed})
                if not given.agrees(expected, indices, TOLERANCE):
                    return None
                pairs.append(
                    ({name: expected[name] for name in outputs if name in expected}, outputs)
                )
    return _most(pairs)


def _opened(file: Path, level: Level) -> Session:
    """A session of the graph. ONNX Runtime 1.31's optimizer fuses the parts of a norm behind a Cast
    from half precision into an operator whose types do not fit. Such a graph runs without
    optimization."""
    try:
        return cpu(file, level=level)
    except InputRefused:
        return cpu(file, level="none")


def _explained(before: Path, feeds: Feeds, name: str) -> float:
    """The change of an output that rounding explains."""
    casts = {
        ir.DataType(node.attributes["to"].as_int())
        for node in graph.load(before).graph.all_nodes()
        if node.op_type == "Cast" and "to" in node.attributes
    }
    coarsest = max((unit for kind, unit in _UNITS.items() if kind in casts), default=0.0)
    changes = _ROUNDINGS * _conditioning(before, feeds, name, _UNIT)
    return max(changes, _conditioning(before, feeds, name, coarsest)) if coarsest else changes


def _conditioning(file: Path, feeds: Feeds, name: str, unit: float) -> float:
    """The change of an output when float inputs change by this share."""
    worst = 0.0
    with _opened(file, "basic") as session:
        for seed, bound in enumerate(("opt", "min")):
            feed, expected = _accepted_feed(session, feeds, bound, seed)
            signs = np.random.default_rng(seed)
            moved = {
                key: x * (1 + unit * signs.choice([-1, 1], x.shape).astype(x.dtype))
                if x.dtype.kind == "f"
                else x
                for key, x in feed.items()
            }
            worst = max(worst, _difference(expected[name], session.run(moved)[name]))
    return worst


def _difference(expected: np.ndarray, found: np.ndarray) -> float:
    """The largest difference divided by the largest value. NaN equals NaN, and infinity the same
    infinity. For integers and bools, the share of numbers that differ, because rounding may change
    a class index now and then."""
    if expected.dtype.kind != "f":
        return float(np.mean(expected != found)) if expected.size else 0.0
    a, b = expected.astype(np.float64), found.astype(np.float64)
    differs = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    scale = float(np.abs(a[np.isfinite(a)]).max(initial=0.0)) or 1.0
    return float(np.abs(a[differs] - b[differs]).max(initial=0.0)) / scale


def _accepted_feed(session: Session, feeds: Feeds, bound: str, seed: int) -> tuple[Feed, Feed]:
    """A feed and its outputs: from the samples if there are any, otherwise random. Some graphs
    refuse small sizes of an axis without a range, so larger sizes are tried."""
    if feeds.samples is not None:
        feed = _few(spool.Spool(feeds.samples), feeds.random, bound, seed)
        return feed, session.run(feed)
    for guess in _GUESSES:
        feed = random_feed(feeds.random, bound, seed, guess, most=_MOST_SAMPLES)
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


def _few(stored: spool.Spool, drawn: RandomInputs, bound: str, number: int) -> Feed:
    """One of the first batches, of `_MOST_SAMPLES` samples or, at the lower end, of one; of more if
    the model's batch axis allows no fewer."""
    axis = batch_axis(stored.inputs)
    fewest = drawn.axes[axis].min if isinstance(axis, str) and axis in drawn.axes else 1
    size = max(1 if bound == "min" else _MOST_SAMPLES, fewest)
    batches = stored.batches(size if isinstance(axis, str) else None)
    return [feed for feed, _ in islice(batches, number + 1)][-1]


def random_feed(
    drawn: RandomInputs, bound: str, seed: int, guess: int = 2, most: int | None = None
) -> Feed:
    """A random feed at one end of the axis ranges. An axis without a known range gets the size
    `guess`, or 2 if it counts samples. `most`: samples, if the range of their axis allows so few.
    Inputs that are arguments get the numbers that the graph determines."""
    specs = drawn.inputs
    names = {axis for spec in specs for axis in axes_of(spec.info.shape)}
    batch = batch_axis(spec.info for spec in specs)
    ends = {name: getattr(axis, bound) for name, axis in drawn.axes.items()}
    sizes = {name: ends.get(name, 2 if name == batch else guess) for name in names}
    if most is not None and isinstance(batch, str) and batch in drawn.axes:
        sizes[batch] = min(sizes[batch], max(most, drawn.axes[batch].min))
    feed = synthetic.random_feed(specs, sizes, seed)
    for name, argument in drawn.arguments.items():
        if argument.numbers is not None and name in feed:
            feed[name] = np.asarray(argument.numbers, feed[name].dtype).reshape(feed[name].shape)
    return feed

"""Whether a rewritten graph still computes what it did: both run on random inputs."""

from __future__ import annotations

from itertools import islice
from math import inf, isnan
from pathlib import Path
from typing import TYPE_CHECKING

from optkit.errors import InputRefused, OptkitError
from optkit.steps.files import Params, cpu

if TYPE_CHECKING:
    import numpy as np

    from optkit.runtimes import Level, Session
    from optkit.tensors import Feed

_GUESSES = (2, 16, 64, 256)  # sizes of an axis that nobody gave a range
TOLERANCE = 1e-4  # float32 rounding through a deep network, relative to the largest output
_LARGEST = 0.1  # of what rounding may explain
_ROUNDINGS = 10.0  # a rewrite rounds at every operator, a rounded input only once
_ULP = 2.0**-23


def same_outputs(before: Path, after: Path, params: Params, what: str) -> float:
    """`difference` of two graphs. Raises OptkitError where it is more than float rounding: more
    than TOLERANCE, and than what rounding the inputs changes in the graph as it was (Higham,
    Accuracy and Stability of Numerical Algorithms, 1.6: conditioning). A detector's sigmoid on
    noise moves by 4 % of its largest value where an input moves by one unit in the last place."""
    name, error = difference(before, after, params)
    if not error <= TOLERANCE and not error <= min(
        _LARGEST, _ROUNDINGS * _conditioning(before, params, name)
    ):
        raise OptkitError(
            f"{what} changed the result by {error:.2e} of its largest value",
            where=f"output {name!r}",
            hint="please report the model; this is a bug",
        )
    return error


def difference(
    before: Path, after: Path, params: Params, level: Level = "basic"
) -> tuple[str, float]:
    """The output in which two graphs differ most, and by how much, see `_difference`. One of the
    graphs is in memory at a time. `level`: ONNX Runtime's optimization of `before`.

    Raises OptkitError for outputs of other shapes.
    """
    with _opened(before, level) as old:
        runs = [_accepted_feed(old, params, bound, n) for n, bound in enumerate(("opt", "min"))]
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


def _conditioning(graph: Path, params: Params, name: str) -> float:
    """How much an output moves where float inputs move by one unit in the last place."""
    import numpy as np

    worst = 0.0
    with _opened(graph, "basic") as session:
        for seed, bound in enumerate(("opt", "min")):
            feed, expected = _accepted_feed(session, params, bound, seed)
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
    import numpy as np

    if expected.dtype.kind != "f":
        return float(np.mean(expected != found)) if expected.size else 0.0
    a, b = expected.astype(np.float64), found.astype(np.float64)
    differs = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    scale = float(np.abs(a[np.isfinite(a)]).max(initial=0.0)) or 1.0
    return float(np.abs(a[differs] - b[differs]).max(initial=0.0)) / scale


def _accepted_feed(session: Session, params: Params, bound: str, seed: int) -> tuple[Feed, Feed]:
    """A feed and its outputs: of the samples, where there are any, else a random one. Not every
    graph takes small sizes of an axis without a range, so larger ones are tried."""
    if "samples" in params:
        feed = _sample(params["samples"], seed)
        return feed, session.run(feed)
    for guess in _GUESSES:
        feed = random_feed(params, bound, seed, guess)
        try:
            return feed, session.run(feed)
        except InputRefused as error:
            failure = error
    raise InputRefused(
        f"the graph does not run on random inputs: {failure.message}",
        where=failure.where,
        hint=_remedy(params),
    ) from failure


def _remedy(params: Params) -> str:
    asked = {n: one["what"] for n, one in params.get("arguments", {}).items()
             if one["numbers"] is None}  # fmt: skip
    if not asked:
        return "give the sizes of its axes: --opt-shapes, or `axes:` in the recipe"
    told = ", ".join(f"input {name!r} is {what}" for name, what in sorted(asked.items()))
    return f"{told}, which random numbers are not: give samples of the inputs (--calibration)"


def _sample(path: str, number: int) -> Feed:
    """One of the first batches of a spool."""
    from optkit.data.spool import Spool

    feeds = [feed for feed, _ in islice(Spool(Path(path)).batches(None), number + 1)]
    return feeds[-1]


def random_feed(params: Params, bound: str, seed: int, guess: int = 2) -> Feed:
    """A feed at one end of the axis ranges; an axis that no range is known for gets size `guess`,
    or 2 where it counts samples. Inputs that are arguments hold what the graph says they are."""
    import numpy as np

    from optkit.data import spool
    from optkit.recipe import inputs_from_json
    from optkit.tensors import axes_of, batch_axis

    specs = inputs_from_json(params["inputs"])
    names = {axis for spec in specs for axis in axes_of(spec.info.shape)}
    batch = batch_axis(spec.info for spec in specs)
    sizes = {
        name: params["axes"].get(name, {}).get(bound, 2 if name == batch else guess)
        for name in names
    }
    feed = spool.random_feed(specs, sizes, seed)
    for name, argument in params.get("arguments", {}).items():
        if argument["numbers"] is not None and name in feed:
            feed[name] = np.asarray(argument["numbers"], feed[name].dtype).reshape(feed[name].shape)
    return feed

"""Compares the exported graph with its model, on seeded random inputs of several shapes.

Two runtimes that compute the same float32 function differ by the order of their sums: 1e-7 to 4e-5
of the largest output over whole networks. A wrong export (a missing mask, a fixed size) differs by
orders of magnitude more. So the limit is 1e-3 of the largest output, and 3e-2 for 16-bit outputs,
whose rounding is 1e-3 to 8e-3. Of integers and bools one in 1,000 may differ: among the pixels of a
class map some are on an edge, where rounding decides.

The model runs first and the graph after it, so that only one copy of the weights is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from optkit.data.synthetic import random_feed
from optkit.errors import ExportFailed
from optkit.runtimes import Progress, Session
from optkit.sources.log import Check
from optkit.tensors import Feed, InputSpec


class Case(NamedTuple):
    """One comparison: the sizes of its axes, in words, a feed of these sizes, and the model's
    outputs."""

    sizes: dict[str, int]
    where: str
    feed: Feed
    outputs: Feed


_LIMITS = {2: 3e-2, 4: 1e-3, 8: 1e-3}  # share of the largest output, by bytes of the dtype
_TURNED = 1e-3  # share of integers


def expected(
    reference: Callable[[Feed], Feed],
    specs: Sequence[InputSpec],
    places: Sequence[Mapping[str, int]],
    progress: Progress,
) -> list[Case]:
    """The outputs of the model for each choice of sizes (axis → size)."""
    cases = []
    for seed, sizes in enumerate(places):
        where = ", ".join(f"{name}={size}" for name, size in sizes.items()) or "the fixed shapes"
        progress(f"comparing with torch at {where}", 0.7 + 0.3 * seed / len(places))
        feed = random_feed(specs, sizes, seed)
        cases.append(Case(dict(sizes), where, feed, reference(feed)))
    return cases


def check(cases: Sequence[Case], session: Session) -> tuple[Check, ...]:
    """Compare the graph with the expected outputs. Raises ExportFailed with the output and its
    error."""
    checks = []
    for sizes, where, feed, outputs in cases:
        returned = session.run(feed)
        errors = {n: _compare(n, values, returned[n], where) for n, values in outputs.items()}
        checks.append(Check(sizes, errors))
    return tuple(checks)


def _compare(name: str, expected: np.ndarray, actual: np.ndarray, where: str) -> float:
    """The largest absolute difference; of integers and bools, the share that differs. NaN agrees
    with NaN, and an infinity with itself."""
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        raise _differs(
            f"output {name!r} is {actual.dtype} {list(actual.shape)} in the graph and "
            f"{expected.dtype} {list(expected.shape)} in torch",
            where,
        )
    if expected.dtype.kind not in "f":
        wrong = int(np.count_nonzero(expected != actual))
        if wrong > _TURNED * actual.size:
            raise _differs(f"{wrong} of {actual.size} values of output {name!r} differ", where)
        return wrong / max(actual.size, 1)
    a, b = expected.astype(np.float64), actual.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    scale = np.abs(a[np.isfinite(a)]).max(initial=0.0)
    error = float(np.abs(a[~same] - b[~same]).max(initial=0.0))
    limit = max(_LIMITS[expected.dtype.itemsize] * scale, 1e-6)
    if not error <= limit:  # NaN where one side is not finite
        raise _differs(
            f"output {name!r} differs from torch by {error:.3g}; its largest value is {scale:.3g}, "
            f"which allows {limit:.3g}",
            where,
        )
    return error


def _differs(message: str, where: str) -> ExportFailed:
    return ExportFailed(
        message,
        where=f"at {where}",
        hint="the model must compute the same at every size and on every call: look for sizes "
        "fixed while tracing, randomness, and state kept between calls",
    )

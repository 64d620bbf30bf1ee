"""Compares the exported graph with its model, where it will run: on the user's samples, else on
seeded random inputs, at the sizes of `compared_sizes` and with masks filled in several ways.

Two runtimes that compute the same float32 function differ by the order of their sums: 1e-7 to 4e-5
of the largest output over whole networks. A wrong export (a missing mask, a fixed size) differs by
orders of magnitude more. So the limit is 1e-3 of the largest output, and 3e-2 if it, or values
inside, have 16 bits, whose rounding is 1e-3 to 8e-3. Boxes in pixels beside scores would hide wrong
scores: so the limit holds in each slice along axis 1 and along the last axis too, down to 5e-5 of
the largest output. Of integers and bools one in 1,000 may differ: among the pixels of a class map
some are on an edge, where rounding decides.

The model runs first and the graph after it, so that only one copy of the weights is needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, isfinite
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from optkit.craft.sources.comparison_trials import ComparisonTrial
from optkit.facts.documents.export_comparison import ExportCheck, ExportLeftOut
from optkit.facts.errors import ExportFailed, OptkitError
from optkit.facts.tensors import Feed, InputSpec
from optkit.ground.data import mask_styles
from optkit.ground.graph.activation_bytes import Activations
from optkit.ground.runtimes import Progress, Session

_LIMITS = {2: 3e-2, 4: 1e-3, 8: 1e-3}  # share of the largest output, by bytes of the dtype
_SLICE = 5e-5  # share of the largest output below which a slice may differ
_TURNED = 1e-3  # share of integers
_SECONDS = 20.0  # of all cores together, for the runs of the model
_BYTES = 1 << 30  # of the values of one run, and of all outputs that are kept
KEPT = 1 << 30
"""Bytes of weights that may be in memory twice, to look for the cause of a mismatch."""

_ALWAYS = 2  # trials that are made whatever they cost

Reference = Callable[[Feed], Feed]


@dataclass(frozen=True)
class ComparedRun:
    """One comparison: the trial, its inputs, and the model's outputs. `halves`: the model computes
    with 16 bits inside, so that all outputs have such rounding."""

    trial: ComparisonTrial
    feed: Feed
    outputs: Feed
    halves: bool = False

    @property
    def where(self) -> str:
        return place(self.trial.sizes)


@dataclass(frozen=True)
class OutputMismatch:
    """An output that differs: by how much, in words."""

    output: str
    message: str


class MismatchJudge(Protocol):
    """The model, which can be asked again."""

    def judge(self, case: ComparedRun, returned: Feed, mismatch: OutputMismatch) -> str:
        """Why a mismatch is no error of the export, for the log. Raises ExportFailed with the
        cause."""


@dataclass(frozen=True)
class ModelOutputs:
    """The outputs of the model for each trial, and the trials that were left out."""

    cases: tuple[ComparedRun, ...]
    left_out: tuple[ExportLeftOut, ...]


def place(sizes: Mapping[str, int]) -> str:
    """The sizes in words."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "the fixed shapes"


def expected(
    reference: Reference, trials: Iterable[ComparisonTrial], needs: Activations, progress: Progress
) -> ModelOutputs:
    """Run the model. Trials for which the budget of seconds or bytes does not suffice are left out,
    except the first ones. Raises ExportFailed if the model fails."""
    cases: list[ComparedRun] = []
    left_out: list[ExportLeftOut] = []
    budget = _Budget(needs)
    for trial in trials:
        where = place(trial.sizes)
        reason = trial.reason or (budget.refusal(trial) if len(cases) >= _ALWAYS else None)
        if reason is not None:
            left_out.append(ExportLeftOut(trial.sizes, reason))
            continue
        progress(f"comparing with torch at {where}", 0.7 + 0.3 * budget.share)
        feed = trial.feed()
        try:
            with budget.spent(trial):
                outputs = reference(feed)
        except ExportFailed as error:
            if trial.masks == "infinite":  # not every mask of floats is added to scores
                continue
            error.where = f"{error.where or 'the model'}, at {where}"
            raise
        if trial.masks == "infinite" and not _all_finite(outputs):
            continue
        budget.keep(outputs)
        cases.append(ComparedRun(trial, feed, outputs, needs.halves))
    return ModelOutputs(tuple(cases), tuple(left_out))


class _Budget:
    """What the runs of the model may cost. The first runs show how long a byte takes."""

    def __init__(self, needs: Activations) -> None:
        self._needs, self._seconds, self._kept, self._rate = needs, 0.0, 0, 0.0

    @property
    def share(self) -> float:
        return min(self._seconds / _SECONDS, 1.0)

    def refusal(self, trial: ComparisonTrial) -> str | None:
        """Why a trial is too expensive; None if it is not."""
        need = self._needs.at(trial.sizes)
        if need.live > _BYTES or self._kept > _BYTES:
            return f"its values need {need.live / 2**30:.2g} GiB of memory"
        seconds = self._rate * need.all
        if self._seconds + seconds > _SECONDS:
            return f"it takes about {seconds:.2g} CPU seconds; {_SECONDS:g} are for all comparisons"
        return None

    @contextmanager
    def spent(self, trial: ComparisonTrial) -> Iterator[None]:
        started = time.process_time()
        yield
        seconds = time.process_time() - started
        self._seconds += seconds
        self._rate = seconds / max(self._needs.at(trial.sizes).all, 1)

    def keep(self, outputs: Feed) -> None:
        self._kept += sum(array.nbytes for array in outputs.values())


def check(
    cases: Sequence[ComparedRun], session: Session, judge: MismatchJudge | None
) -> tuple[ExportCheck, ...]:
    """Compare the graph with the expected outputs. `judge`: None if the model is no longer in
    memory. Raises ExportFailed with the output, its error and the cause."""
    checks = []
    specs = [InputSpec(info) for info in session.inputs]
    for case in cases:
        try:
            returned = session.run(case.feed)
        except OptkitError as error:
            raise ExportFailed(
                f"the graph does not run where torch does: {error.message}",
                where=f"at {case.where}",
                hint="a size or a shape was fixed while the model was captured: declare smaller "
                "ranges of the axes, or compute the shape from the sizes of the inputs",
            ) from error
        errors: dict[str, float | None] = {}
        notes = []
        for name, values in case.outputs.items():
            largest, problem = difference(values, returned[name], halves=case.halves)
            errors[name] = largest if isfinite(largest) else None
            if problem is not None:
                notes.append(_judged(case, returned, OutputMismatch(name, problem), judge, specs))
        check = ExportCheck(
            case.trial.sizes, case.trial.values, case.trial.masks, errors, tuple(notes)
        )
        checks.append(check)
    return tuple(checks)


def warnings(expected: ModelOutputs, checks: Sequence[ExportCheck]) -> tuple[str, ...]:
    """What a user has to know about the comparisons: differences that are no errors, outputs of
    which nothing is known, and comparisons that were not made."""
    notes = [note for check in checks for note in check.notes]
    found = [
        note for note in notes if not note.endswith(mask_styles.AT_HIDDEN)
    ]  # nobody reads these
    for name, first in (expected.cases[0].outputs if expected.cases else {}).items():
        outputs = [case.outputs[name] for case in expected.cases]
        if first.dtype.kind == "f" and not any(np.isfinite(one).any() for one in outputs):
            found.append(
                f"output {name!r} is not finite anywhere, so the comparison of graph and model "
                "says nothing about it: give samples that the model takes (--calibration)"
            )
    if expected.left_out:
        first_out = expected.left_out[0]
        more = f" and {len(expected.left_out) - 1} more" if len(expected.left_out) > 1 else ""
        found.append(
            f"graph and model were not compared at {place(first_out.sizes)}{more}: "
            f"{first_out.reason}"
        )
    return tuple(dict.fromkeys(found))


def _judged(
    case: ComparedRun,
    returned: Feed,
    mismatch: OutputMismatch,
    judge: MismatchJudge | None,
    specs: Sequence[InputSpec],
) -> str:
    expected, found = case.outputs[mismatch.output], returned[mismatch.output]
    for seen, where in mask_styles.seen_places(case.feed, specs, expected.shape):
        there = (np.where(seen, one, np.zeros((), one.dtype)) for one in (expected, found))
        if expected.shape == found.shape and not difference(*there, halves=case.halves)[1]:
            return f"output {mismatch.output!r} {mismatch.message}, {where}"
    if judge is not None:
        return judge.judge(case, returned, mismatch)
    raise ExportFailed(
        f"output {mismatch.output!r} {mismatch.message}. Its cause was not looked for, because "
        "the weights are too large to be in memory twice",
        where=f"at {case.where}",
    )


def difference(
    expected: np.ndarray, actual: np.ndarray, *, halves: bool = False, noise: ArrayLike = 0.0
) -> tuple[float, str | None]:
    """The largest absolute difference of an output (of integers and bools, the share that differs),
    and in words what is more than rounding; None if nothing is. NaN agrees with NaN, and an
    infinity with itself. `halves`: see `ComparedRun`; `noise`: how far values are off anyway."""
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return inf, (
            f"is {actual.dtype} {list(actual.shape)} in the graph and {expected.dtype} "
            f"{list(expected.shape)} in torch"
        )
    if expected.dtype.kind not in "f":
        wrong = int(np.count_nonzero(expected != actual))
        too_many = wrong > _TURNED * actual.size
        told = f"differs from torch in {wrong} of {actual.size} values" if too_many else None
        return wrong / max(actual.size, 1), told
    a, b = expected.astype(np.float64), actual.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    error = np.zeros_like(a)
    np.subtract(a, b, out=error, where=~same)
    np.abs(error, out=error)
    a[~np.isfinite(a)] = 0
    np.abs(a, out=a)
    share = _LIMITS[2 if halves else expected.dtype.itemsize]
    largest = float(error.max(initial=0.0))
    floor = max(_SLICE * float(a.max(initial=0.0)), 1e-6)
    known = np.broadcast_to(noise, a.shape)
    for kept in _slices(a.ndim):
        scales, errors, off = (x.max(axis=kept, initial=0.0) for x in (a, error, known))
        allowed = np.maximum(np.maximum(share * scales, floor), off)
        over = ~(errors <= allowed)  # NaN where one is not finite
        if over.any():
            return largest, _told(scales, errors, over, share, kept, a.ndim)
    return largest, None


def _slices(ndim: int) -> Iterator[tuple[int, ...]]:
    """The axes over which the largest values are taken: all, then all but one."""
    yield tuple(range(ndim))
    for axis in dict.fromkeys((1, ndim - 1)) if ndim > 1 else ():
        yield tuple(other for other in range(ndim) if other != axis)


def _told(
    scales: np.ndarray,
    errors: np.ndarray,
    over: np.ndarray,
    share: float,
    kept: tuple[int, ...],
    ndim: int,
) -> str:
    where = ""
    if len(kept) < ndim:
        (axis,) = {*range(ndim)} - {*kept}
        place = int(np.flatnonzero(over)[0])
        scales, errors = scales[place], errors[place]
        where = f" at index {place} of axis {axis}"
    return (
        f"differs from torch by {float(errors):.3g}{where}; the largest value there is "
        f"{float(scales):.3g}, which allows {share * float(scales):.3g}"
    )


def _all_finite(outputs: Feed) -> bool:
    return all(bool(np.isfinite(a).all()) for a in outputs.values() if a.dtype.kind == "f")

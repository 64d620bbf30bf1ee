from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from optkit.craft import foreign
from optkit.craft.foreign import GivenRanges
from optkit.facts.errors import InputRefused, nearest
from optkit.ground import graph
from optkit.ground.execute.step import Progress
from optkit.ground.statistics import (
    MissingRange,
    Statistics,
    ValueStatistics,
    count_bins,
    load,
    save,
)
from optkit.road.steps.bodies.taps import taps_of_families
from optkit.road.steps.calibrate import CalibrationResult
from optkit.road.steps.file_names import GRAPH, STATISTICS
from optkit.road.steps.given_ranges import TakeRanges

_SHOWN = 3  # names in a warning


def run(step: TakeRanges, out: Path, progress: Progress) -> CalibrationResult:
    given = foreign.read_ranges(step.ranges.path)
    model = graph.load(step.graph.path / GRAPH)
    names = [tap.name for tap in taps_of_families(model, step.families, moments=False)]
    values = {str(value.name): value for node in model.graph for value in node.outputs}
    values |= {str(value.name): value for value in model.graph.inputs}
    named = [name for name in names if name in given.ranges]
    if names and not named:
        raise _strange(given, values, names)
    observed = Statistics({}, 1, "0" * 64)  # nothing
    if step.statistics is not None:
        observed = load(step.statistics.path / STATISTICS)
    ranges: dict[str, ValueStatistics] = {}
    for name in names:
        known = observed.values.get(name)
        if name in given.ranges:
            ranges[name] = _taken(values[name], given.ranges[name], known)
        else:
            ranges[name] = known or _without_range(given)
    save(replace(observed, values=ranges), out / STATISTICS)
    return CalibrationResult(
        values=len(ranges),
        samples=None if step.statistics is None else observed.samples,
        warnings=_told(
            given,
            values,
            named,
            sorted(ranges.keys() - given.ranges.keys()),
            "what reads them stays in floats"
            if step.statistics is None
            else "theirs are from the samples",
        ),
    )


def _taken(
    value: ir.Value, ends: tuple[float, float], observed: ValueStatistics | None
) -> ValueStatistics:
    """The statistics of a value with a given range. A cache of TensorRT is symmetric, also for
    values that are never negative. Factors per channel would change the range, so the numbers per
    channel are dropped."""
    low, high = (float(end) for end in np.array(ends, np.float32))
    low, high = min(low, 0.0), max(high, 0.0)
    if foreign.never_negative(value):
        low = 0.0
    if observed is not None and observed.unbounded is None:
        return replace(observed, low=low, high=high, channels=None, given=True)
    counts = count_bins(np.array([low, high], np.float32))
    bins = np.flatnonzero(counts)
    return ValueStatistics(low, high, bins.astype(np.uint16), counts[bins], given=True)


def _without_range(given: GivenRanges) -> ValueStatistics:
    nothing = np.empty(0, np.uint16), np.empty(0, np.int64)
    verdict = MissingRange(None, f"the file of ranges ({given.written_by}) does not name it")
    return ValueStatistics(np.inf, -np.inf, *nothing, verdict=verdict)


def _told(
    given: GivenRanges, values: Collection[str], named: list[str], missing: list[str], rule: str
) -> tuple[str, ...]:
    """What the file gave; the values that it lacks, with the rule for them; and the names that the
    graph does not have."""
    told = [f"{len(named)} ranges are given by {given.written_by}"]
    if missing:
        told.append(f"{len(missing)} values have no given range, {rule}: {_names(missing)}")
    strange = [name for name in given.ranges if name not in values]
    if strange:
        shown = ", ".join(_with_nearest(name, values) for name in strange[:_SHOWN])
        more = f" and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
        told.append(
            f"{len(strange)} given ranges are of tensors that the fused graph does not have: "
            f"{shown}{more}"
        )
    return tuple(told)


def _strange(given: GivenRanges, values: Collection[str], names: list[str]) -> InputRefused:
    first = next(iter(given.ranges))
    return InputRefused(
        f"it names no value that is quantized; its first tensor is {_with_nearest(first, values)}",
        hint=f"the graph quantizes {_names(names)}; give the .onnx file that was calibrated",
    )


def _with_nearest(name: str, values: Collection[str]) -> str:
    close = nearest(name, values)
    return f"{name!r} (nearest {close[0]!r})" if close else repr(name)


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more

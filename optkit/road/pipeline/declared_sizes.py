"""The ends of the declared sizes: ranges hold there, and the fidelity is measured there.

Samples seldom reach them. So a few samples are changed to all axes at their smallest and at their
largest size. Calibration sees them apart from the others, and the candidate is compared on them,
and on samples between these sizes and their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optkit.facts.assignment import Scheme
from optkit.facts.measurement import GIVEN_GRAPH
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import Precision
from optkit.facts.tensors import AxisRange, axes_of
from optkit.ground.decoder import Decoder
from optkit.ground.execute.runner import Steps
from optkit.road.pipeline.job import Build
from optkit.road.pipeline.run_samples import sample_batch
from optkit.road.steps.calibrate import Calibrate, CalibrationResult
from optkit.road.steps.collect import Samples
from optkit.road.steps.compare_sizes import CompareSizes
from optkit.road.steps.cover_sizes import CoveredSizes, CoverSizes
from optkit.road.steps.quantize import QuantizationSettings
from optkit.road.steps.resize import ENDS, POINTS, Point, Resize, ResizedSamples


def free_axes(build: Build) -> dict[str, AxisRange]:
    """The axes of the inputs with more than one size, except that of the samples (unless no output
    has it: the model then sums over it) and those of a decoder's cache, whose values are those of a
    longer text without a cache."""
    batch, ranges = build.batch_axis, build.job.recipe.axis_ranges()
    pooled = all(info.shape[:1] != (batch,) for info in build.outputs)
    decodes = Decoder.of(build.inputs, build.outputs) is not None
    left_out = {None if pooled else batch}
    if decodes:
        left_out |= {name for name, axis in ranges.items() if not axis.min}
    named = [axis for info in build.inputs for axis in axes_of(info.shape)]
    return {
        name: ranges[name]
        for name in dict.fromkeys(named)
        if name in ranges and name not in left_out and ranges[name].min < ranges[name].max
    }


def covered(
    build: Build,
    statistics: CalibrationResult,
    samples: Samples,
    scheme: Scheme,
    settings: QuantizationSettings,
    families: tuple[Mapping[Precision, PlacementRules], ...],
    sizes: Mapping[str, int],
    planned: int | None,
    runner: Steps,
) -> CoveredSizes | None:
    """Statistics whose ranges hold at all declared sizes; None if no activation has a fixed range,
    or there is no size to try. `planned`: the memory for which the graph runs part by part; None:
    it runs as a whole."""
    formats = [scheme.rules[own].activation for own in build.job.quantized]
    if build.source.trained or all(f is None or f.granularity == "block" for f in formats):
        return None
    ends = at_points(build, samples, ENDS, "calibration", runner)
    known = {}
    for end, resized in ends.items():
        if not resized.written:
            continue
        step = Calibrate(
            graph=build.fused,
            samples=resized,
            batch=sample_batch(build),
            families=families,
            moments=False,
            tolerant=True,
            planned_memory=planned,
            memory=runner.limits.memory_bytes,
        )
        seen = runner.do(step, f"calibrate at the {end} declared sizes")
        if seen.failed is None:
            known[end] = seen
    if not known:
        return None
    cover = CoverSizes(
        graph=build.fused,
        statistics=statistics,
        least=known.get("least"),
        largest=known.get("largest"),
        at={end: told(ends[end]) for end in known},
        scheme=scheme,
        settings=settings,
        sizes=sizes,
    )
    return runner.do(cover, "compare ranges at the declared sizes")


def compare(build: Build, runner: Steps) -> None:
    """The candidate's fidelity to its reference at both ends of the declared sizes, and between."""
    if build.job.precision.name == "fp32" or build.compared is None:
        return
    build.resized = at_points(build, build.compared, POINTS, "compared", runner)
    known = {point: made for point, made in build.resized.items() if made.written}
    if known:
        step = CompareSizes(
            graph=build.graph,
            reference=build.shipped or build.fused,
            to="fp32" if build.shipped is None else GIVEN_GRAPH,
            file=build.simulation,
            evidence=build.evidence,
            least=known.get("least"),
            shorter=known.get("shorter"),
            longer=known.get("longer"),
            largest=known.get("largest"),
        )
        build.at_sizes = runner.do(step, "compare at the declared sizes")


def at_points(
    build: Build, samples: Samples, points: Sequence[Point], what: str, runner: Steps
) -> dict[Point, ResizedSamples]:
    """Some of the samples at these points of the declared sizes, if any size is free."""
    axes = free_axes(build)
    if not axes:
        return {}
    whole = build.batch_axis in axes
    found = {}
    for point in points:
        step = Resize(
            samples=samples,
            graph=build.fused,
            specs=build.job.recipe.describe(build.inputs),
            axes=axes,
            at=point,
            whole=whole,
            optional=tuple(build.job.recipe.optional_axes()),
            last=what != "calibration",  # parts of the samples that calibration has not seen
            memory=runner.limits.memory_bytes // 4,
        )
        found[point] = runner.do(step, f"take {what} samples at the {point} declared sizes")
    return found


def told(resized: ResizedSamples) -> str:
    """The sizes in words: "t=8, h=64"."""
    return ", ".join(f"{axis}={size:,}" for axis, size in resized.sizes.items())

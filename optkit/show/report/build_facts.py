"""What the figures of a build are of: the size of its engine, its data, and when it was timed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from optkit.facts.documents.measured import BuildFacts, SampleSet
from optkit.facts.documents.result import Result
from optkit.ground.recipe import MEMORY
from optkit.show.report import details, figures

_ROOTS = ("content", "recipe", "given")  # of the places of files
_SHIPPED = ("content:calibration/", "content:eval/")


def facts(result: Result, recipe: Mapping[str, object]) -> BuildFacts:
    """Size, data and measurement of a build."""
    settings, latency = details.flat(recipe), result.latency
    score, check = result.accuracy, result.calibration
    return BuildFacts(
        engine_bytes=result.size.bytes if result.size else None,
        calibration=_samples(check.samples, settings, "calibration.source") if check else None,
        evaluation=_samples(score.samples, settings, "eval.task") if score else None,
        measured_at=latency.measured_at if latency else None,
        machine=latency.machine if latency else None,
        from_store=latency.from_store if latency else None,
    )


def _samples(samples: int, settings: Mapping[str, object], key: str) -> SampleSet:
    """`settings[key]`: the place of the source; args of a reader that optkit ships name the file
    of the user."""
    source, path = settings.get(key), settings.get(f"{key.partition('.')[0]}.args.path")
    shipped = isinstance(source, str) and source.startswith(_SHIPPED)
    named = path if shipped and isinstance(path, str) else source
    return SampleSet(samples=samples, source=named if isinstance(named, str) else None)


def described(build: BuildFacts | None) -> list[str]:
    """Size, data and measurement of a build as text, as far as they are known."""
    if build is None:
        return []
    size = build.engine_bytes
    lines = (
        ("engine ", None if size is None else figures.size(size)),
        ("calibrated on ", _of(build.calibration)),
        ("accuracy on ", _of(build.evaluation)),
        ("latency ", figures.measured(build)),
    )
    return [f"{word}{fact}" for word, fact in lines if fact]


def _of(data: SampleSet | None) -> str | None:
    """`256 samples of digits`, for a source that optkit ships; `256 samples from data.py`, for a
    file of the user; None without samples."""
    if data is None:
        return None
    samples, source = f"{data.samples:,} samples", data.source
    if source is None:
        return samples
    if source == MEMORY:
        return f"{samples} of your calibration data"
    root, colon, place = source.partition(":")
    if not colon or root not in _ROOTS:
        return f"{samples} from {figures.name(PurePath(source).name)}"
    if source.startswith(_SHIPPED):
        return f"{samples} of {figures.name(PurePath(place.partition(':')[0]).stem)}"
    return f"{samples} from {figures.name(place.removesuffix(':samples'))}"

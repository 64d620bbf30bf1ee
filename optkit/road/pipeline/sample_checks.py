"""Checks of calibration and evaluation samples before they are used."""

from __future__ import annotations

from optkit.facts.errors import InputRefused, located
from optkit.ground.data.spool import Spool, overlap
from optkit.ground.execute.runner import Steps
from optkit.ground.recipe import Recipe, SampleRole
from optkit.road.pipeline.job import Build
from optkit.road.steps.check_data import CheckData
from optkit.road.steps.check_finite import CheckFinite
from optkit.road.steps.collect import Samples


def check_data(build: Build, runner: Steps) -> None:
    """Check that the calibration data looks like what the model expects, before it is used."""
    if build.calibration is None:
        return
    step = CheckData(
        samples=build.calibration,
        graph=build.source,
        evaluation=build.evaluation,
        specs=build.job.recipe.describe(build.inputs),
        without=() if build.calibration.planned else tuple(build.calibration.info.not_finite),
    )
    build.data_check = runner.do(step, "check calibration data")


def check_finite(build: Build, samples: Samples | None, role: SampleRole, runner: Steps) -> None:
    """Refuse samples with NaN or infinities that the model does not mask or replace."""
    if samples is None or samples.planned or not samples.info.not_finite:
        return
    source = build.job.recipe.samples(role)
    with located(role if source is None else str(source.data or source.place.path)):
        step = CheckFinite(samples=samples, graph=build.source)
        runner.do(step, f"check {role} samples that are not finite")


def keep_apart(build: Build, calibration: Samples, evaluation: Samples) -> None:
    """Refuse samples that are used for calibration and for evaluation."""
    if not (calibration.files and evaluation.files):  # in a rehearsal
        return
    shared = overlap(Spool(calibration.path), Spool(evaluation.path))
    if shared:
        ours, theirs = shared[0]
        raise InputRefused(
            f"{len(shared)} calibration samples are also evaluation samples; the first is "
            f"calibration sample {ours}, evaluation sample {theirs}",
            where=_of_samples(build.job.recipe),
            hint="calibrate on data that the task does not score, or the accuracy is not valid",
        )


def _of_samples(recipe: Recipe) -> str:
    """The files of calibration and evaluation, as far as the recipe names them."""
    sources = (recipe.samples("calibration"), recipe.samples("evaluation"))
    files = [str(one.data or one.place.path) for one in sources if one is not None]
    return " and ".join(dict.fromkeys(files)) or recipe.name

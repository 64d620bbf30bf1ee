"""One model for several targets and precisions: one artifact per pair, and one report for all.

    artifacts/digits-vit-l4-int8/      artifacts/digits-vit-h100-fp8/      …
    artifacts/digits-vit-fleet/        fleet.json, report.html, report.md

Evaluation samples that several artifacts embed are one file on the disk, with several names.

A pair that fails does not stop the others. A step that several pairs have in common (export,
fusion, calibration, the quantized graph of one backend) runs once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from optkit.craft.prediction.cost import price_of
from optkit.facts.documents.fleet import FLEET, BuiltArtifact, Fleet, PairStep, PricedTarget
from optkit.facts.documents.result import Result
from optkit.facts.errors import OptkitError, UsageError
from optkit.facts.precisions import Precision, precision
from optkit.facts.request import Request
from optkit.ground.artifact import Artifact, create, manifest, prepare, share
from optkit.ground.devices import Target
from optkit.ground.devices import target as find_target
from optkit.ground.exchange import replacing
from optkit.ground.execute.runner import Runner
from optkit.ground.store import digest_json, write_durably
from optkit.ground.workspace import Workspace
from optkit.road import jobs, pipeline
from optkit.road.jobs import Pair, RecipeLike
from optkit.road.jobs.batches import Batch
from optkit.road.jobs.in_memory import Evaluate
from optkit.road.pipeline import Job
from optkit.show.report import contract, head
from optkit.show.report import fleet_page as report
from optkit.show.report.build_result import failed
from optkit.show.report.recommended_choice import of_fleet
from optkit.verbs.api._build import artifact_of

if TYPE_CHECKING:
    from torch.nn import Module

_LOGGER = logging.getLogger("optkit")


@dataclass(frozen=True, repr=False)
class BuiltFleet:
    """A finished fleet: its document, and its folder."""

    document: Fleet
    path: Path

    @property
    def artifacts(self) -> dict[str, Artifact]:
        """What was built, by "target precision"."""
        built = self.document.artifacts
        return {pair: Artifact.load(Path(artifact.path)) for pair, artifact in built.items()}

    def __repr__(self) -> str:
        return f"BuiltFleet({str(self.path)!r}, {report.summary(self.document)})"

    def _repr_html_(self) -> str:
        return head.of_fleet(self.document, str(self.path))


def build_fleet(
    model: Module | Request | str | Path | None = None,
    example_inputs: Batch | None = None,
    *,
    targets: Iterable[str | Target],
    precisions: Iterable[str | Precision] | None = None,
    recipe: RecipeLike | None = None,
    calibration: Iterable[Batch] | None = None,
    evaluate: Evaluate | None = None,
    out: str | Path = "artifacts",
    name: str | None = None,
    embed_eval: int = 0,
    embed_pictures: bool = False,
    defer: bool = False,
    strict: bool = False,
    on_failure: Callable[[Exception], OptkitError] | None = None,
    workspace: Workspace = Workspace(),
) -> BuiltFleet:
    """Build a model for every target in every precision, and write a report of all of them to the
    folder `out/NAME-fleet`. The model is exported once.

    targets, precisions: by name, as `optkit targets` lists them; without precisions, the one that
        `build` takes.
    on_failure: gets the exception that ended a pair of target and precision, and returns the error
        for the pair's result; None: the logger "optkit" gets it.
    The other arguments are those of `build`.

    Raises UnknownName, and what `build` raises before its first step, or for the export of an
    nn.Module. A pair that fails later does not stop the others: its result has the error, see
    `document.results`.
    """
    runner, out = workspace.runner(), Path(out)
    if precisions is None:
        precisions = (jobs.precision_of(model, recipe, runner),)
    pairs = list(_pairs(targets, precisions))
    if not pairs:
        raise UsageError("there is nothing to build", where="targets", hint='e.g. ["l4", "cpu"]')
    model_job = jobs.job_of(
        model,
        example_inputs,
        pairs[0],
        recipe=recipe,
        calibration=calibration,
        name=name,
        runner=runner,
    )
    model_job = replace(model_job, deferred=defer, strict=strict, embed_pictures=embed_pictures)
    recipe_name = model_job.recipe.name
    place = out / f"{recipe_name}-fleet"
    prepare(out, place.name, "fleet", manifest.FLEET)

    def build(pair: Pair, pair_runner: Runner) -> _Outcome:
        whole = partial(artifact_of, out=out, embed_eval=embed_eval, evaluate=evaluate)
        return _outcome(model_job, pair, pair_runner, whole, on_failure or _logged)

    outcomes = _each(pairs, runner, build)
    share(Artifact.load(Path(one.artifact.path)) for one in outcomes if one.artifact)
    document = _document(recipe_name, pairs, outcomes)
    return BuiltFleet(document, _write(document, place))


def _pairs(
    targets: Iterable[str | Target], precisions: Iterable[str | Precision]
) -> Iterable[Pair]:
    """Every target with every precision, each pair once, also if names are aliases."""
    devices = [one if isinstance(one, Target) else find_target(one) for one in targets]
    schemes = [one if isinstance(one, Precision) else precision(one) for one in precisions]
    return {(d.name, s.name): (d, s) for d, s in product(devices, schemes)}.values()


def _logged(error: Exception) -> OptkitError:
    """The error for a pair's result. One that is not optkit's is logged with its traceback."""
    if isinstance(error, OptkitError):
        _LOGGER.error("no artifact: %s", error)
        return error
    _LOGGER.exception("no artifact")
    return OptkitError(f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class _Outcome:
    """The result of one pair; `artifact` is None if the pair failed."""

    result: Result
    steps: list[PairStep]
    artifact: BuiltArtifact | None


def _outcome(
    model_job: Job,
    pair: Pair,
    runner: Runner,
    build: Callable[[Job, Runner], Artifact],
    on_failure: Callable[[Exception], OptkitError],
) -> _Outcome:
    artifact, (device, scheme) = None, pair
    try:
        pipeline.check_pair(device, scheme)
        built = build(replace(model_job, target=device, precision=scheme), runner)
    except Exception as error:  # a bug also ends this pair only
        result = failed(
            on_failure(error),
            model=model_job.recipe.name,
            target=device.name,
            precision=scheme.name,
        )
    else:
        result = contract.result_of(built)
        artifact = BuiltArtifact(path=str(built.path), digest=built.digest)
    steps = [PairStep(_named(pair), **vars(taken)) for taken in runner.records]
    return _Outcome(result, steps, artifact)


def _document(model: str, pairs: Sequence[Pair], outcomes: Sequence[_Outcome]) -> Fleet:
    artifacts = {
        _named(pair): outcome.artifact
        for pair, outcome in zip(pairs, outcomes, strict=True)
        if outcome.artifact is not None
    }
    results = tuple(outcome.result for outcome in outcomes)
    targets = {device.name: _described(device) for device, _ in pairs}
    prices = {name: target.price for name, target in targets.items() if target.price is not None}
    return Fleet(
        schema=FLEET,
        model=model,
        digest=digest_json({name: artifact.digest for name, artifact in artifacts.items()}),
        results=results,
        artifacts=artifacts,
        targets=targets,
        steps=tuple(step for outcome in outcomes for step in outcome.steps),
        recommendation=of_fleet(results, prices),
        versions=dict(pipeline.tool_versions()),
    )


def _each(
    pairs: Sequence[Pair], runner: Runner, build: Callable[[Pair, Runner], _Outcome]
) -> list[_Outcome]:
    """Build the pairs one after the other, on a cluster at the same time. If two pairs need the
    same step, one of them runs it and the other waits."""
    runners = [replace(runner, records=[]) for _ in pairs]
    if runner.cluster is None:
        return list(map(build, pairs, runners))
    return runner.cluster.each(build, pairs, runners)


def _write(fleet: Fleet, place: Path) -> Path:
    files = {
        "report.html": report.to_html(fleet),
        "report.md": report.to_markdown(fleet),
        manifest.FLEET: f"{json.dumps(fleet.to_json(), indent=1)}\n",
    }
    create(place.parent)
    with replacing(place) as folder:
        for name, text in files.items():
            write_durably(folder / name, text.encode("utf-8", "replace"))
    return place


def _named(pair: Pair) -> str:
    device, scheme = pair
    return f"{device.name} {scheme}"


def _described(device: Target) -> PricedTarget:
    return PricedTarget(title=device.title, price=price_of(device, {}))

"""One model for several targets and precisions: one artifact per pair, and one report for all.

    artifacts/digits-vit-l4-int8/      artifacts/digits-vit-h100-fp8/      …
    artifacts/digits-vit-fleet/        fleet.json, report.html, report.md

Evaluation samples that several artifacts embed are one file on the disk, with several names.

A pair that fails does not stop the others. A step that several pairs have in common (export,
fusion, calibration, the quantized graph of one backend) runs once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from optkit import pipeline
from optkit.api import jobs
from optkit.api._build import artifact_of
from optkit.api.jobs import Pair
from optkit.artifact import Artifact, create, prepare, share
from optkit.devices import Target
from optkit.documents.fleet import FLEET, BuiltArtifact, Fleet, PairStep, PricedTarget
from optkit.documents.result import Result
from optkit.errors import OptkitError
from optkit.exchange import replacing
from optkit.execute.runner import Record, Runner
from optkit.pipeline import Job
from optkit.prediction.cost import price_of
from optkit.recipe import Recipe
from optkit.report import contract
from optkit.report import fleet as report
from optkit.report.recommendation import of_fleet
from optkit.report.result import failed
from optkit.store import digest_json, write_durably
from optkit.workspace import Workspace

_FILE = "fleet.json"


@dataclass(frozen=True)
class BuiltFleet:
    """A finished fleet: its document, and its folder."""

    document: Fleet
    path: Path


def build_fleet(
    *,
    recipe: Recipe,
    pairs: Sequence[Pair],
    out: str | Path = "artifacts",
    on_failure: Callable[[Exception], OptkitError],
    embed_eval: int = 0,
    defer: bool = False,
    strict: bool = False,
    workspace: Workspace = Workspace(),
) -> BuiltFleet:
    """Build every pair and write the fleet's folder `out/<model>-fleet`.

    pairs: target and precision, each pair once.
    on_failure: gets the exception that ended a pair, and returns the error for the pair's result.
    out, embed_eval, defer, strict: as for `build`.

    Raises StorageError if the folder cannot be written.
    """
    runner, out = workspace.runner(), Path(out)
    place = out / f"{recipe.name}-fleet"
    prepare(out, place.name, "fleet", _FILE)

    def build(pair: Pair, pair_runner: Runner) -> _Outcome:
        artifact, (device, scheme) = None, pair
        try:
            job = Job(
                recipe, *jobs.pair(device, scheme), deferred=defer, strict=strict, code=Path.cwd()
            )  # fmt: skip
            built = artifact_of(job, pair_runner, out, embed_eval)
        except Exception as error:  # a bug also ends this pair only
            outcome = failed(
                on_failure(error), model=recipe.name, target=device.name, precision=scheme.name
            )
        else:
            outcome = contract.result_of(built)
            artifact = BuiltArtifact(path=str(built.path), digest=built.digest)
        steps = [_step(_named(pair), record) for record in pair_runner.records]
        return _Outcome(outcome, steps, artifact)

    outcomes = _each(pairs, runner, build)
    share(Artifact.load(Path(one.artifact.path)) for one in outcomes if one.artifact)
    document = _document(recipe.name, pairs, outcomes)
    return BuiltFleet(document, _write(document, place))


@dataclass(frozen=True)
class _Outcome:
    """The result of one pair; `artifact` is None if the pair failed."""

    result: Result
    steps: list[PairStep]
    artifact: BuiltArtifact | None


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
        _FILE: f"{json.dumps(fleet.to_json(), indent=1)}\n",
    }
    create(place.parent)
    with replacing(place) as folder:
        for name, text in files.items():
            write_durably(folder / name, text.encode("utf-8", "replace"))
    return place


def _step(pair: str, record: Record) -> PairStep:
    return PairStep(pair=pair, **vars(record))


def _named(pair: Pair) -> str:
    device, scheme = pair
    return f"{device.name} {scheme}"


def _described(device: Target) -> PricedTarget:
    return PricedTarget(title=device.title, price=price_of(device, {}))

"""The result of a search: its document, and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10

from optkit.facts.documents.result import Failure, Result
from optkit.facts.documents.tune import (
    TUNE,
    FreshFigures,
    FrontEvidence,
    FrontPoint,
    RankedLayers,
    SearchFacts,
    Tune,
)
from optkit.facts.errors import Impossible, OptkitError
from optkit.facts.evidence import Evidence
from optkit.ground.devices import runs_here
from optkit.satellites.tuning import TuningResult
from optkit.satellites.tuning.space import CandidateTrial
from optkit.show.report.recommendation_rules import of_search


def document(
    tuned: TuningResult, result: Result, *, recipe: str, command: str, digest: str
) -> Tune:
    """The document. `result`: the result of the winner's build; `recipe`: the file that reproduces
    it with `command`; `digest`: that of the artifact. Raises ValueError for a figure that is not
    finite."""
    search, job = tuned.search, tuned.job
    measured = runs_here(job.target)
    missed = result.status == "gate_failed" or not tuned.keeps_budget
    ranked = layers(tuned)
    became = [row.chosen for row in ranked for _ in row.layers]
    quantized = sum(name != search.space.carrier for name in became)
    return Tune(
        schema=TUNE,
        status="gate_failed" if missed else "ok",
        model=result.model,
        target=job.target.name,
        precisions=tuple(map(str, tuned.precisions)),
        budget=tuned.budget,
        quantized=job.precision.name != search.space.carrier,
        reason=reason(tuned),
        artifact=result.artifact,
        digest=digest,
        recipe=recipe,
        command=command,
        search=SearchFacts(
            seed=search.seed,
            trials=len(search.trials),
            limit=tuned.options.trials,
            failed=sum(trial.outcome.failed is not None for trial in search.trials),
            converged=search.converged,
            parallel=search.parallel,
        ),
        evidence=FrontEvidence(
            sqnr_db=Evidence.MEASURED if measured else Evidence.SIMULATED,
            latency_ms=Evidence.MEASURED if measured else Evidence.PREDICTED,
            bytes=Evidence.COMPILED,
        ),
        front=tuple(_point(tuned, trial) for trial in tuned.front),
        layers=ranked,
        excluded=dict(tuned.survey.fixed),
        result=result,
        recommendation=of_search(
            result,
            quantized=quantized,
            layers=len(became),
            reason=reason(tuned),
            kept=not missed,
            known=_decides(tuned, measured=measured),
        ),
    )


def failed(error: OptkitError, *, model: str | None = None, target: str | None = None) -> Tune:
    """The document of a search without an artifact."""
    return Tune(
        schema=TUNE,
        status="impossible" if isinstance(error, Impossible) else "error",
        error=Failure.from_object(error),
        model=model,
        target=target,
        precisions=(),
        front=(),
        layers=(),
        excluded={},
    )


def reason(tuned: TuningResult) -> str | None:
    """Why nothing is quantized, or that no candidate keeps the budget; None if there is a
    winner."""
    carrier = tuned.search.space.carrier
    if tuned.winner is not None:
        return None
    if not tuned.keeps_budget:
        fresh = " on fresh samples" if tuned.verified else ""
        return f"no candidate keeps the limits{fresh}; this is the nearest"
    if tuned.verified:
        return "no quantized candidate keeps the limits on fresh samples"
    return f"no quantized candidate that keeps the limits is faster than {carrier}"


def _decides(tuned: TuningResult, *, measured: bool) -> Evidence:
    """The evidence of what speaks against the candidates: their scores, if these were checked on
    fresh samples, otherwise their latencies."""
    if measured:
        return Evidence.MEASURED
    return Evidence.SIMULATED if tuned.verified else Evidence.PREDICTED


def layers(tuned: TuningResult) -> tuple[RankedLayers, ...]:
    """Every group of layers, those that cost the most accuracy first: its noise alone in the first
    precision that it can have, and its precision in the winner."""
    space, chosen = tuned.search.space, tuned.chosen.candidate
    total = sum(group.options[0].noise for group in space.groups) or 1.0
    rows = [
        RankedLayers(
            layers=group.nodes,
            precision=group.options[0].name,
            sqnr_db=_decibels(group.options[0].noise),
            divergence=group.options[0].divergence,
            share=group.options[0].noise / total,
            chosen=name,
        )
        for group, name in zip(space.groups, chosen.options, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: -row.share))


def _point(tuned: TuningResult, trial: CandidateTrial) -> FrontPoint:
    outcome, job = trial.outcome, tuned.trials.as_job(trial.candidate)
    settings, space = job.recipe.quantization, tuned.search.space
    judged = next((verified.judged for verified in tuned.verified if verified.trial == trial), None)
    return FrontPoint(
        precision=job.precision.name,
        quantized=sum(
            len(group.nodes)
            for group, name in zip(space.groups, trial.candidate.options, strict=True)
            if name != space.carrier
        ),
        nodes={node: chosen.name for node, chosen in settings.nodes.items()},
        two_term=() if settings.two_term == "auto" else settings.two_term,
        placement=trial.candidate.placement,
        sqnr_db=outcome.sqnr_db,
        divergence=outcome.divergence,
        latency_ms=outcome.latency_ms,
        bytes=outcome.bytes,
        bytes_moved=outcome.bytes_moved,
        fused_layers=outcome.layers,
        landed=outcome.landed,
        planned=outcome.planned,
        chosen=trial == tuned.chosen,
        fresh=None if judged is None else FreshFigures.from_object(judged.result),
    )


def _decibels(noise: float) -> float | None:
    return -10 * log10(noise) if noise > 0 else None


def rows(tune: Tune) -> list[list[str]]:
    """The front as cells of text, fastest first. The first row has the names of the columns."""
    head = ["", "latency", "size", "sqnr", "drop on fresh samples", "quantized layers"]
    return [head, *(_cells(point) for point in tune.front)]


def _cells(point: FrontPoint) -> list[str]:
    drop = point.fresh and point.fresh.drop
    text = f"{drop.value:.2%}" if drop else ""
    if drop and drop.ci95:
        text += f" [{100 * drop.ci95[0]:.2f}, {100 * drop.ci95[1]:.2f}]"
    return [
        "*" if point.chosen else "",
        f"{point.latency_ms:.4g} ms",
        f"{point.bytes / 2**20:.2f} MiB",
        _sqnr(point.sqnr_db),
        text,
        f"{point.quantized}, {point.precision}",
    ]


def markdown(tune: Tune) -> str:
    """The front and the layers as tables."""
    lines = [f"# {tune.model} on {tune.target}", ""]
    lines += [f"`{tune.command}`", ""] if tune.command else []
    if tune.reason:
        lines += [tune.reason, ""]
    head, *body = rows(tune)
    lines += _table(head, body)
    lines += ["", "![front](front.svg)", "", "What costs most accuracy, quantized alone:", ""]
    ranked = [
        [", ".join(row.layers), f"{row.share:.1%}", _sqnr(row.sqnr_db), row.chosen]
        for row in tune.layers
    ]
    lines += _table(["layers", "share of the noise", "alone", "became"], ranked)
    return "\n".join(lines) + "\n"


def _sqnr(decibels: float | None) -> str:
    return "equal" if decibels is None else f"{decibels:.1f} dB"


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    cells = [head, ["---"] * len(head), *body]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]

"""`bench --against` times two artifacts in one run, as a check for regressions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from optkit.craft.benchmarking import regression
from optkit.facts.documents.against import AGAINST, Against, AgainstRow
from optkit.facts.errors import InputRefused, UsageError
from optkit.facts.measurement import Outcome
from optkit.ground.artifact import Artifact
from optkit.ground.devices import target
from optkit.ground.workspace import Workspace
from optkit.road.pipeline.artifact_race import time_beside
from optkit.road.steps.bench import TimedPair
from optkit.verbs.api._finish import check_device
from optkit.verbs.api.artifacts import load

_OVERRIDES = ("bench.seconds", "bench.warmup_seconds", "bench.threads")
_WORST_FIRST: tuple[Outcome, ...] = ("fail", "inconclusive", "pass")


def bench_against(
    candidate: str | Path,
    reference: str | Path,
    *,
    batches: Sequence[int] = (),
    overrides: Sequence[str] = (),
    max_slowdown: float | None = None,
    strict: bool = False,
    trusted: bool = False,
    workspace: Workspace = Workspace(),
) -> Against:
    """Time both artifacts in one run on their target, which this machine must have.

    batches: batch sizes; if empty, the one for which the candidate is tuned.
    overrides: bench.seconds, bench.warmup_seconds and bench.threads as "KEY=VALUE", instead of the
        candidate's recipe.
    max_slowdown: a share (0.05 is 5 %); each batch size is judged by it, and the worst counts.
    strict: a run under bad conditions is repeated once.
    trusted: engines that were not compiled on this machine may be opened.

    Returns, by batch size, the latencies and the slowdown of the candidate with its interval, and
    the verdict. Raises ToolchainMissing (no such device here), IntegrityError (damaged),
    InputRefused (other inputs, another target, no engine, an engine compiled elsewhere, several
    graphs), UsageError (a batch size for which nothing is built, another override).
    """
    for text in overrides:
        if text.partition("=")[0].strip() not in _OVERRIDES:
            raise UsageError(
                "it cannot change artifacts that are already built",
                where=f"--set {text}",
                hint="the settings that can be changed are "
                f"{', '.join(_OVERRIDES)}; batch sizes are --batch",
            )
    candidate, reference, runner = Path(candidate), Path(reference), workspace.runner()
    ours, theirs = (_opened(path, trusted) for path in (candidate, reference))
    if ours.manifest.target != theirs.manifest.target:
        raise InputRefused(
            f"it is for {theirs.manifest.target}, the other for {ours.manifest.target}",
            where=str(reference),
        )
    device = target(ours.manifest.target)
    check_device(device, str(candidate))
    timed = time_beside(ours, theirs, device, batches, runner, overrides=overrides, strict=strict)
    rows = tuple(_row(row, max_slowdown) for row in timed.rows)
    outcomes = {row.outcome for row in rows}
    verdict = next((outcome for outcome in _WORST_FIRST if outcome in outcomes), None)
    return Against(
        schema=AGAINST,
        status="gate_failed" if verdict == "fail" else "ok",
        artifact=str(candidate),
        against=str(reference),
        target=device.name,
        max_slowdown=max_slowdown,
        verdict=verdict,
        rows=rows,
        conditions=timed.conditions.to_json(),
    )


def _opened(path: Path, trusted: bool) -> Artifact:
    artifact = load(path.resolve(), trusted=trusted)
    artifact.verify()
    if artifact.manifest.parts:
        raise InputRefused(
            f"it consists of {' and '.join(artifact.manifest.parts)}",
            where=str(path),
            hint="compare the parts, each a folder in it",
        )
    return artifact


def _row(row: TimedPair, limit: float | None) -> AgainstRow:
    ours, theirs = row.engine, row.baseline
    slower = regression.slowdown(row.speedup)
    outcome, reason = (None, None) if limit is None else regression.judge(slower, limit)
    return AgainstRow(
        batch=ours.batch,
        latency=ours,
        against_latency=theirs,
        slowdown=slower,
        outcome=outcome,
        reason=reason,
        marks=tuple(dict.fromkeys([*ours.marks, *theirs.marks])),
    )

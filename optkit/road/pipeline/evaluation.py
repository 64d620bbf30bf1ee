"""The task's scores of candidate, baseline and reference, and the candidate's fidelity to FP32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace

from optkit.craft.benchmarking import sequential
from optkit.facts.errors import UsageError
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import GIVEN_GRAPH
from optkit.facts.precisions import precision
from optkit.ground import store
from optkit.ground.execute.runner import Steps
from optkit.road.pipeline import declared_sizes
from optkit.road.pipeline.compilation import kept, running
from optkit.road.pipeline.depends import declared, named
from optkit.road.pipeline.job import Build, Look, Role
from optkit.road.pipeline.run_samples import without_padding
from optkit.road.pipeline.scores import decided
from optkit.road.steps.collect import Samples
from optkit.road.steps.compare import CompareOutputs
from optkit.road.steps.draw import Draw
from optkit.road.steps.evaluate import Evaluate, EvaluationResult
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.graph import Graph
from optkit.road.steps.outputs import KeepOutputs
from optkit.road.steps.show_worst import ShowWorst

Roles = Mapping[Role, tuple[Graph, str, Evidence]]
"""Role → its graph, the file of the graph that is scored, and the evidence of the score."""

COMPARED = 256
"""The most samples whose outputs are compared. The interval of the SQNR says what more would
tell."""
_LARGE = 1 << 22  # parameters from which one sample in `_SHARE` is compared, at least `_LEAST`
_SHARE, _LEAST = 8, 64

_OUTPUT_BYTES = 1 << 30  # of one graph, that are kept for the user's code
_PAIR: tuple[Role, ...] = ("baseline", "candidate")


def evaluate(build: Build, runner: Steps) -> None:
    """Task scores of candidate, baseline and reference on the same samples; the candidate's
    fidelity to FP32, or to a graph that another tool has quantized."""
    baseline = (build.baseline, build.baseline_simulation, build.evidence)
    if (given := build.scored_beside) is not None:
        baseline = (given, GRAPH, Evidence.SIMULATED)
    roles: dict[Role, tuple[Graph, str, Evidence]] = {
        # the baseline is first, because a task of agreement compares with its outputs
        "baseline": baseline,
        "candidate": (build.graph, build.simulation, build.evidence),
    }
    if build.baseline_precision.name != "fp32":  # an FP32 baseline is its own reference
        roles |= {"reference": (build.fused, GRAPH, Evidence.SIMULATED)}
    looked = _look(build, runner, roles)
    if build.scored is not None and not looked:
        for role, of_role in roles.items():
            build.scores[role] = score(build, runner, role, *of_role)
    graph, file, evidence = roles["candidate"]
    build.compared = without_padding(build, _compared(build, runner), runner)
    step = CompareOutputs(
        graph=graph,
        reference=build.fused,
        file=file,
        batch=build.batch,
        evidence=evidence,
        samples=build.compared,
    )
    what = f"compare {_named(build, 'candidate')} with FP32"
    if build.shipped is not None:  # what the user runs today
        step = replace(step, reference=build.shipped, to=GIVEN_GRAPH)
        what = f"compare {_named(build, 'candidate')} with {GIVEN_GRAPH}"
    build.candidate_fidelity = runner.do(step, what)
    declared_sizes.compare(build, runner)
    show_worst(build, runner, roles)


def _compared(build: Build, runner: Steps) -> Samples:
    """The samples whose outputs are compared: those that were scored first, or some of all. Both
    graphs run on them again, which for a large model takes as long as a part of the evaluation."""
    if build.looks:
        return build.looks[0].samples
    samples = build.scored or build.probe
    if samples.planned:
        return samples
    count, whole = COMPARED, samples.info.samples
    if build.source.parameters >= _LARGE:
        count = min(count, max(_LEAST, whole // _SHARE))
    return _drawn(build, runner, samples, 0, count) if count < whole else samples


def show_worst(build: Build, runner: Steps, roles: Roles) -> None:
    """The samples on which the candidate loses most beside the baseline, if the task draws them.
    `roles`: those of candidate and baseline."""
    before, after = (build.scores.get(role) for role in _PAIR)
    if build.is_baseline or before is None or after is None or not after.drawn:
        return
    asked = [_evaluation(build, runner, role, *roles[role]) for role in _PAIR]
    step = ShowWorst.of_scores(before, after, *asked, embedded=build.job.embed_pictures)
    build.worst = runner.do(step, "show the worst samples")


def _look(build: Build, runner: Steps, roles: Roles) -> bool:
    """Score the samples part by part until the verdict is certain, if the recipe says so. Returns
    whether the samples were scored in this way."""
    samples, settings = build.scored, build.job.recipe.eval
    if samples is None or settings is None or not settings.stop_early or samples.planned:
        return False
    if samples.agreement:
        raise UsageError(
            "agreement with the baseline needs all samples",
            where="eval.stop_early",
            hint="leave it out",
        )
    parts = sequential.segments(samples.info.samples)
    for start, stop in parts:
        look = Look(_drawn(build, runner, samples, start, stop))
        build.looks.append(look)
        for role in _PAIR:
            look.scores[role] = score(build, runner, role, *roles[role], look.samples)
        known = all(evaluated.score is not None for evaluated in look.scores.values())
        if not known or decided(build):  # unknown in a rehearsal, which ends at the first look
            break
    references = [role for role in roles if role not in _PAIR]
    for look in build.looks:
        for role in references:
            look.scores[role] = score(build, runner, role, *roles[role], look.samples)
    return True


def _drawn(build: Build, runner: Steps, samples: Samples, start: int, stop: int) -> Samples:
    """Those of the samples that stand from `start` to `stop` in a random order."""
    step = Draw(
        samples=samples,
        start=start,
        stop=stop,
        optional=tuple(build.job.recipe.optional_axes()),
        memory=runner.limits.memory_bytes // 4,
    )
    return runner.do(step, f"draw samples up to {stop} of {samples.info.samples}")


def score(
    build: Build,
    runner: Steps,
    role: Role,
    graph: Graph,
    file: str,
    evidence: Evidence,
    drawn: Samples | None = None,
) -> EvaluationResult:
    """The task's score of a graph, or of its engine if the engine runs on this machine. `drawn`:
    the part of the evaluation samples to score; None: all of them."""
    step, what = _evaluation(build, runner, role, graph, file, evidence, drawn), _named(build, role)
    return runner.do(_with_outputs(build, step, runner, what), f"evaluate {what}")


def _evaluation(
    build: Build,
    runner: Steps,
    role: Role,
    graph: Graph,
    file: str,
    evidence: Evidence,
    drawn: Samples | None = None,
) -> Evaluate:
    samples = build.scored
    assert samples is not None
    engines = running(build, role)
    agrees = samples.agreement and role != "baseline"
    source = build.job.recipe.samples("evaluation")
    assert source is not None
    place = source.place
    return Evaluate(
        graph=graph,
        samples=drawn or samples,
        baseline_score=build.scores.get("baseline") if agrees else None,
        engine=build.engine if engines and role == "candidate" else None,
        baseline_engine=build.baseline_engine if engines and role == "baseline" else None,
        file=file,
        batch=build.batch,
        evidence=evidence,
        task=str(place),
        code=store.digest_file(place.path),
        metric=samples.metric,
        args=samples.scoring,
        running=engines,
        sliced=build.job.recipe.gates.of(build.job.target.name).on_slices,
        path=place.path,
        data=None if source.data is None else str(source.data),
        kept=kept(runner),
        own=place.is_own,
        **asdict(declared(build.job.recipe, "eval", place.path.parent, named(source))),
    )


def _with_outputs(build: Build, step: Evaluate, runner: Steps, what: str) -> Evaluate:
    """The step, with the outputs of the graph if the user's code scores them: so a changed `score`
    does not run the graph again. A task that runs the graph itself, and outputs that take too much
    space, are not kept."""
    assert build.scored is not None
    if step.own or build.scored.planned or build.scored.loops:
        return step
    outputs = runner.do(
        KeepOutputs(
            graph=step.graph,
            samples=step.samples,
            engine=step.engine,
            baseline_engine=step.baseline_engine,
            file=step.file,
            batch=step.batch,
            evidence=step.evidence,
            most=_OUTPUT_BYTES,
            running=step.running,
            kept=step.kept,
        ),
        f"run {what}",
    )
    return replace(step, outputs=outputs) if outputs.kept else step


def _named(build: Build, role: Role) -> str:
    """ "int8 candidate", "fp16 baseline", "fp32 reference", "the given graph"."""
    if role == "baseline" and build.scored_beside is not None:
        return GIVEN_GRAPH
    precisions = {
        "candidate": build.job.precision,
        "baseline": build.baseline_precision,
        "reference": precision("fp32"),
    }
    return f"{precisions[role]} {role}"

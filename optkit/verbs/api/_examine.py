"""The state of a graph that another tool has quantized: `optkit doctor MODEL`."""

from __future__ import annotations

from collections import Counter
from importlib.metadata import version
from pathlib import Path

from optkit.facts.documents.quantized_graph import (
    QUANTIZED_GRAPH,
    CompiledGraph,
    GraphFidelity,
    QuantizedGraph,
)
from optkit.facts.errors import InputRefused, UsageError
from optkit.facts.evidence import Evidence
from optkit.facts.precisions import PRECISIONS
from optkit.facts.request import Request
from optkit.ground.devices import Target
from optkit.ground.devices import target as find_target
from optkit.ground.execute.runner import Steps
from optkit.ground.store import durably
from optkit.ground.workspace import Workspace
from optkit.road import jobs, pipeline
from optkit.road.jobs import RecipeLike
from optkit.road.packaging.stamp import stamp
from optkit.road.pipeline import Build, Job, foreign_graph
from optkit.road.pipeline.foreign_graph import GraphLanding
from optkit.road.steps.export import ExportedGraph
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.graph import Graph
from optkit.road.steps.repair import RepairedGraph

_CARRIED = ("fp32", "fp16")  # the baseline of a CPU, of a GPU


def examine(
    model: Request | str | Path | None = None,
    *,
    target: str | Target = "l4",
    recipe: RecipeLike | None = None,
    float_model: str | Path | None = None,
    out: str | Path | None = None,
    workspace: Workspace = Workspace(),
) -> QuantizedGraph:
    """Who quantized an ONNX graph, what it asks for, and what would land on a target before and
    after the repairs that TensorRT needs.

    float_model: the ONNX file from which it was quantized; None: the graph without Q/DQ. out: the
    path of a new file for the repaired graph.

    Raises InputRefused for a graph without quantization, UsageError if the file exists.
    """
    file = None if out is None else Path(out)
    if file is not None and file.exists():
        raise UsageError("it exists already", where=str(file), hint="name a new file")
    runner = workspace.runner()
    settings = jobs.settings(model, recipe, runner)
    source = settings.source
    if source is None or source.kind != "onnx" or source.place is None:
        raise UsageError("only an .onnx file holds Q/DQ nodes", where=settings.name)
    device = target if isinstance(target, Target) else find_target(target)
    job = Job(settings, *jobs.pair(device, _CARRIED[not device.is_cpu]))
    build = pipeline.run(job, runner, pipeline.EXAMINE)
    repaired = foreign_graph.repaired(build, runner)
    if not repaired.quantized:
        raise _not_quantized(build, source.place.path)
    reference = foreign_graph.dequantized(build, runner)
    if float_model is not None:
        other = Job(settings.with_model(str(float_model)), job.target, job.precision)
        reference = pipeline.run(other, runner, pipeline.EXPORT).source
    before, after = _landed(build, repaired, runner)
    fidelity = _fidelity(build, repaired, reference, runner)
    if file is not None:
        with durably(file) as temporary:
            stamp(repaired.path / GRAPH, temporary, version("optkit"), {}, build.origin)
    return QuantizedGraph(
        schema=QUANTIZED_GRAPH,
        model=str(source.place.path),
        target=device.name,
        producer=repaired.tool,
        requested=repaired.products,
        repairs=repaired.repairs,
        left=repaired.left,
        before=_compiled(before),
        after=_compiled(after),
        fidelity=fidelity,
        out=None if file is None else str(file),
    )


def _not_quantized(build: Build, model: Path) -> InputRefused:
    exported = build.source
    rewritten = exported.rewritten if isinstance(exported, ExportedGraph) else None
    if rewritten is not None:
        return InputRefused(
            f"{rewritten}, and nothing was quantized",
            where=str(model),
            hint="give the graph from before the optimization; `optkit build -p int8` quantizes it",
        )
    return InputRefused(
        "it holds no Q/DQ nodes and no integer products, so nothing was quantized",
        where=str(model),
        hint="`optkit inspect` shows its operators; `optkit build -p int8` quantizes it",
    )


def _landed(
    build: Build, repaired: RepairedGraph, runner: Steps
) -> tuple[GraphLanding, GraphLanding]:
    """What lands of the graph as given, and of the repaired one."""
    asked = {
        one.node: PRECISIONS[one.precision]
        for one in repaired.products
        if one.precision is not None
    }
    most = Counter(repaired.assignment.values()).most_common(1)
    precision = most[0][0] if most else build.job.precision
    return (
        foreign_graph.landed(build, build.source, asked, precision, runner, "compile it as given"),
        foreign_graph.landed(
            build, repaired, repaired.assignment, precision, runner, "compile the repaired graph"
        ),
    )


def _fidelity(
    build: Build, repaired: RepairedGraph, reference: Graph, runner: Steps
) -> GraphFidelity:
    """How near the graphs are to each other. `reference`: the float graph."""
    given, mended, change = (
        foreign_graph.fidelity(build, graph, other, runner, label)
        for graph, other, label in (
            (build.source, reference, "compare with the float graph"),
            (repaired, reference, "compare the repaired graph with the float graph"),
            (repaired, build.source, "compare the repaired graph with the given one"),
        )
    )
    return GraphFidelity(
        evidence=given.evidence,
        samples=given.samples,
        inputs="samples" if build.evaluation or build.calibration else "random",
        given_to_float=given.worst.sqnr_db,
        repaired_to_float=mended.worst.sqnr_db,
        repaired_to_given=change.worst.sqnr_db,
    )


def _compiled(one: GraphLanding) -> CompiledGraph:
    landing = one.landing
    return CompiledGraph(
        evidence=Evidence.PENDING if one.backend is None else Evidence.COMPILED,
        backend=one.backend,
        planned=landing.planned if landing else None,
        landed=landing.landed if landing else None,
        refusal=one.refusal,
        missed={row.node: row.dtype for row in landing.rows if not row.landed} if landing else {},
    )

"""The state of a graph that another tool has quantized: `optkit doctor MODEL`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from optkit import pipeline
from optkit.api import jobs
from optkit.api.jobs import RecipeLike
from optkit.devices import Target
from optkit.devices import target as find_target
from optkit.engines import Landing
from optkit.errors import InputRefused, UsageError
from optkit.measurement import Fidelity
from optkit.pipeline import Job, foreign_graph
from optkit.pipeline.foreign_graph import Landed
from optkit.precisions import precision as scheme
from optkit.request import Request
from optkit.steps.files import GRAPH
from optkit.steps.repair import RepairedGraph, RequestedProduct, Tool
from optkit.store import write_durably
from optkit.workspace import Workspace

_SCHEMA = "optkit.quantized-graph/v1"
_CARRIED = ("fp32", "fp16")  # the baseline of a CPU, of a GPU


@dataclass(frozen=True)
class Compiled:
    """What the compiler of the target does with a graph. `planned` and `landed`: None if it refuses
    the graph, or is not here; `refusal` says why. `missed`: node → the dtype in which it runs."""

    backend: str | None
    planned: int | None
    landed: int | None
    refusal: str | None
    missed: Mapping[str, str | None]


@dataclass(frozen=True)
class RepairLine:
    """A repair: what it does, whether it keeps the numbers, and how many nodes it changed."""

    text: str
    exact: bool
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Fidelities:
    """SQNR in dB on `samples` samples, simulated by ONNX Runtime; None: equal bits. The float graph
    is the given one without Q/DQ, or the file that was named."""

    samples: int
    given_to_float: float | None
    repaired_to_float: float | None
    repaired_to_given: float | None


@dataclass(frozen=True)
class Examined:
    """An optkit.quantized-graph/v1 object. `requested`: the products as the file has them; `left`:
    integer operators that optkit does not rewrite; `out`: the file of the repaired graph."""

    schema: str
    model: str
    target: str
    producer: Tool
    requested: tuple[RequestedProduct, ...]
    repairs: tuple[RepairLine, ...]
    left: tuple[str, ...]
    before: Compiled
    after: Compiled
    fidelity: Fidelities
    out: str | None


def examine(
    model: Request | str | Path | None = None,
    *,
    target: str | Target = "l4",
    recipe: RecipeLike | None = None,
    float_model: str | Path | None = None,
    out: str | Path | None = None,
    workspace: Workspace = Workspace(),
) -> Examined:
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
        raise InputRefused(
            "it holds no Q/DQ nodes and no integer products, so nothing was quantized",
            where=str(source.place.path),
            hint="`optkit inspect` shows its operators; `optkit build -p int8` quantizes it",
        )
    reference = foreign_graph.dequantized(build, runner)
    if float_model is not None:
        other = Job(settings.with_model(str(float_model)), job.target, job.precision)
        reference = pipeline.run(other, runner, pipeline.EXPORT).source
    asked = {one.node: one.precision for one in repaired.products if one.precision is not None}
    name = Counter(repaired.assignment.values()).most_common(1)
    precision = scheme(name[0][0]) if name else job.precision
    before = foreign_graph.landed(
        build, build.source, asked, precision, runner, "compile it as given"
    )
    after = foreign_graph.landed(
        build, repaired, repaired.assignment, precision, runner, "compile the repaired graph"
    )
    compared = [
        foreign_graph.fidelity(build, graph, other, runner, label)
        for graph, other, label in (
            (build.source, reference, "compare with the float graph"),
            (repaired, reference, "compare the repaired graph with the float graph"),
            (repaired, build.source, "compare the repaired graph with the given one"),
        )
    ]
    if file is not None:
        write_durably(file, (repaired.path / GRAPH).read_bytes())
    return _document(str(source.place.path), device.name, repaired, (before, after), compared, file)


def _document(
    model: str,
    target: str,
    repaired: RepairedGraph,
    compiled: tuple[Landed, Landed],
    compared: list[Fidelity],
    out: Path | None,
) -> Examined:
    given, mended, change = (one.sqnr_db for one in compared)
    return Examined(
        _SCHEMA, model, target, repaired.tool, repaired.products,
        tuple(RepairLine(one.text, one.exact, one.nodes) for one in repaired.repairs),
        repaired.left, _compiled(compiled[0]), _compiled(compiled[1]),
        Fidelities(compared[0].samples, given, mended, change), None if out is None else str(out),
    )  # fmt: skip


def _compiled(one: Landed) -> Compiled:
    landing: Landing | None = one.landing
    if landing is None:
        return Compiled(one.backend, None, None, one.refusal, {})
    missed = {row.node: row.dtype for row in landing.rows if not row.landed}
    return Compiled(one.backend, landing.planned, landing.landed, None, missed)

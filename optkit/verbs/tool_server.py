"""The public functions as tools of an MCP server (Model Context Protocol), for agents.

A tool takes names and paths, and returns the JSON document that the command of its name prints with
`--json`. A failure returns the text of the error with its hint. A tool may read, write and run what
the command line may: it has the rights of the user who started the server.

Only this module imports the package `mcp` (extra `[mcp]`).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Concatenate, ParamSpec

import anyio.from_thread
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

from optkit.facts.documents.result import RESULTS, Results
from optkit.facts.errors import OptkitError
from optkit.facts.request import Request
from optkit.ground.workspace import Workspace
from optkit.show.report.contract import result_of
from optkit.verbs import api

Document = dict[str, object]
P = ParamSpec("P")

_INSTRUCTIONS = """\
optkit turns a trained PyTorch model into a deploy artifact for a named GPU or CPU. Every figure has
an `evidence` that says how it is known: measured (ran on the target), compiled (read from an engine
for it), simulated (same graph on a CPU), predicted (a performance model), pending (needs the
device). Never report a figure without its evidence. `recommendation.sentence` of a result says what
to ship. Begin with `targets`, then `plan`; `build` takes minutes.
"""
_PAUSE = 0.25  # seconds between two messages about the progress of the same step


def server(workspace: Workspace) -> MCPServer:
    """The server, whose tools use this workspace."""
    tools = Tools(workspace)
    made = MCPServer(
        "optkit", instructions=_INSTRUCTIONS, version=version("optkit"), log_level="WARNING"
    )
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    writes = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True)
    for tool, hints in (
        (tools.targets, reads),
        (tools.plan, reads),
        (tools.build, writes),
        (tools.explain, reads),
        (tools.inspect, reads),
        (tools.diff, reads),
    ):
        made.add_tool(tool, annotations=hints)
    return made


def _documented(
    tool: Callable[Concatenate[Tools, P], Document],
) -> Callable[Concatenate[Tools, P], Document]:
    """The tool, whose errors have the text that a person reads: where, what, and a hint."""

    @functools.wraps(tool)  # with its signature, from which the schema of the tool is made
    def run(tools: Tools, /, *args: P.args, **kwargs: P.kwargs) -> Document:
        try:
            return tool(tools, *args, **kwargs)
        except OptkitError as error:
            raise ToolError(str(error)) from error

    return run


class Tools:
    """The functions that the server offers. Their docstrings are what an agent reads."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    @_documented
    def targets(self, name: str | None = None) -> Document:
        """The devices that optkit knows, with their precisions. With `name` (e.g. "l4"): one
        device, each figure with its source."""
        return {**api.describe_targets(name).to_json()}

    @_documented
    def plan(
        self,
        context: Context,
        targets: list[str],
        model: str | None = None,
        precisions: list[str] | None = None,
        recipe: str | None = None,
        overrides: list[str] | None = None,
        latency_ms: float | None = None,
        throughput: float | None = None,
    ) -> Document:
        """Predict latency, throughput, memory and cost before anything is built.

        targets: names of devices; "all": every GPU. model: x.onnx, x.pt2, file.py:factory, a
        Hugging Face folder. precisions: e.g. int8, fp8, int4. recipe: its name or path. overrides:
        "KEY=VALUE" of the recipe. latency_ms, throughput: what is needed."""
        found = api.plan(
            Request(model, recipe, tuple(overrides or ())),
            target=targets,
            precision=precisions or (),
            latency_ms=latency_ms,
            throughput=throughput,
            partial=True,
            workspace=self._heard(context),
        )
        return {**found.to_json()}

    @_documented
    def build(
        self,
        context: Context,
        targets: list[str],
        model: str | None = None,
        precisions: list[str] | None = None,
        recipe: str | None = None,
        overrides: list[str] | None = None,
        calibration: str | None = None,
        eval_task: str | None = None,
        eval_data: str | None = None,
        out: str = "artifacts",
    ) -> Document:
        """Build verified artifacts, one for each target and precision. It takes minutes; finished
        steps are kept, so a second call continues.

        model, targets, precisions, recipe, overrides: as for plan; precisions: default int8.
        calibration: data or a source; eval_task, eval_data: how accuracy is measured, and on what;
        without a task accuracy is unknown. out: the folder of the artifacts. A failed gate is no
        error: see `gate` and `recommendation` of the result."""
        workspace = self._heard(context)
        request = Request(
            model,
            recipe,
            tuple(overrides or ()),
            calibration=calibration,
            eval_task=eval_task,
            eval_data=eval_data,
        )
        schemes = precisions or ["int8"]
        if len(targets) == len(schemes) == 1:
            built = api.build(
                request, target=targets[0], precision=schemes[0], out=out, workspace=workspace
            )
            return {**result_of(built).to_json()}
        fleet = api.build_fleet(
            request, targets=targets, precisions=schemes, out=out, workspace=workspace
        )
        results = fleet.document.results
        return {**Results(schema=RESULTS, results=results, fleet=str(fleet.path)).to_json()}

    @_documented
    def explain(self, context: Context, artifact: str) -> Document:
        """Why an artifact is not faster and why its accuracy fell: each finding with its cost, the
        evidence of the cost, and the change of the recipe that would help."""
        return {**api.explain(artifact, workspace=self._heard(context)).to_json()}

    @_documented
    def inspect(self, context: Context, path: str) -> Document:
        """The content of an artifact, whose files are verified, or of an ONNX file."""
        return {**api.inspect(Path(path), workspace=self._heard(context)).to_json()}

    @_documented
    def diff(self, context: Context, a: str, b: str) -> Document:
        """The differences between two artifacts, ONNX files or reports. A difference of latency or
        accuracy is reported only if the intervals support it."""
        return {**api.diff(a, b, workspace=self._heard(context)).to_json()}

    def _heard(self, context: Context) -> Workspace:
        return replace(self._workspace, listener=_Heard(context))


class _Heard:
    """A listener that sends the progress of a run to the agent: the number of finished steps, and
    the part of the running one."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._finished = 0
        self._told = 0.0
        self._sent = -1.0
        self._label = ""

    def start(self, step: str, label: str) -> None:
        self._label = label
        self._tell(0.0, label)

    def progress(self, what: str, fraction: float) -> None:
        if time.monotonic() - self._told > _PAUSE:
            self._tell(min(fraction, 0.99), f"{self._label}: {what}")

    def done(self, step: str, label: str, hit: bool, seconds: float) -> None:
        self._finished += 1
        if not hit:
            self._tell(0.0, f"{label}: done in {seconds:.1f} s")

    def failed(self, step: str, label: str) -> None: ...  # the call returns the error

    def note(self, text: str) -> None:
        self._tell(0.0, f"note: {text}")

    def _tell(self, fraction: float, message: str) -> None:
        """The protocol wants a progress that grows with each message."""
        self._told = time.monotonic()
        self._sent = max(self._finished + fraction, self._sent + 1e-6)
        anyio.from_thread.run(self._context.report_progress, self._sent, None, message)

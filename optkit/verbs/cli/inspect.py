"""`optkit inspect`: the content of an artifact or an ONNX file."""

from __future__ import annotations

from pathlib import Path

from optkit.facts.documents.inspection import InspectedArtifact, Inspection
from optkit.facts.node_cost import GraphSummary
from optkit.facts.tensors import TensorInfo
from optkit.ground.workspace import Workspace
from optkit.verbs import api
from optkit.verbs.cli import api_calls, command_output, summary
from optkit.verbs.cli.command_output import Output


def inspect(path: Path, workspace: Workspace, output: Output) -> None:
    with output.terminal() as ears:
        found = api.inspect(path, workspace=api_calls.reporting(workspace, ears))
    if output.json:
        command_output.put_json(found)
    else:
        command_output.put_figures(_text(found))


def _text(found: Inspection) -> str:
    """The summary of a graph, below the verdict of its artifact if there is one."""
    lines = []
    if (artifact := found.artifact) is not None:
        lines += [
            f"{artifact.name}: {summary.verdict(artifact.result)}",
            f"digest {artifact.digest}",
            f"{artifact.files} files verified" + _omitted(artifact),
            summary.table([artifact.result]),
        ]
    lines += [f"\n{_text(one)}" for one in (found.parts or {}).values()]
    if found.graph is not None:
        lines += _graph(found.graph)
    return "\n".join(lines)


def _omitted(artifact: InspectedArtifact) -> str:
    count = len(artifact.omitted)
    return f"; a slim copy, without {count} files that prove its figures" if count else ""


def _graph(graph: GraphSummary) -> list[str]:
    sizes = " and ".join(f"{axis} {size}" for axis, size in graph.axes.items())
    rows = [["input", *_tensor(one)] for one in graph.inputs]
    rows += [["output", *_tensor(one)] for one in graph.outputs]
    ops = sorted(graph.operators.items(), key=lambda item: (-item[1], item[0]))
    precision = graph.precision
    kinds = ", ".join(f"{n} {dtype}" for dtype, n in precision.initializers.items())
    return [
        (
            f"opset {graph.opset['']}, {graph.parameters:,} parameters, "
            f"{graph.weight_bytes / 2**20:.2f} MiB of weights"
        ),
        f"{graph.macs:,} multiply-accumulates" + (f" at {sizes}" if sizes else ""),
        command_output.table(["", "name", "dtype", "shape"], rows),
        "operators: " + ", ".join(f"{count} {name}" for name, count in ops),
        (
            f"precision: {precision.quantized_nodes} of {precision.weighted_nodes} products "
            f"quantized; initializers: {kinds}"
        ),
    ]


def _tensor(one: TensorInfo) -> list[str]:
    return [one.name, one.dtype, "x".join(str(size) for size in one.shape)]

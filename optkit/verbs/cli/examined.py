"""`optkit doctor MODEL`: a graph that another tool has quantized, on one page."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from optkit.facts.documents.given_graph import AskedProduct, OperandFormat
from optkit.facts.documents.quantized_graph import CompiledGraph, QuantizedGraph
from optkit.facts.request import Request
from optkit.ground.workspace import Workspace
from optkit.verbs import api
from optkit.verbs.cli import api_calls, command_output
from optkit.verbs.cli.command_output import Output

_SHOWN = 3  # names of nodes in a line
_INPUTS = {"samples": "samples", "random": "random inputs"}


def examine(
    target: str,
    float_model: Path | None,
    out: Path | None,
    request: Request,
    workspace: Workspace,
    output: Output,
) -> None:
    with output.terminal() as ears:
        found = api.examine(
            recipe=api_calls.recipe(request, workspace, output),
            target=target,
            float_model=float_model,
            out=out,
            workspace=api_calls.reporting(workspace, ears),
        )
    if output.json:
        command_output.put_json(found)
    else:
        command_output.put(text(found))


def text(found: QuantizedGraph) -> str:
    """The page: producer, what was asked, what would land, repairs, fidelity."""
    tool = found.producer
    name = f"{tool.name} {tool.version}" if tool.version else tool.name
    lines = [
        f"{found.model}: quantized by {name} ({tool.recognized_by})",
        "asks for:",
        *(f"  {line}" for line in _requested(found.requested)),
        f"on {found.target}:",
        f"  as given    {_landed(found.before)}",
        f"  repaired    {_landed(found.after)}",
        "repairs:" if found.repairs else "repairs: none needed",
    ]
    for one in found.repairs:
        kind = "exact" if one.exact else "changes numbers"
        lines.append(f"  {one.text} ({kind}): {_names(one.nodes)}")
    lines += [f"  not repaired: {name}" for name in found.left]
    fidelity = found.fidelity
    lines += [
        f"SQNR on {fidelity.samples} {_INPUTS[fidelity.inputs]} ({fidelity.evidence}):",
        f"  as given to float      {_db(fidelity.given_to_float)}",
        f"  repaired to float      {_db(fidelity.repaired_to_float)}",
        f"  repaired to as given   {_db(fidelity.repaired_to_given)}",
    ]
    return "\n".join([*lines, *([found.out] if found.out else [])])


def _requested(products: tuple[AskedProduct, ...]) -> list[str]:
    """One line for each combination of operator and codes, the most frequent first."""
    counts = Counter(
        f"{one.op}: weights {_codes(one.weight)}, activations {_codes(one.activation)}"
        for one in products
    )
    return [f"{count} {what}" for what, count in counts.most_common()]


def _codes(one: OperandFormat | None) -> str:
    if one is None:
        return "float"
    if one.granularity == "dynamic":
        return f"{one.dtype} with a scale computed in each run"
    kind = "symmetric" if one.symmetric else "with zero points"
    return f"{one.dtype} per {one.granularity}, {kind}"


def _landed(one: CompiledGraph) -> str:
    if one.landed is None:
        refused = "refused by " + one.backend if one.backend else "not compiled here"
        return f"{refused}: {one.refusal}"
    line = f"{one.landed} of {one.planned} products land ({one.evidence} by {one.backend})"
    if one.missed:
        line += f"; in floats: {_names(tuple(one.missed))}"
    return line


def _names(nodes: tuple[str, ...]) -> str:
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return ", ".join(nodes[:_SHOWN]) + more


def _db(sqnr: float | None) -> str:
    return "equal" if sqnr is None else f"{sqnr:.1f} dB"

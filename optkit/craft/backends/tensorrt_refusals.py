"""Why TensorRT refuses a graph, as typed errors: from the errors of its parser and the log of its
builder.

The patterns are for messages of TensorRT 10 and 11 and TensorRT-RTX 1.7. `title`: the library that
the error names.
"""

from __future__ import annotations

import re
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from optkit.craft.backends.build_log import reason as reason_of
from optkit.craft.backends.tensorrt_objects import Network, Parser, Problem
from optkit.facts.engines import BuildSpec
from optkit.facts.errors import Impossible, InputRefused, OptkitError, WorkerFailed

_REMEDIES: Mapping[str, str] = MappingProxyType(
    {
        r"^NonZero$": "its output's size follows from values: keep the shape, with torch.where or "
        "a product with the mask instead of indices, or do it behind the model",
        r"^NonMaxSuppression$": "return the boxes and scores, and suppress behind the model (a "
        "detector of Ultralytics is exported so without nms=True)",
        r"Sequence": "torch's EmbeddingBag becomes a loop over sequences: write it as nn.Embedding "
        "and a sum or mean over the bag's axis",
    }
)
"""What to write instead, by a pattern of the operator's name."""
_INSTEAD = "write this part with other operators; ONNX Runtime has it (--target cpu)"
_BODY = (
    "the body of this loop or branch has what the library does not read: build the model without "
    "it, and run it behind the engine; ONNX Runtime has it (--target cpu)"
)
_WIDE_WINDOW = (
    "a pool that covers its whole input becomes a global one if the sizes of the input are fixed: "
    "declare them as numbers in inputs, or pool by a mean over height and width"
)


Another = Callable[[], tuple[Network, Parser]]
"""Makes a parser and its network, which must live as long."""


def parse(parser: Parser, network: Network, model: Path, title: str, another: Another) -> None:
    """Read the ONNX file, and its external data, into `network`. Raises InputRefused, with the
    name of the node."""
    if parser.parse_from_file(str(model)) and network.num_outputs:
        return
    if not parser.num_errors:
        raise InputRefused("the graph has no outputs", where=str(model))
    problem = parser.get_error(0)
    operator, what = problem.node_operator(), reason_of([problem.desc()])
    if what == "false" or re.search(r"[Pp]lugin", what):  # the only message about such a node
        problems = [parser.get_error(index) for index in range(parser.num_errors)]
        raise lacks_operators(title, nodes_of(problems))
    hint = _WIDE_WINDOW if "maxKernelDimsProduct" in what else None
    if parser.num_errors > 1:
        what += f" (and {parser.num_errors - 1} more problems)"
    if operator:
        raise InputRefused(what, where=f"node {problem.node_name()!r} ({operator})", hint=hint)
    operator, name = _first_refused(model, problem.desc(), another)
    raise InputRefused(
        f"{title} cannot read this node: {what}",
        where=f"node {name!r} ({operator})",
        hint=_BODY if operator in ("Loop", "Scan", "If") else _INSTEAD,
    )


def _first_refused(model: Path, problem: str, another: Another) -> tuple[str, str]:
    """Operator and name of the node with which a problem begins that the parser gives no node: it
    reads shorter and longer beginnings of the graph."""
    from optkit.ground import graph

    def fails(count: int) -> bool:
        graph.save(graph.beginning(whole, count), Path(folder) / f"{count}.onnx")
        _network, parser = another()
        read = parser.parse_from_file(str(Path(folder) / f"{count}.onnx"))
        return not read and bool(parser.num_errors) and parser.get_error(0).desc() == problem

    whole = graph.load(model)
    counts = range(1, len(whole.graph))
    with tempfile.TemporaryDirectory() as folder:
        node = whole.graph[bisect_left(counts, True, key=fails)]
    return node.op_type, str(node.name)


def nodes_of(problems: Sequence[Problem]) -> list[tuple[str, str]]:
    """Operator and name of the node of each problem."""
    return [(problem.node_operator(), problem.node_name()) for problem in problems]


def without_kernel(network: Network, kinds: Mapping[str, str]) -> list[tuple[str, str]]:
    """Operator and name of the nodes that the parser reads, but for which the compiler has nothing.
    `kinds`: kind of layer → operator."""
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    return [
        (kinds[layer.type.name], layer.metadata.removeprefix("[ONNX Layer: ").removesuffix("]"))
        for layer in layers
        if layer.type.name in kinds
    ]


def lacks_operators(title: str, nodes: Sequence[tuple[str, str]]) -> InputRefused:
    """The error for nodes that the library does not take: operator and name of each."""
    (first, name), operators = nodes[0], list(dict.fromkeys(operator for operator, _ in nodes))
    remedies = dict.fromkeys(
        remedy
        for pattern, remedy in _REMEDIES.items()
        if any(re.search(pattern, operator) for operator in operators)
    )
    runs = "ONNX Runtime has it (--target cpu)"
    return InputRefused(
        f"{title} has no operator {', '.join(operators)}",
        where=f"node {name!r} ({first})",
        hint="; ".join([*(remedies or ["replace the operation in the model"]), runs]),
    )


def refused_build(title: str, spec: BuildSpec, errors: list[str]) -> OptkitError:
    """The error for a build that returned nothing. `errors`: the messages that the builder
    logged."""
    reason = reason_of(errors) or "the build failed without a reason"
    where = f"{title} for {spec.target}"
    if match := re.search(r"model contains HW-specific datatypes: ([\w, ]+)", reason):
        kinds = match[1].replace("b16", "bf16")
        return Impossible(f"the hardware has no {kinds}", where=where)
    if match := re.search(r"Cannot compile operation '(.*?)' for (.*)", reason):
        return Impossible(match[2], where=f"{where}: node {match[1]!r}")
    if re.search(r"out ?of ?memory|bad_alloc", reason, re.IGNORECASE):
        return WorkerFailed(reason, verdict="oom", where=where)
    if match := re.search(r"MyelinCheckException: (.*)", reason):
        # a check inside the compiler names none of the nodes
        return InputRefused(
            f"the compiler has a fault with this graph; its own check failed: {match[1]}",
            where=where,
            hint="build it in a precision that the compiler takes (-p fp16 shows whether it takes "
            "the graph at all), or run it with ONNX Runtime (-t cpu); a branch (If) whose "
            "condition is fixed is a common cause: export the model without it",
        )
    return InputRefused(reason, where=where)

"""The interface of a fusion rule, and the log of the rules.

A rule examines one node. `check` returns None (not its pattern), `Decline` (its pattern, but a
guard is not satisfied, with the reason), or a match; `rewrite` takes the match and changes the
graph. Every rewrite removes a node, shortens a path, makes an input constant, moves a selection
towards the inputs or leaves what no rule matches, so the application ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Generic, TypeVar

import onnx_ir as ir

from optkit.facts.documents.rewrites import Rewrite
from optkit.ground import graph

GROWTH_LIMIT_BYTES = 1 << 18
"""A rewrite may add at most this much to the model's weights."""

M = TypeVar("M")
C = TypeVar("C")


@dataclass(frozen=True)
class Decline:
    """The pattern matches, but the rule does not change it."""

    reason: str


Guards = Sequence[tuple[str | Callable[[C], str], Callable[[C], bool]]]
"""(reason, condition on a candidate), in the order of the checks: a condition may rely on those
before it. A reason with numbers of the candidate is a function."""


def unmet(candidate: C, guards: Guards[C]) -> Decline | None:
    """The first guard that is not satisfied; None if all are."""
    for reason, holds in guards:
        if not holds(candidate):
            return Decline(reason if isinstance(reason, str) else reason(candidate))
    return None


@dataclass(frozen=True)
class Rule(Generic[M]):
    """`ops`: op types that the rule examines (empty: all). `rewrite` returns one line about its
    change. `backwards`: the rule gets the nodes from the outputs to the inputs."""

    name: str
    ops: frozenset[str]
    check: Callable[[ir.Node], M | Decline | None]
    rewrite: Callable[[M], str]
    backwards: bool = False


@dataclass(frozen=True)
class FusionLog:
    """The rewrites, and for nodes that still exist the declined ones with their reasons."""

    entries: tuple[Rewrite, ...]
    nodes_before: int
    nodes_after: int
    counts: dict[str, int] = field(init=False)  # rule → times applied

    def __post_init__(self) -> None:
        applied = Counter(e.rule for e in self.entries if e.outcome == "applied")
        object.__setattr__(self, "counts", dict(sorted(applied.items())))

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def keeps_output(result: ir.Value, source: ir.Value) -> Decline | None:
    """Why `source` cannot replace `result`; None if it can."""
    if not result.is_graph_output():
        return None
    if source.producer() is None or source.is_graph_output():
        return Decline("its result is a graph output that must keep a node of its own")
    return None


def replace(result: ir.Value, source: ir.Value) -> None:
    """Replace `result` by `source` everywhere. A graph output keeps its name and shape."""
    is_output = result.is_graph_output()
    result.replace_all_uses_with(source, replace_graph_outputs=True)
    if is_output:
        source.name = result.name
        source.shape = result.shape if result.shape is not None else source.shape


def remove(node: ir.Node) -> None:
    """Remove a node whose results nobody reads from its graph."""
    graph.owner(node).remove(node, safe=True)

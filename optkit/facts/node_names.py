"""The names of nodes. They contain the PyTorch module, and the nodes that a node replaces."""

from __future__ import annotations

from collections.abc import Sequence

_AND = " + "


def join_names(names: Sequence[str]) -> str:
    """The name of a node that replaces several nodes."""
    return _AND.join(names)


def names_in(name: str) -> list[str]:
    """The names of the nodes that a node of this name replaces: its own name, unless names were
    joined."""
    return name.split(_AND)


def module_of(name: str) -> str | None:
    """The path of the PyTorch module in the name of a node: "blocks.0.mlp" for
    "blocks.0.mlp/MatMul" and, as other exporters write it, for "/blocks.0/mlp/MatMul"; None if the
    name has none."""
    path = names_in(name)[0].rpartition("/")[0]
    return (path[1:].replace("/", ".") if path.startswith("/") else path) or None

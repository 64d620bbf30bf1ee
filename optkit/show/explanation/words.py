"""Names and counts in sentences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from optkit.facts.documents.explanation import RecipeChange
from optkit.facts.node_names import module_of

_SHOWN = 2


def several(count: int, what: str) -> str:
    """ "1 layer", "3 layers"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def does(count: int, verb: str) -> str:
    """ "moves" for 1, "move" for any other count."""
    return f"{verb}s" if count == 1 else verb


def named(nodes: Sequence[str]) -> str:
    """The first two nodes, and how many more there are: "a, b and 3 more"."""
    more = len(nodes) - _SHOWN
    shown = list(nodes[:_SHOWN]) + ([f"{more} more"] if more > 0 else [])
    return ", ".join(shown[:-1]) + (" and " if len(shown) > 1 else "") + "".join(shown[-1:])


def modules(nodes: Sequence[str]) -> tuple[str, ...]:
    """The PyTorch modules in the names of the nodes, each once."""
    names = (module_of(node) for node in nodes)
    return tuple(dict.fromkeys(name for name in names if name is not None))


def advice(
    text: str, settings: Mapping[tuple[str, ...], object] = MappingProxyType({})
) -> RecipeChange:
    """The change that would help: in words, and, if a recipe can express it, as settings (key path
    → value)."""
    lines = tuple(line(path, value) for path, value in settings.items())
    return RecipeChange(text, lines, settings)


def line(path: Sequence[str], value: object) -> str:
    """A setting as a line of a recipe: `quantization: {nodes: {"head/Gemm": fp16}}`."""
    *sections, last = path
    text = f"{_scalar(last)}: {_scalar(value)}"
    for section in reversed(sections):
        text = f"{section}: {{{text}}}"
    return text


def _scalar(value: object) -> str:
    if isinstance(value, str) and value.replace("_", "").isalnum() and not value.isdigit():
        return value
    return json.dumps(value, ensure_ascii=False)

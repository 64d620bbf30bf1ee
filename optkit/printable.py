"""Names of models, nodes and tensors may come from strangers. Here they lose the characters that
control a terminal or reorder a line."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """Text of any length for a terminal: lines, tabs and what joins letters stay as they are."""
    return visible(text, "\n\t\u200c\u200d")


def visible(text: str, kept: str = "") -> str:
    """The text with U+FFFD for control, format and surrogate characters that are not in `kept`."""
    return "".join(
        "\ufffd" if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in kept else c
        for c in text
    )

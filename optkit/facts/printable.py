"""Names of models, nodes and tensors may come from strangers. Here they lose the characters that
control a terminal or reorder a line, and those that are no text are found."""

from __future__ import annotations

import unicodedata


def is_text(name: str) -> bool:
    """Whether a name is UTF-8. Python writes each other byte of a file's name as half of a
    surrogate pair, which no JSON and no report can hold."""
    return not any(0xD800 <= ord(letter) <= 0xDFFF for letter in name)


def printable(text: str) -> str:
    """Text of any length for a terminal: lines, tabs and what joins letters stay as they are."""
    return visible(text, "\n\t\u200c\u200d")


def visible(text: str, kept: str = "") -> str:
    """The text with U+FFFD for control, format and surrogate characters that are not in `kept`."""
    return "".join(
        "\ufffd" if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in kept else c
        for c in text
    )

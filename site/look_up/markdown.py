"""Parts of a page in Markdown, in the subset that GitHub and the site show alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def made_from(what: str) -> str:
    """The sentence that says where a page is from."""
    return f"This page is made from {what}: `python site/reference.py` writes it."


def page(*parts: str) -> str:
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, without the columns that are empty in every row."""
    body = [[cell(text) for text in row] for row in rows]
    kept = [place for place in range(len(heads)) if any(row[place] for row in body)]
    lines = [[heads[place] for place in kept], ["---"] * len(kept)]
    lines += [[row[place] for place in kept] for row in body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(text: str) -> str:
    """A text as it may stand in a table: in code a bar ends no cell on the site, and does on
    GitHub, so code may have none."""
    if any("|" in code for code in re.findall(r"`[^`]*`", text)):
        raise ValueError(f"a bar in code: {text}")
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    return f"`{text}`"


def words(names: Iterable[object]) -> str:
    """Names as code, in a list."""
    return ", ".join(code(str(name)) for name in names)


def either(names: Iterable[object]) -> str:
    """Names as code: "a, b or c"."""
    *others, last = map(code, map(str, names))
    return f"{', '.join(others)} or {last}" if others else last


def anchor(heading: str) -> str:
    """The anchor that GitHub and the site give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")

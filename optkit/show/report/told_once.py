"""Tables of the pages, changed after they are rendered: each cell names its column, which a narrow
screen shows before it, and a column that says the same in all rows is said once, in the caption.

    point | build | beaten          The points. In all rows: beaten no
    1     | l4    | no        →     point | build
    2     | cpu   | no              1     | l4
                                    2     | cpu
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from markupsafe import Markup

from optkit.show.report import figures

_NOT_IN_XML = dict.fromkeys((0xFFFE, 0xFFFF), "\ufffd")
"""What a page may hold and XML may not; other such characters are replaced before."""


def told_once(markup: str) -> Markup:
    """The table of a page, as `macros.html` renders it: a caption, one row of heads, the rows."""
    table = ElementTree.fromstring(markup.translate(_NOT_IN_XML))
    head, *rows = table.iter("tr")
    heads = list(head)
    columns = list(zip(*rows, strict=True))
    for column, title in zip(columns, heads, strict=bool(columns)):
        for cell in column:
            if cell.tag == "td":
                cell.set("data-label", _text(title))
    same = [at for at, column in enumerate(columns) if at and _one_value(column)]
    if same:
        caption = table[0]
        caption.append(_said([(heads[at], columns[at][0]) for at in same]))
        for row in (head, *rows):
            for cell in [row[at] for at in same]:
                row.remove(cell)
    return Markup(ElementTree.tostring(table, "unicode", short_empty_elements=False))


def _one_value(column: Sequence[Element]) -> bool:
    """Whether each of several rows has the same here. The head of a row is what the row is about,
    and stays; so does a text that was cut, because its end is not known to be the same."""
    values = {ElementTree.tostring(cell) for cell in column}
    cut = any("…" in _text(cell) for cell in column[:1])
    return len(column) > 1 and len(values) == 1 and column[0].tag == "td" and not cut


def _said(facts: Sequence[tuple[Element, Element]]) -> Element:
    """A line with the head and the value of each column that left."""
    line = Element("span", {"class": "once"})
    line.text = "In all rows: "
    for number, (title, cell) in enumerate(facts):
        label = ElementTree.SubElement(line, "span")
        label.text = f"{_text(title)} "
        kept = {key: told for key, told in cell.items() if key in ("class", "title")}
        value = Element("b", kept)
        value.text = cell.text
        value.extend(cell)
        if not _text(cell) and not len(cell):
            value.text = figures.NONE
        value.tail = " · " if number + 1 < len(facts) else None
        line.append(value)
    return line


def _text(element: Element) -> str:
    return "".join(element.itertext()).strip()

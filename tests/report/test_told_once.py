"""The tables of pages: what all rows say is said once, each cell names its column, and no text is
lost or acts."""

from __future__ import annotations

import re
from html import unescape

from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

from optkit.show.report.figures import name
from optkit.show.report.told_once import told_once


def table(heads: list[str], rows: list[list[str]]) -> str:
    """As the pages write one: the first cell of a row is its head."""
    top = "".join(f'<th scope="col">{escape(name(head))}</th>' for head in heads)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="number">{escape(name(cell))}</td>' if at else f"<th>{escape(cell)}</th>"
            for at, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f"<table><caption>Points</caption><thead><tr>{top}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def cells(page: str, tag: str) -> list[str]:
    return [unescape(one) for one in re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>", page)]


def test_a_column_that_says_the_same_in_all_rows_is_said_once() -> None:
    page = told_once(table(["build", "ms", "beaten"], [["a", "1", "no"], ["b", "2", "no"]]))
    assert cells(page, "th") == ["build", "ms", "a", "b"] and cells(page, "td") == ["1", "2"]
    assert '<span class="once">In all rows: <span>beaten </span><b class="number">no</b>' in page
    assert page.count('data-label="ms"') == 2


def test_a_single_row_and_the_heads_of_rows_stay() -> None:
    single = told_once(table(["build", "ms"], [["a", "1"]]))
    assert "In all rows" not in single and cells(single, "td") == ["1"]
    alike = told_once(table(["build", "ms"], [["a", "1"], ["a", "2"]]))
    assert "In all rows" not in alike and cells(alike, "th") == ["build", "ms", "a", "a"]
    assert told_once(table(["build"], [])).count("<th") == 1 + 1  # the head and `thead`


def test_what_differs_in_its_explanation_alone_stays() -> None:
    rows = "".join(f'<tr><th>{x}</th><td title="{x}">same</td></tr>' for x in "ab")
    page = told_once(f"<table><caption>c</caption><thead><tr><th>n</th><th>w</th></tr></thead>"
                     f"<tbody>{rows}</tbody></table>")  # fmt: skip
    assert page.count("same") == 2 and "In all rows" not in page


def test_what_is_unknown_in_all_rows_is_said_as_such() -> None:
    page = told_once(table(["build", "p99", "why"], [["a", "", "x"], ["b", "", "x"]]))
    assert re.sub("<[^>]+>", "", page.split("In all rows: ")[1]).startswith("p99 – · why x")


def test_a_text_that_was_cut_is_not_called_the_same() -> None:
    long = "x" * 5000
    rows = [["a", name(f"{long}1"), "no"], ["b", name(f"{long}2"), "no"]]
    page = told_once(table(["build", "nodes", "beaten"], rows))
    assert len(cells(page, "td")) == 2 and page.count("In all rows: <span>beaten </span>") == 1


ANY = st.text(max_size=8)


@given(st.lists(st.lists(ANY, min_size=3, max_size=3), max_size=4), st.lists(ANY, min_size=3,
       max_size=3), st.booleans())  # fmt: skip
def test_any_text_stays_text_and_none_is_lost(
    rows: list[list[str]], heads: list[str], equal: bool
) -> None:
    if equal:
        rows = [[row[0], *rows[0][1:]] for row in rows]
    rows = [[name(cell) for cell in row] for row in rows]
    page = told_once(table(heads, rows))
    shown = " ".join(unescape(re.sub("<[^>]*>", " ", page)).split())
    for text in (*heads, *(cell for row in rows for cell in row)):
        wanted = name(text).translate({0xFFFE: "\ufffd", 0xFFFF: "\ufffd"})
        assert not rows or " ".join(wanted.split()) in shown
    assert set(re.findall(r"</?(\w+)", page)) <= {
        "table", "caption", "thead", "tbody", "tr", "th", "td", "span", "b",
    }  # fmt: skip

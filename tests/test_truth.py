"""Each measured figure of the pages has a marker, and is what its results file says."""

from __future__ import annotations

import json
import re
import runpy
from decimal import Decimal
from pathlib import Path

import pytest

from tests import cited
from tests.cited import ROOT, Marker, markers, pages, tables, unmarked, values

PAGE = """# Page

Before 9.9 times.

## Speed (A)

| tool | dB | note |
|---|---|---|
| one | +3.5 (best) | 1.02× |
| two | 8.25 | 0.5× |

## Speed (B)

| tool | dB | note |
|---|---|---|
| one | −1 | 2× |
"""


def cases() -> list[tuple[str, Marker]]:
    return [
        (page.relative_to(ROOT).as_posix(), one)
        for page in pages()
        for one in markers(page.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize(
    ("page", "marker"), cases(), ids=[f"{page}-{one.text}" for page, one in cases()]
)
def test_page_says_what_the_file_says(page: str, marker: Marker) -> None:
    assert marker.holds(), f"{page}: {marker.expected()!r} is not in {marker.before!r}"


def test_every_marker_is_read() -> None:
    """And HTML and tables take it: behind text, no two hyphens inside, no bar in a row."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        whole = cited.FENCE.sub("", text)
        assert whole.count("<!-- from:") == len(markers(text)), page
        assert whole.count("<!-- results:") == len(cited.RECORD.findall(whole)), page
        assert not re.search(r"^\s*<!-- from:", whole, re.M), page
        assert "studies" in page.parts or not cited.RECORD.search(whole), page
        for one in cited.COMMENT.findall(whole):
            assert "--" not in one[4:-3], one
        for row in re.findall(r"^\|.*", whole, re.M):
            assert all("|" not in one for one in cited.COMMENT.findall(row)), row
    assert len(cases()) > 5


@pytest.mark.parametrize(("page", "script"), cited.WRITTEN.items())
def test_a_page_without_markers_has_a_script(page: str, script: str) -> None:
    assert (ROOT / page).is_file() and (ROOT / script).is_file()


def test_a_part_that_a_script_writes_is_what_it_writes() -> None:
    found = [one for page in pages() for one in cited.WRITTEN_PART.findall(page.read_text("utf-8"))]
    for script, part in found:
        file = ROOT / script
        results = json.loads((file.parent / "results.json").read_text(encoding="utf-8"))
        assert part.strip() == runpy.run_path(str(file))["table"](results), script
    assert found


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_measured_figure_has_a_marker(page: Path) -> None:
    assert unmarked(page.read_text(encoding="utf-8")) == [], "CONTRIBUTING, Figures of the pages"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cited, "ROOT", tmp_path)
    cited.content.cache_clear()
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "a.json").write_text('{"rows": [{"n": "x", "v": 2}, {"n": "y", "v": "4 ms"}]}')
    (tmp_path / "c.py").write_text("LEAST = 28.0\n\nclass A:\n    gain: float = 0.1\n")
    (tmp_path / "b.yaml").write_text("a/b: {c: 1200, half: 0.15}\nd: true\n")
    return tmp_path


@pytest.mark.parametrize(
    ("at", "found"),
    [
        ("a.json#/rows/n=y/v", [4]),
        ("a.json#/rows/*/v", [2, 4]),
        ("a.json#/rows/1/v,/rows/0/v", [4, 2]),
        ("b.yaml#/a~1b/c", [1200]),
        ("c.py#/LEAST,/A/gain", [28, 0.1]),
        ("page.md#/Speed (A)/one/dB", [3.5]),
        ("page.md#/*/one;two/dB", [3.5, 8.25, -1]),
        ("a.json#/rows/n=y;n=x/v", [4, 2]),
    ],
)
def test_pointers(file: Path, at: str, found: list[float]) -> None:
    assert values(*at.split("#")) == [Decimal(str(one)) for one in found]


@pytest.mark.parametrize(
    "at", ["a.json#/rows/n=z/v", "a.json#/rows/0/n", "b.yaml#/d", "b.yaml#/d/e"]
)
def test_what_is_no_number_is_an_error(file: Path, at: str) -> None:
    with pytest.raises((LookupError, ValueError)):
        values(*at.split("#"))


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ('It is 4.0 ms<!-- from: a.json#/rows/n=y/v "{:.1f} ms" -->.', True),
        ('It is 14.0 ms<!-- from: a.json#/rows/n=y/v "{:.1f} ms" -->.', False),
        ('It is 4.01<!-- from: a.json#/rows/n=y/v "{:.1f}" -->.', False),
        ('It is 2 to\n4<!-- from: a.json#/rows/*/v "{min:.0f} to {max:.0f}" -->.', True),
        ('| 2 | 4 <!-- from: a.json#/rows/*/v "{:.0f} ms" --> |', False),
        ('4 ms.\n\nIt is<!-- from: a.json#/rows/n=y/v "{:.0f} ms" -->.', False),
        ('It is 2× and<!-- from: a.json#/rows/1/v over /rows/0/v "{:.0f}×" -->', True),
        ('50 % fewer<!-- from: a.json#/rows/0/v less /rows/1/v "{:.0f} % fewer" -->', True),
        ('2 ms more<!-- from: a.json#/rows/1/v minus /rows/0/v "{:.0f} ms more" -->', True),
        ('| 2 | 4 | <!-- from: a.json#/rows/*/v "{:.0f} {:.0f}" -->', True),
        ('20 %<!-- from: a.json#/rows/0/v over 0.1 "{:.0f} %" -->', True),
        ('15 %<!-- from: b.yaml#/a~1b/half "{:.0%}" -->', True),
        ('−1 dB<!-- from: page.md#/Speed (B)/one/dB "{:.0f} dB" -->', True),
        ('0.2<!-- from: b.yaml#/a~1b/half "{:.1f}" -->', True),
        ('0.1<!-- from: b.yaml#/a~1b/half "{:.1f}" -->', True),
        ('1,200<!-- from: b.yaml#/a~1b/c "{:,.0f}" -->', True),
    ],
)
def test_a_marker_holds_where_the_text_before_it_says_so(
    file: Path, text: str, holds: bool
) -> None:
    (marker,) = markers(text)
    assert marker.holds() == holds


def test_a_table_is_read_by_headings_rows_and_columns() -> None:
    assert tables(PAGE)["Speed (A)"]["two"] == {"dB": "8.25", "note": "0.5×"}


def test_unmarked_are_the_figures_that_no_marker_covers(file: Path) -> None:
    marked = '4.0 dB<!-- from: a.json#/rows/n=y/v "{:.1f} dB" -->'
    record = "<!-- results: 2026-11-12; AMD EPYC, AVX2; experiments/a.py at 60432036 -->"
    table = "| a | b |\n|---|---|\n| c | 1.5 |"
    for text, found in [
        (marked, []),
        (f"It lost 3 % of {marked}", ["3%"]),
        (f"4.0 dB or 14.0 dB{marked[6:]}", ["14.0 dB"]),
        (f"{marked}\n\n{table}", ["1.5"]),
        (f"At 2.5:{record}\n\n{table}\n\nIt lost 3 dB.", ["3 dB"]),
        (
            "- It took 3 s.\n- 2 times as fast, 1.5e-3 and 8 GiB",
            ["3 s", "2 times", "1.5e-3", "8 GiB"],
        ),
        ("From 3 % on, in 8 GiB.<!-- given: 3 %; 8 GiB -->", []),
        ("With ONNX Runtime 1.32, 12.6 M parameters, 3 × 8.5, a 95 % interval, `1.5 s`.", []),
        ("See [x](a-1.5.md), arXiv:2310.09259, 10.4.0.26, three of 40 rows.", []),
    ]:
        assert [one.partition(": ")[0] for one in unmarked(text)] == found, text


def test_what_is_given_stands_there() -> None:
    """And is no figure that a marker covers already."""
    for page in pages():
        for block in cited.blocks(page.read_text(encoding="utf-8")):
            without = cited.GIVEN.sub("", block)
            for one in cited.given_in(block):
                assert cited.whole(one).search(cited.uncovered(without)), f"{page}: {one}"

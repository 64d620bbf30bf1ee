"""README is short, its pictures and outputs are those of the docs (its figures: test_truth.py)."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cited import COMMENT, WRITTEN
from tests.test_docs import PAGES, ROOT, commands

README = ROOT / "README.md"
WORDS, LINKS = 900, 10


def text(name: str = "README.md") -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_it_is_short() -> None:
    assert len(COMMENT.sub("", text()).split()) <= WORDS
    last = text()[text().rindex("\n## ") :]
    assert 1 <= len(re.findall(r"\]\(", last)) <= LINKS


@pytest.mark.parametrize("line", [line for line in commands(README) if line.startswith("make ")])
def test_one_command_does_all_the_set_up(line: str, tmp_path: Path) -> None:
    """As make would run it where nothing is set up."""
    # a make that runs this test passes its own flags on, and the names of folders with them
    alone = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MF"))
    }
    done = subprocess.run(
        ["make", "-n", line.split()[1], f"VENV={tmp_path / 'venv'}"], cwd=ROOT, env=alone,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, *others = done.stdout.splitlines()
    assert " -m venv " in first
    assert any("/pip install" in one for one in others[:-1])


def test_what_the_example_prints_is_on_its_page() -> None:
    page = text("examples/04_house_numbers/README.md")
    blocks = re.findall(r"^```text\n(.*?)^```", text(), re.DOTALL | re.M)
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) > 4
    for line in lines:
        assert line.removesuffix(".") in page, line


def test_pictures_are_small_load_nothing_and_show_its_figures() -> None:
    """`site/pictures.py` makes them."""
    pictures = re.findall(r"^!\[.*\]\((.*)\)$", text(), re.M)
    assert len(pictures) == 2
    assert all((ROOT / one).stat().st_size < 200_000 for one in pictures)
    (drawing,) = (one for one in pictures if one.endswith(".svg"))
    drawn = text(drawing)
    assert re.findall(r"url\(\W*http|(?:href|src)=", drawn) == []
    shown = " ".join("".join(ElementTree.fromstring(drawn).itertext()).split())
    (said,) = re.findall(
        r"^Likely, not measured: .* on NVIDIA L4 \(.*, predicted for TensorRT\)", text(), re.M
    )
    assert said in shown


def test_list_of_pages_names_every_page_of_docs() -> None:
    page = ROOT / "docs/README.md"
    linked = {
        (page.parent / target).resolve() for target in re.findall(r"\]\(([^)#]+)", page.read_text())
    }
    docs = {one for one in PAGES if one.is_relative_to(ROOT / "docs")} - {page}
    assert docs <= linked


WORDS_OF_DOCS, WORDS_OF_PAGE = 40_000, 2_500


def words_of_docs() -> dict[str, int]:
    """Page of docs → its words, without comments; neither studies nor generated pages."""
    pages = [page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md")]
    return {
        page: len(COMMENT.sub("", text(page)).split())
        for page in pages
        if not page.startswith("docs/studies/") and page not in WRITTEN
    }


def test_generated_pages_are_written_by_the_script_that_is_named() -> None:
    for page, script in WRITTEN.items():
        assert Path(page).stem in text(script) and (ROOT / page).is_file(), page


def test_docs_are_short() -> None:
    assert 10_000 < sum(words_of_docs().values()) <= WORDS_OF_DOCS


def test_each_page_of_docs_is_short() -> None:
    assert {page: words for page, words in words_of_docs().items() if words > WORDS_OF_PAGE} == {}

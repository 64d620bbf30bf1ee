"""The pictures of the docs, which `site/pictures.py` makes: each is small and loads nothing."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from optkit.facts.evidence import Evidence
from optkit.show.report.evidence_look import LOOKS
from tests.report.test_evidence_look import CONTRAST, contrast
from tests.test_docs import PAGES, ROOT

PICTURES = ROOT / "docs/pictures"
GALLERY = ROOT / "docs/learn/gallery.md"
LARGEST = 200_000  # bytes
DRAWN = sorted(PICTURES.glob("*.svg"))
TERMINALS = [PICTURES / "build.svg", PICTURES / "explain.svg"]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules of site/, as they find each other when one of them is a program."""
    names = ("architecture", "recording", "pictures")
    monkeypatch.syspath_prepend(str(ROOT / "site"))
    yield
    for name in names:
        sys.modules.pop(name, None)


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


def shown(picture: Path) -> str:
    """The text of a drawing. Spaces that do not break are spaces."""
    return " ".join("".join(ElementTree.fromstring(picture.read_text("utf-8")).itertext()).split())


def test_each_is_small_and_on_a_page() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for picture in PICTURES.iterdir():
        assert picture.stat().st_size < LARGEST, picture.name
        assert f"pictures/{picture.name})" in pages, picture.name


@pytest.mark.parametrize("picture", DRAWN, ids=lambda one: one.name)
def test_a_drawing_loads_nothing_and_runs_nothing(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    assert not re.search(r"url\((?!#)|@import|@font-face|(?:href|src)\s*=|<!|<\?", text)
    tags = {one.tag.split("}")[1] for one in ElementTree.fromstring(text).iter()}
    assert tags <= {"svg", "title", "style", "g", "rect", "circle", "path", "text", "tspan",
                    "clipPath"}  # fmt: skip
    names = {name for one in ElementTree.fromstring(text).iter() for name in one.attrib}
    assert not [name for name in names if name.startswith("on")]


def test_the_recording_shows_figures_of_readme_and_ends_on_them() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (said,) = re.findall(r"^Likely, not measured: .* predicted for TensorRT\)", readme, re.M)
    (row,) = re.findall(r"^l4 int8 .*$", readme, re.M)
    told = shown(PICTURES / "build.svg")
    assert said in told and " ".join(row.split()) in told
    gone = re.findall(r'<g class="g".*?</g>', (PICTURES / "build.svg").read_text("utf-8"))
    assert gone and said[:20] not in " ".join(gone).replace("\xa0", " ")


def test_the_recording_stands_still_for_who_asks() -> None:
    style = (PICTURES / "build.svg").read_text(encoding="utf-8")
    still = "@media (prefers-reduced-motion: reduce) { g { animation: none !important; } }"
    assert still in style and style.index(still) > style.rindex("@keyframes")
    assert ".g { visibility: hidden; }" in style  # what is gone at the end
    (seconds,) = re.findall(r"g \{ animation: (\d+)s step-end infinite; \}", style)
    assert 20 <= int(seconds) <= 40
    named = set(re.findall(r"animation-name:\s*(\w+)", style))
    assert named == set(re.findall(r"@keyframes (\w+)", style)) and len(named) > 20


VISIBLE = """() => [...document.querySelectorAll("text")]
  .filter((one) => getComputedStyle(one).visibility === "visible")
  .map((one) => one.textContent).join(" ")"""


@pytest.mark.slow
def test_a_browser_plays_it_or_shows_its_end() -> None:
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if program is None:
        pytest.skip("no Chromium here: `make browser` installs Debian's")
    home, asked, told = (PICTURES / "build.svg").as_uri(), [], {}
    with sync.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for motion in ("no-preference", "reduce"):
            page = browser.new_context(reduced_motion=motion).new_page()
            page.on("request", lambda request: asked.append(request.url))
            page.goto(home)
            told[motion] = " ".join(page.evaluate(VISIBLE).split())
        browser.close()
    assert asked == [home, home]
    end = "before you ship it."
    assert end in told["reduce"] and "Likely, not measured" in told["reduce"]
    assert "$ optkit build" in told["no-preference"] and end not in told["no-preference"]
    assert not set("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏") & set(told["reduce"])


@pytest.mark.parametrize("picture", TERMINALS, ids=lambda one: one.name)
def test_a_terminal_has_the_colours_of_evidence(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    (ground,) = re.findall(r'rx="10" fill="(#\w{6})"', text)
    parts = re.findall(r'<tspan fill="(#\w{6})"[^>]*>([^<]+)</tspan>', text)
    assert all(contrast(fill, ground) >= CONTRAST for fill, word in parts if word.strip("━╸╺\xa0"))
    known = {word: fill for fill, word in parts if word in list(Evidence)}
    assert known == {word: LOOKS[Evidence(word)].dark for word in known} and len(known) >= 2


@pytest.mark.parametrize("name", ["report", "phone", "fleet", "tune"])
def test_a_page_has_the_colours_of_evidence(name: str) -> None:
    images = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    pixels = images.open(PICTURES / f"{name}.png").convert("RGB").getcolors(1 << 24)
    for known in (Evidence.COMPILED, Evidence.SIMULATED, Evidence.PREDICTED):
        wanted = bytes.fromhex(LOOKS[known].light[1:])
        off = min(max(map(abs, map(int.__sub__, one, wanted))) for _, one in pixels)
        assert off <= 2, (known, off)


def test_a_recording_is_what_the_terminal_said(site: None) -> None:
    recording = module("recording")
    parts = [(0.0, "\x1b[?25lone\r\n"), (30.0, "\x1b[2K⠋ 1 %"), (60.0, "\r\x1b[2K⠙ 2 %"),
             (90.0, "\r\x1b[2K\x1b[1Ahi\x1b[32m!\x1b[0m\r\n\x1b[?25h")]  # fmt: skip
    frames = recording.frames("do it", parts)
    assert frames[0][1] == ("\x1b[1;32m$\x1b[0m \x1b[1mdo it\x1b[0m",)
    assert [lines[-1] for _, lines in frames[1:-1]] == ["⠋ 1 %", "⠙ 2 %", ""]
    assert frames[-1] == (25.0, frames[-1][1]) and "hi" in frames[-1][1][1]
    drawn = recording.svg(frames, "a & b")
    told = "".join(ElementTree.fromstring(drawn).itertext())
    assert "a & b" in told and told.count("⠋") == told.count("⠙") == 1
    with pytest.raises(SystemExit, match="does not know"):
        recording.Screen().feed("\x1b[5B")


def test_what_is_long_scrolls(site: None) -> None:
    recording = module("recording")
    lines = tuple(str(number) for number in range(40))
    drawn = recording.svg([(0.0, lines[:10]), (10.0, lines)], "x", 30)
    (by,) = re.findall(r"#s \{ transform: translateY\((-\d+)px\)", drawn)
    assert int(by) == -10 * recording.LINE
    assert f"33.3% {{ transform: translateY({by}px); }}" in drawn


def test_the_rooms_are_drawn_from_the_contracts(site: None) -> None:
    architecture = module("architecture")
    made = architecture.drawing()
    assert architecture.PICTURE.read_text(encoding="utf-8") == made, (
        "python site/architecture.py draws it"
    )
    told = [one.text for one in ElementTree.fromstring(made).iter() if one.tag.endswith("text")]
    names = {name for lines in architecture.contracts().values() for line in lines for name in line}
    rooms = {path.parent.name for path in (ROOT / "optkit").glob("*/__init__.py")}
    assert {"ground", "facts", "verbs"} <= rooms and "store/" in told and "errors" in told
    inside = set(architecture.contracts()) - {"optkit.craft.quantization"}
    assert len(inside) == 1 + 7 and len(names) > 70
    heads = re.findall(r'<tspan class="name">([\w ]+)<', made)
    assert heads == ["public paths", "verbs", "satellites", "road", "show", "craft", "ground",
                     "facts"]  # fmt: skip


def test_every_command_of_the_gallery_makes_one_of_its_pictures(site: None) -> None:
    pytest.importorskip("playwright", reason="playwright is not installed")
    pictures = module("pictures")
    page = GALLERY.read_text(encoding="utf-8")
    made = {pictures.BUILD, pictures.EXPLAIN, *pictures.MADE}
    told = re.findall(r"^\$ (.*)$", page, re.M)
    assert len(told) == 5 and set(told) <= made
    linked = set(re.findall(r"\]\(\.\./pictures/([\w-]+\.\w+)\)", page))
    assert linked == {f"{name}.png" for name in pictures.SHOTS} | {"build.svg", "explain.svg"}

"""The docs site: it builds without a warning, no link in it is dead, and its search finds."""

from __future__ import annotations

import functools
import http.server
import shutil
import sys
import threading
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from ruamel.yaml import YAML

from tests.environments import ROOT, environment, output


def test_every_page_of_docs_is_in_the_navigation() -> None:
    """And every entry of the navigation is a page, or one that `site/pages.py` generates."""
    entries = set(files(YAML(typ="safe").load((ROOT / "mkdocs.yml").read_text())["nav"]))
    pages = {path.relative_to(ROOT).as_posix() for pattern in ("docs/**/*.md", "examples/**/*.md")
             for path in ROOT.glob(pattern)}  # fmt: skip
    generated = {"reference/python.md"}
    top = {path.name for path in ROOT.glob("*.md")}
    assert pages | generated <= entries <= pages | generated | top


def files(entry: object) -> Iterator[str]:
    """The files of the navigation, or of a part of it."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, list):
        for part in entry:
            yield from files(part)
    elif isinstance(entry, dict):
        for part in entry.values():
            yield from files(part)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site. A warning ends the build."""
    folder = tmp_path_factory.mktemp("site")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python = environment("site", *project["optional-dependencies"]["docs"])
    output([sys.executable, "site/pages.py", folder / "pages"], ROOT, PYTHONPATH=str(ROOT))
    config = (ROOT / "mkdocs.yml").read_text().replace("build/site/", "")
    (folder / "mkdocs.yml").write_text(config.replace("paths: [.]", f"paths: [{ROOT}]"))
    output([python.with_name("zensical"), "build", "--strict"], folder)
    return folder / "html"


class Page(HTMLParser):
    """The links of a page, and the anchors to which a link may lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and (name == "id" or (tag, name) == ("a", "name")):
                self.anchors.add(value)
            elif value and name in ("href", "src"):
                self.links.append(value)


@pytest.mark.slow
def test_no_link_is_dead(site: Path) -> None:
    pages = {file: Page(file.read_text(encoding="utf-8")) for file in site.rglob("*.html")}
    dead, count = [], 0
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link == "#":
                continue
            count += 1
            start = site if parts.path.startswith("/") else file.parent
            target = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            anchors = pages[target].anchors if target in pages else set()
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in anchors):
                dead.append(f"{file.relative_to(site)}: {link}")
    assert dead == []
    assert len(pages) > 35 and count > 1000


@pytest.mark.slow
def test_search_opens_a_page_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if program is None:
        pytest.skip("no Chromium here: `make browser` installs Debian's")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home = f"http://127.0.0.1:{server.server_port}/"
    asked: list[str] = []
    complaints: list[str] = []
    with sync.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(home)
        page.click(".md-search__button")
        page.keyboard.type("landing")
        first = page.locator("ol a, li a").filter(has_text="did not. The report names it").first
        first.click()
        page.wait_for_url("**/docs/understand/concepts/*landing*")
        browser.close()
    server.shutdown()
    assert complaints == []
    assert asked and all(url.startswith((home, "data:")) for url in asked), asked

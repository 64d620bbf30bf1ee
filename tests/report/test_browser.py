"""The pages in a browser: nothing is asked for, nothing complains, tables can be searched, both
themes are readable on a desk and on a phone, and names of strangers do nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from optkit.facts.documents.diff import Diff
from optkit.facts.documents.explanation import Explained
from optkit.facts.documents.serving_plan import ServingPlan
from optkit.facts.documents.tune import Tune
from optkit.show.report import diff_page, explanation_page, figures, search_page, serving_page
from optkit.show.report.build_page import to_html
from tests.conftest import MainJob, Ran
from tests.report import hostile
from tests.report.conftest import in_json, read
from tests.report.test_pages import written
from tests.report.test_worst import objects, regions, worst
from tests.report.test_worst import page as page_of

pytestmark = pytest.mark.slow

BROWSERS = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
STRANGERS = 200
STRANGE = [hostile.name(number) for number in range(STRANGERS)]

# Text whose contrast with what lies behind it is below that of WCAG AA (4.5, large text 3).
FAINT = """() => {
  const rgba = (css) => {
    const parts = css.match(/[\\d.]+/g).map(Number);
    const scale = css.startsWith("color(") ? 255 : 1;
    return [...parts.slice(0, 3).map((part) => part * scale), parts[3] ?? 1];
  };
  const luminance = (colour) => {
    const [r, g, b] = colour.map((part) => part / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const contrast = (element, style) => {
    const ink = rgba(element.closest("svg") ? style.fill : style.color);
    const both = [ink, behind(element)].map((colour) => luminance(colour.slice(0, 3)));
    return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement, text = texts.currentNode.data.trim();
    if (!text || !element.checkVisibility()) continue;
    const style = getComputedStyle(element), size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.6 && style.fontWeight >= 700);
    const ratio = contrast(element, style);
    if (ratio < (large ? 3 : 4.5)) found.push(`${text.slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no Chromium here: `make browser` installs Debian's")
    with sync.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def real(
    optkit_apart: Callable[..., Ran], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The report of an artifact whose latency was measured, and that of the fleet it is of."""
    out = tmp_path_factory.mktemp("real")
    quick = ["--set", "bench.seconds=0.5", "--set", "bench.warmup_seconds=0.2"]
    line = ["build", "--recipe", "digits-cnn", "--target", "cpu", "--precision", "int8"]
    done = optkit_apart(*line, "--precision", "fp16", *quick, "--out", out, cache=out / "cache")
    assert done.code == 0, done.err
    return {"artifact": out / "digits-cnn-cpu-int8/report.html",
            "fleet": out / "digits-cnn-fleet/report.html"}  # fmt: skip


class Page:
    """A page in a browser, and what it said and asked for while it was open."""

    def __init__(self, chromium: Any, file: Path, **context: Any) -> None:
        self.context = chromium.new_context(
            **{"viewport": {"width": 1100, "height": 800}} | context
        )
        self.tab = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.tab.on("console", lambda message: self.said.append(message.text))
        self.tab.on("pageerror", lambda error: self.said.append(str(error)))
        self.tab.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self.tab.goto(file.as_uri())
        self.home = file.as_uri()

    def close(self) -> None:
        assert self.said == []
        assert self.asked == [self.home]
        self.context.close()


@pytest.fixture
def opened(chromium: Any) -> Iterator[Callable[..., Any]]:
    pages: list[Page] = []

    def open_(file: Path, **context: Any) -> Any:
        pages.append(Page(chromium, file, **context))
        return pages[-1].tab

    yield open_
    for page in pages:
        page.close()


# Pairs of texts of one drawing whose boxes overlap by more than a pixel each way.
OVERLAPS = """() => [...document.querySelectorAll("svg")].flatMap((drawing) => {
  const texts = [...drawing.querySelectorAll("text")].filter((one) => one.checkVisibility());
  const boxes = texts.map((one) => one.getBoundingClientRect());
  return texts.flatMap((one, i) => texts.slice(i + 1).flatMap((other, k) => {
    const [a, b] = [boxes[i], boxes[i + 1 + k]];
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    return across > 1 && down > 1 ? [`${one.textContent} / ${other.textContent}`] : [];
  }));
})"""


# Tables that are wider than their part of the page.
HIDDEN = """() => [...document.querySelectorAll(".wide")]
  .filter((one) => one.scrollWidth > one.clientWidth + 1).length"""


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core, which finds faults of accessibility."""
    found = pytest.importorskip("axe_playwright_python", reason="axe-core is not installed")
    return (Path(found.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture
def pages(
    real: dict[str, Path],
    main_job: MainJob,
    tune: dict[str, Any],
    optkit_apart: Callable[..., Ran],
    tmp_path: Path,
) -> dict[str, Path]:
    """One page of each kind. The layers of `artifact` are profiled, those of `engine` predicted."""
    plan, searched = tmp_path / "plan.html", tmp_path / "tune.html"
    done = optkit_apart("plan", "--target", "all", "--plot", plan, cache=tmp_path / "cache")
    assert done.code == 0, done.err
    searched.write_text(search_page.to_html(Tune.from_json(tune)), encoding="utf-8")
    engine = main_job.out / main_job.NAME / "report.html"
    return {**real, "engine": engine, "tune": searched, "plan": plan, **_read_back(tmp_path)}


def _read_back(folder: Path) -> dict[str, Path]:
    """The pages of documents that were written before: a comparison, an explanation, a plan of
    serving, and two reports with pictures."""
    shown = {
        "objects": page_of(worst(objects())),
        "masks": page_of(worst(regions(), unit="pixels", confidence=None)),
        "diff": diff_page.to_html(Diff.from_json(written("diff"))),
        "explain": explanation_page.to_html(Explained.from_json(written("explain-l4"))),
        "serving": serving_page.to_html(ServingPlan.from_json(written("serving"))),
    }
    for name, text in shown.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in shown}


PHONE = {"width": 375, "height": 667}

# The texts on a page, in order; without those that only one width has: the contents, the heads of
# tables (the cells of a narrow page name them), and the marks of drawings.
TEXTS = """() => {
  const found = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement, text = texts.currentNode.data.trim();
    const shown = element.checkVisibility({ visibilityProperty: true });
    if (text && shown && !element.closest("nav, thead, svg, .finder")) found.push(text);
  }
  return found;
}"""

UNFOLD = "document.querySelectorAll('details').forEach((one) => { one.open = true })"


def test_a_page_is_at_most_six_screens_of_a_phone_and_loses_nothing(
    pages: dict[str, Path], opened: Callable[..., Any]
) -> None:
    for (name, page), script in product(pages.items(), (True, False)):
        phone = opened(page, viewport=PHONE, java_script_enabled=script)
        screens = phone.evaluate("document.documentElement.scrollHeight / innerHeight")
        assert screens <= 6, (name, screens)
        closed = phone.locator("section > details:not([open]) > summary")
        assert closed.count() == phone.locator("section").count() - 1 > 0, name
        closed.last.click()
        assert closed.count() == phone.locator("section").count() - 2, name
        desk = opened(page, viewport={"width": 1400, "height": 900}, java_script_enabled=script)
        assert desk.locator("section > details:not([open])").count() == closed.count() + 1
        desk.evaluate(UNFOLD.replace("'details'", "'details details'"))
        phone.evaluate(UNFOLD)
        texts = desk.evaluate(TEXTS)
        assert len(texts) > 20 and phone.evaluate(TEXTS) == texts, name
        unnamed = "tbody tr > td:not([data-label]), tbody tr > td[data-label='']"
        assert phone.locator(unnamed).count() == 0, name


LOOKS = (  # theme, width, medium, whether all that is folded is open
    ("light", 1400, "screen", False), ("dark", 1400, "screen", False),
    ("light", 375, "screen", False), ("dark", 375, "screen", False),
    ("light", 375, "screen", True), ("dark", 375, "screen", True),
    ("light", 718, "print", False), ("dark", 718, "print", False),
)  # fmt: skip


def test_every_page_is_accessible_and_nothing_overlaps(
    pages: dict[str, Path], axe: str, opened: Callable[..., Any]
) -> None:
    found: list[tuple[object, ...]] = []
    for name, evidence in {"artifact": "measured", "engine": "predicted"}.items():
        timed = opened(pages[name]).locator("#time .badge").first
        assert timed.text_content() == evidence
    for (name, page), (theme, width, medium, unfolded) in product(pages.items(), LOOKS):
        tab = opened(page, color_scheme=theme, viewport={"width": width, "height": 900})
        tab.emulate_media(media=medium)
        if unfolded:
            tab.evaluate(UNFOLD)
        if not tab.evaluate("document.documentElement.scrollWidth <= innerWidth"):
            found.append((name, width, "wider than the window"))
        if width == 1400 and tab.evaluate(HIDDEN):
            found.append((name, width, "a table whose columns are not all visible"))
        found += [(name, width, pair) for pair in tab.evaluate(OVERLAPS) if theme == "light"]
        tab.evaluate(axe)
        found += [
            (name, theme, width, fault["id"], fault["nodes"][0]["html"][:200])
            for fault in tab.evaluate("axe.run().then((found) => found.violations)")
            if fault["impact"] in ("serious", "critical")
        ]
    assert not found, "\n".join(map(str, found))


# Panels of pictures with their size, the natural size of the picture, and whether each label is
# within its panel and wholly on its own ground.
PANELS = """() => [...document.querySelectorAll(".pictures svg")].map((panel) => {
  const within = (one, other) => one.left >= other.left - 0.5 && one.right <= other.right + 0.5
    && one.top >= other.top - 0.5 && one.bottom <= other.bottom + 0.5;
  const box = (one) => one.getBoundingClientRect();
  const texts = [...panel.querySelectorAll("text")];
  return {
    width: box(panel).width, height: box(panel).height, name: panel.getAttribute("aria-label"),
    sound: texts.every((one) => within(box(one), box(one.previousElementSibling))
      && within(box(one.previousElementSibling), box(panel))),
    outside: [...panel.querySelectorAll("polygon")].filter((one) => !within(box(one), box(panel)))
      .length,
    labels: texts.length, images: panel.querySelectorAll("image, use").length,
  };
})"""


@pytest.fixture(scope="module")
def detectors(
    optkit_apart: Callable[..., Ran], tmp_path_factory: pytest.TempPathFactory
) -> list[Path]:
    """The reports of a trained detector for an L4 and for this CPU, with the pictures on which INT8
    loses most."""
    out = tmp_path_factory.mktemp("detector")
    line = ["build", "--recipe", "digit-detector", "--target", "l4,cpu", "--embed-pictures"]
    quick = ["--set", "bench.seconds=0.3", "--set", "eval.args.scenes=128",
             "--set", "calibration.samples=64", "--set", "gates.max_drop=5%"]  # fmt: skip
    done = optkit_apart(*line, *quick, "--out", out, cache=out / "cache")
    assert done.code == 0, done.err
    return [out / f"digit-detector-{target}-int8" / "report.html" for target in ("l4", "cpu")]


def test_the_worst_pictures_of_a_detector_are_drawn(
    detectors: list[Path], axe: str, opened: Callable[..., Any]
) -> None:
    for page, evidence in zip(detectors, ("simulated", "measured"), strict=True):
        for theme, width in product(("light", "dark"), (1400, 375)):
            tab = opened(page, color_scheme=theme, viewport={"width": width, "height": 900})
            assert tab.locator("#worst .badge").first.text_content() == evidence
            _read(tab, theme)
            panels = tab.evaluate(PANELS)
            assert 2 <= len(panels) == 2 * shown(tab.locator("#worst table")) <= 12
            assert all(one["width"] == one["height"] == 320 for one in panels)
            assert all(one["sound"] and one["outside"] == 0 for one in panels), panels
            assert all(one["images"] == 1 and one["labels"] > 0 for one in panels), panels
            assert len({one["name"] for one in panels}) == len(panels)
            assert tab.evaluate("""async () => {
              const image = new Image();
              image.src = document.querySelector(".pictures image").getAttribute("href");
              await image.decode();
              return [image.naturalWidth, image.naturalHeight];
            }""") == [128, 128]
            assert tab.evaluate(OVERLAPS) == []
            tab.evaluate(axe)
            faults = tab.evaluate("axe.run('#worst').then((found) => found.violations)")
            assert [one["id"] for one in faults] == []


def shown(table: Any) -> int:
    return int(table.locator("tbody tr:visible").count())


def test_a_real_report_is_readable_searched_and_printed(
    real: dict[str, Path], opened: Callable[..., Any]
) -> None:
    for page, theme, width in product(real.values(), ("light", "dark"), (1100, 375)):
        _read(opened(page, color_scheme=theme, viewport={"width": width, "height": 800}), theme)
    _search(opened(real["artifact"]))
    _print(opened(real["artifact"]), opened(real["artifact"], java_script_enabled=False))


def _read(tab: Any, theme: str) -> None:
    """No part is wider than the page or too faint, and drawings and tables say what they show."""
    for state in ("one.open", "true"):  # as it is, then all unfolded
        tab.evaluate(
            f"document.querySelectorAll('details').forEach((one) => {{ one.open = {state} }})"
        )
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert tab.evaluate(FAINT) == []
    red = tab.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/)[0]")
    assert (int(red) > 128) == (theme == "light")
    assert tab.locator("svg[role=img]").count() == tab.locator("svg[aria-label]").count() > 0
    assert tab.locator("table").count() == tab.locator("table > caption").count() > 0
    assert tab.locator("nav a").count() == tab.locator("section").count() > 0


def _search(tab: Any) -> None:
    """A table is searched, chosen from and sorted with the keyboard."""
    table = tab.locator("#layers table.find").first
    bar = tab.locator("#layers .finder").first
    told, box = bar.locator("output"), bar.locator("input")
    assert shown(table) == 12 and told.text_content() == "12 of 12 rows"
    box.focus()
    tab.keyboard.type("blocks.1")
    assert shown(table) == 3 and told.text_content() == "3 of 12 rows"
    box.fill("")
    ops = bar.locator("select").first
    ops.select_option("Gemm")
    assert shown(table) == 1
    ops.select_option("")
    alone = table.locator("th", has_text="alone")
    for direction in ("ascending", "descending"):
        alone.locator("button").focus()
        tab.keyboard.press("Enter")
        assert alone.get_attribute("aria-sort") == direction
        values = table.locator("tbody tr td:nth-child(6)[data-value]").evaluate_all(
            "cells => cells.map((cell) => Number(cell.dataset.value))"
        )
        assert len(values) == 11
        assert values == sorted(values, reverse=direction == "descending")


def _print(paper: Any, still: Any) -> None:
    """On paper what is folded is there; without script every row is."""
    closed = paper.locator("details details:not([open]) table").first
    assert not closed.is_visible()
    paper.emulate_media(media="print")
    paper.set_viewport_size({"width": 718, "height": 1000})  # A4 less its margins
    assert paper.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert closed.is_visible()
    assert not paper.locator(".finder label").first.is_visible()
    assert shown(still.locator("#layers table.find").first) == 12
    assert still.locator(".finder").count() == 0


@pytest.fixture(scope="module")
def inhabited(make: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same report twice: with names of strangers, and with 200 others in their places."""
    folder = tmp_path_factory.mktemp("names")

    def write(file: str, rename: Callable[[str], str], nodes: list[str]) -> Path:
        report = make(rename, measure=True, lost=2)
        first = {key: report[key][0] for key in ("quantization", "landing")}
        likeness = report["layer_fidelity"]["rows"][0]
        for node in nodes:
            report["quantization"].append({**first["quantization"], "node": node})
            report["landing"].append({**first["landing"], "node": node, "layer": node})
            report["layer_fidelity"]["rows"].append({**likeness, "node": node, "module": node})
        (folder / file).write_text(to_html(read(report)), encoding="utf-8")
        return folder / file

    return {
        "hostile": write("hostile.html", hostile.renamer(STRANGERS), STRANGE),
        "benign": write("benign.html", lambda name: name, [f"n#{i}" for i in range(STRANGERS)]),
    }


def test_names_of_strangers_are_shown_and_do_nothing(
    inhabited: dict[str, Path], opened: Callable[..., Any]
) -> None:
    size = {"width": 375, "height": 800}
    strange, plain = (opened(inhabited[kind], viewport=size) for kind in ("hostile", "benign"))
    tags = "[...document.querySelectorAll('*')].map((one) => one.tagName).join()"
    assert strange.evaluate(tags) == plain.evaluate(tags)
    attributes = "[...document.querySelectorAll('*')].flatMap((one) => one.getAttributeNames())"
    found = strange.evaluate(attributes)
    assert found == plain.evaluate(attributes)
    assert not [name for name in found if name.startswith("on") or name == "style"]
    listed = (
        strange.locator("#layers table.find")
        .first.locator("tbody th.name")
        .evaluate_all("cells => cells.map((cell) => cell.textContent)")
    )
    assert {figures.name(in_json(name)) for name in STRANGE} <= set(listed)
    assert strange.evaluate("window.pwned") is None
    text = strange.evaluate("document.documentElement.textContent")
    assert not set(text) & set("\u202e\u2066\u200b\u2028\ufeff\x1b\x07\x9b")
    _read(strange, "light")
    strange.locator("#layers .finder input").first.fill("</script>")
    assert 1 <= shown(strange.locator("#layers table.find").first) < STRANGERS

"""Draw the pictures of README and the docs from real builds: python site/pictures.py [FOLDER]

    docs/pictures/build.svg          a build on a terminal, moving
    docs/pictures/explain.svg        what `optkit explain` prints
    docs/pictures/*.png              the pages of the builds, in Chromium
    docs/pictures/architecture.svg   the rooms of optkit

FOLDER (default: build/pictures) keeps the artifacts, the store and the recorded build; a second run
in it is short. The targets are GPUs, so no figure of a model in the pictures depends on the load of
this machine. It needs the packages of `dev`, and Chromium (`make browser`).
"""

from __future__ import annotations

import io
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import architecture
import recording
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs/pictures"
MODEL = "--recipe house-numbers"
FLEET = "l4,rtx4090,h100-sxm"
ARTIFACT = "artifacts/house-numbers-l4-int8"
BUILD = f"optkit build {MODEL} --target l4 --precision int8"
EXPLAIN = "optkit explain artifacts/house-numbers-rtx4090-fp8"
MADE = (  # what the pages are of
    f"optkit build {MODEL} --target {FLEET} --precision int8,fp8 --quiet",
    f"optkit tune {MODEL} --target l4 --max-drop 0.5% --trials 8 --quiet",
    f"optkit plan {MODEL} --target {FLEET} --plot plan.html",
)
LINES = 30  # of the moving picture


@dataclass(frozen=True)
class Shot:
    """A picture of a page. `part`: the element that it shows; None: the first screen."""

    page: str
    part: str | None = None
    size: tuple[int, int] = (1120, 900)


SHOTS = {
    "report": Shot(f"{ARTIFACT}/report.html"),
    "layers": Shot(f"{ARTIFACT}/report.html", "#layers"),
    "phone": Shot(f"{ARTIFACT}/report.html", size=(375, 812)),
    "fleet": Shot("artifacts/house-numbers-fleet/report.html", size=(1400, 900)),
    "tune": Shot("artifacts/house-numbers-tuned-l4-int8.tune/report.html"),
    "plan": Shot("plan.html"),
}


def taken(browser: Browser, folder: Path, shot: Shot) -> Image.Image:
    """A page or a part of it, in the light theme, with 256 colours: rare ones stay as they are."""
    width, height = shot.size
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
    page.goto((folder / shot.page).as_uri())
    picture = page.locator(shot.part).screenshot() if shot.part else page.screenshot()
    page.close()
    whole = Image.open(io.BytesIO(picture)).convert("RGB")
    return whole.quantize(method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)


def explained(folder: Path) -> str:
    said = recording.run(EXPLAIN, folder, folder / "store", quiet=True)
    return recording.svg(recording.still({EXPLAIN: "".join(text for _, text in said)}), "optkit")


def pages(folder: Path) -> None:
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, shot in SHOTS.items():
            taken(browser, folder, shot).save(PICTURES / f"{name}.png", optimize=True)
        browser.close()


def moving(folder: Path) -> str:
    """The build with all there is to do, at its own pace."""
    parts = recording.kept(folder / "build.json", BUILD, folder, folder / "recorded")
    faster = parts[-1][0] / (recording.SECONDS - recording.HOLD)
    title = f"a build for an L4, shown {faster:.0f} times as fast"
    return recording.svg(recording.frames(BUILD, parts), title, LINES)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/pictures").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    architecture.PICTURE.write_text(architecture.drawing(), encoding="utf-8")
    (PICTURES / "build.svg").write_text(moving(folder), encoding="utf-8")
    for command in MADE:
        recording.run(command, folder, folder / "store", quiet=True)
    (PICTURES / "explain.svg").write_text(explained(folder), encoding="utf-8")
    pages(folder)


if __name__ == "__main__":
    main()

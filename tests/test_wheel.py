"""What is shipped: a wheel that stands alone, and a source package that gives the same wheel."""

from __future__ import annotations

import json
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests import environments
from tests.environments import hatchling, output

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
CONTENT = {
    "recipes/digits-vit.yaml", "recipes/digits-cnn.yaml", "recipes/house-numbers.yaml",
    "recipes/digit-detector.yaml",
    *(path.relative_to(ROOT).as_posix() for folder in ("calibration", "eval")
      for path in (ROOT / folder).glob("*.py")),
    "calibration/digits.npz", "examples/serving/server.py",
    *(f"examples/{name}/{file}" for name in ("00_digits_vit", "01_digits_cnn", "04_house_numbers",
                             "05_digit_detector")
      for file in ("model.py", "weights.safetensors")),
}  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hatchling(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as file:
        return set(file.namelist())


def test_the_wheel_carries_code_data_and_content_only(wheel: Path) -> None:
    inside = names(wheel)
    code = {path.relative_to(ROOT).as_posix() for path in (ROOT / "optkit").rglob("*.*")
            if "__pycache__" not in path.parts}  # fmt: skip
    assert "optkit/py.typed" in code
    assert code | {f"optkit/ground/shipped/{name}" for name in CONTENT} <= inside
    tops = {name.partition("/")[0] for name in inside}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"optkit"}
    shipped = {name.removeprefix("optkit/ground/shipped/").partition("/")[0]
               for name in inside if name.startswith("optkit/ground/shipped/")}  # fmt: skip
    assert shipped == {"__init__.py", "recipes", "calibration", "eval", "examples"}
    tasks = {name for name in CONTENT if name.startswith("eval/")}
    assert {name for name in inside if name.startswith("optkit/ground/shipped/eval/")} == {
        f"optkit/ground/shipped/{name}" for name in tasks
    }
    assert not [name for name in inside if "__pycache__" in name or "tests" in name.split("/")]


def test_the_source_package_gives_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    sdist = hatchling(ROOT, tmp_path / "sdist", "sdist")
    with tarfile.open(sdist) as file:
        members = file.getnames()
        file.extractall(tmp_path / "unpacked", filter="data")
    assert not [name for name in members if "artifacts" in name.split("/") or ".venv" in name]
    (folder,) = (tmp_path / "unpacked").iterdir()
    again = hatchling(folder, tmp_path / "wheel", "wheel")
    assert names(again) == names(wheel)


def test_both_packages_are_fit_for_a_registry(wheel: Path, tmp_path: Path) -> None:
    """W004: the folders of the examples begin with a number, because nobody imports them."""
    python = environments.environment("release", "twine>=6", "check-wheel-contents>=0.6")
    sdist = hatchling(ROOT, tmp_path / "sdist", "sdist")
    output([python.with_name("twine"), "check", "--strict", wheel, sdist], tmp_path)
    output([python.with_name("check-wheel-contents"), "--ignore", "W004", wheel], tmp_path)


def environment(folder: Path) -> tuple[Path, Path]:
    """The interpreter and the packages' folder of a fresh environment that downloads nothing.

    A .pth file names the packages of the running interpreter: behind the environment's own, and
    without the .pth files among them, one of which may name the checkout.
    """
    output([sys.executable, "-m", "venv", "--without-pip", str(folder)], ROOT)
    python = folder / "bin" / "python"
    ask = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    own = Path(output([str(python), "-c", ask], folder).strip())
    running = {sysconfig.get_paths()[key] for key in ("purelib", "platlib")}
    (own / "running.pth").write_text("\n".join(sorted(running)))
    return python, own


def build(command: list[str], folder: Path) -> str:
    """`manifest.digest` of a cold build, outside of the checkout."""
    output(
        [*command, "build", "--recipe", "digits-vit", "--target", "l4", "--precision", "int8",
         "--out", "made"],
        folder, OPTKIT_CACHE=str(folder / "cache"),
    )  # fmt: skip
    manifest = json.loads((folder / "made/digits-vit-l4-int8/manifest.json").read_bytes())
    assert "optkit" in manifest["versions"]
    return str(manifest["digest"])


def imported(python: Path, folder: Path) -> Path:
    return Path(
        output([str(python), "-c", "import optkit; print(optkit.__file__)"], folder).strip()
    )


def test_the_wheel_builds_what_the_checkout_builds(wheel: Path, tmp_path: Path) -> None:
    works = [tmp_path / "one", tmp_path / "two"]
    for work in works:
        work.mkdir()
    python, packages = environment(tmp_path / "installed")
    output([sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet",
            "--no-deps", "--no-index", "--ignore-installed", str(wheel)], tmp_path)  # fmt: skip
    assert imported(python, works[0]).is_relative_to(packages)
    digest = build([str(python.with_name("optkit"))], works[0])

    # as `pip install --editable` leaves it: metadata, a copy of the content, the checkout's name
    python, packages = environment(tmp_path / "editable")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(packages, [n for n in file.namelist() if not n.startswith("optkit/")])
        file.extractall(
            packages, [n for n in file.namelist() if n.startswith("optkit/ground/shipped/")]
        )
    (packages / "_optkit.pth").write_text(str(ROOT))
    assert imported(python, works[1]).is_relative_to(ROOT)
    assert build([str(python), "-c", "from optkit.cli import main; main()"], works[1]) == digest

"""README and docs: every command in them runs, every link leads somewhere, every table is true."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import MainJob

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")),
         *sorted((ROOT / "examples").glob("*/README.md")),
         *sorted((ROOT / "examples").glob("agents/*/SKILL.md"))]  # fmt: skip
OPTKIT = (sys.executable, "-c", "from optkit.cli import main; main()")

MODEL = """
from torch import nn

def create():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""
# what `optkit init` leaves to fill in, for the model above
INPUTS = (
    "inputs:\n  image: {dtype: float32, shape: [batch, 1, 8, 8]}\ncalibration: {source: digits}\n"
)


def commands(page: Path) -> list[str]:
    """The lines of the page's shell fences, without their comments."""
    fences = re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.M)
    lines = [re.sub(r"\s+#.*", "", line).strip() for fence in fences for line in fence.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory, main_job: MainJob) -> dict[str, Path]:
    """A folder that stands for the checkout (its artifacts go there), a reader's project, and a
    store that has the steps of the main job."""
    root = tmp_path_factory.mktemp("docs")
    checkout, project = root / "checkout", root / "project"
    checkout.mkdir()
    project.mkdir()
    for folder in ("examples", "experiments/gpu"):
        shutil.copytree(ROOT / folder, checkout / folder)
    default = ROOT / "recipes" / "digits-vit.yaml"
    (checkout / "pyproject.toml").write_text(f'[tool.optkit]\nrecipe = "{default}"\n')
    quantized = ROOT / "tests" / "foreign" / "graphs" / "ort_qdq.onnx"
    shutil.copyfile(quantized, checkout / "quantized.onnx")
    _save_ranges(checkout)
    (project / "model.py").write_text(MODEL)
    images = np.random.default_rng(0).random((64, 1, 8, 8), np.float32)
    np.savez(project / "samples.npz", input=images)
    _save_hugging_face(checkout)
    shutil.copytree(main_job.cache, root / "cache")
    return {"checkout": checkout, "project": project, "cache": root / "cache"}


def _save_ranges(folder: Path) -> None:
    """float.onnx, and a calibration cache of TensorRT for it."""
    from optkit.craft import foreign
    from optkit.ground import graph
    from tests.foreign.test_foreign import loaded

    model = loaded("ort_qdq")
    foreign.normal_form(model)
    foreign.remove_quantization(model)
    graph.save(model, folder / "float.onnx")
    names = [value.name for node in model.graph for value in (*node.inputs, *node.outputs) if value]
    lines = [f"{name}: 3d010204" for name in dict.fromkeys(names)]
    (folder / "calibration.cache").write_text("\n".join(["TRT-8601-EntropyCalibration2", *lines]))


def _save_hugging_face(folder: Path) -> None:
    """The folders that docs/how_to/hugging_face.md speaks of: tiny, of random weights."""
    import transformers as hf

    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
             "num_attention_heads": 2}  # fmt: skip
    for name, model in (
        ("my-bert", hf.BertForSequenceClassification(hf.BertConfig(vocab_size=64, **small))),
        ("my-llama", hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=64, **small))),
        (
            "my-convnext",
            hf.ConvNextModel(
                hf.ConvNextConfig(image_size=32, hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)
            ),
        ),
    ):
        model.save_pretrained(folder / name)


OWN_MODEL = "optkit build --target l4 --precision fp16,int8"


def run(line: str, workshop: dict[str, Path], page: Path) -> subprocess.CompletedProcess[str]:
    words = shlex.split(line)
    own_model = "init" in words or "model.py:create" in words or line == OWN_MODEL
    folder = workshop["project" if own_model else "checkout"]
    if page.parent.parent.name == "examples":
        folder = workshop["checkout"]
    if page.name == "CONTRIBUTING.md":
        folder = ROOT
    words, into = (words[:-2], folder / words[-1]) if words[-2:-1] == [">"] else (words, None)
    environment = {**os.environ, "OPTKIT_CACHE": str(workshop["cache"]), "PYTHONPATH": str(ROOT)}
    program = OPTKIT if words[0] == "optkit" else (sys.executable,)
    done = subprocess.run(
        [*program, *words[1:]], cwd=folder, env=environment, capture_output=True, text=True
    )
    if into is not None:
        into.write_text(done.stdout)
    return done


PAIRS = [(page, line) for page in PAGES for line in commands(page)]

DEFER = "optkit build --target cpu --precision int8 --defer"
LONG = (  # several seconds and more
    "optkit tune ", "optkit build my-", "optkit build quantized", "optkit build float",
    "optkit build examples/", "optkit export my-",
    "optkit build --target l4 --target", "optkit build --target l4,h100,rtx4090",
    "optkit build --recipe house-numbers",
    "optkit build --target l4 --precision fp16", "optkit build model.py:", "optkit finish ",
    "optkit bench ", "optkit eval ", "optkit quantize ", "optkit explain ", DEFER,
    "optkit package ", "optkit plan ", "optkit doctor quantized", "python experiments/",
)  # fmt: skip


@pytest.mark.parametrize(
    ("page", "line"),
    [
        pytest.param(*pair, marks=[pytest.mark.slow] if pair[1].startswith(LONG) else [])
        for pair in PAIRS
        if pair[1].startswith(("optkit ", "python "))
    ],
    ids=lambda value: value if isinstance(value, str) else value.relative_to(ROOT).as_posix(),
)
def test_command_runs(page: Path, line: str, workshop: dict[str, Path]) -> None:
    if line.startswith("optkit finish "):  # of what the line above it leaves
        run(DEFER, workshop, page)
    if "digits.npz" in line and not line.startswith("python "):
        run(next(one for one in commands(page) if one.startswith("python -c")), workshop, page)
    if line.startswith("optkit bench artifacts/"):
        run("optkit build --target cpu", workshop, page)
    artifact = line.startswith(("optkit explain ", "optkit package ", "optkit verify "))
    if artifact or (page.name == "SKILL.md" and "digits-vit-l4-int8" in line):
        run("optkit build --target l4 --precision int8", workshop, page)
    if line == OWN_MODEL and not (workshop["project"] / "optkit.yaml").exists():
        begin(workshop, page)
    done = run(line, workshop, page)
    assert done.returncode == 0, done.stderr
    if line.startswith("optkit init"):
        fill_in(workshop)


def begin(workshop: dict[str, Path], page: Path) -> None:
    """The line above: a recipe of one's own, as a reader completes it."""
    line = next(line for line in commands(page) if line.startswith("optkit init"))
    assert run(line, workshop, page).returncode == 0
    fill_in(workshop)


def fill_in(workshop: dict[str, Path]) -> None:
    recipe = workshop["project"] / "optkit.yaml"
    text = re.sub(r"^(inputs|calibration):(.*\n)(?:[ ].*\n)*", "", recipe.read_text(), flags=re.M)
    recipe.write_text(text + INPUTS)


def made_by(line: str) -> str:
    """The commands that a line `make …` runs."""
    done = subprocess.run(
        ["make", "-n", *shlex.split(line)[1:]], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


MADE = sorted({line for _, line in PAIRS if line.startswith("make ")})


@pytest.mark.parametrize("line", MADE)
def test_make_target_exists(line: str) -> None:
    assert made_by(line)


@pytest.mark.parametrize("line", [line for line in MADE if "tests/" in line])
def test_make_line_chooses_tests(line: str) -> None:
    (command,) = (one for one in made_by(line).splitlines() if "/pytest " in one)
    options = shlex.split(command.partition("/pytest ")[2])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-n", "0", "--collect-only"], cwd=ROOT,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_contributing_names_every_package() -> None:
    layout = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for package in (ROOT / "optkit").glob("*/*/__init__.py"):
        room, name = package.parts[-3:-1]
        listed = [row for row in layout.splitlines() if row.startswith(f"| `optkit/{room}/")]
        assert any(re.search(rf"\b{name}[`/]", row) for row in listed), name


@pytest.mark.parametrize("line", sorted({line for _, line in PAIRS if "'optkit[" in line}))
def test_extras_of_an_install_line_exist(line: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = re.search(r"optkit\[([^\]]+)\]", line)
    assert named and set(named[1].split(",")) <= extras.keys()


def test_every_command_line_is_covered() -> None:
    known = ("optkit ", "python ", "make ", "pip ")
    assert [line for _, line in PAIRS if not line.startswith(known)] == []
    assert len(PAIRS) > 8


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(
        r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")
    ):
        if "://" not in target:
            file = page.parent / target if target else page
            assert file.exists(), target
            assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_commands_page_lists_every_command() -> None:
    from optkit.verbs.cli import optkit

    text = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    table = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    for name in optkit.commands:
        assert f"`{name}`" in table or f"optkit {name}" in table, name


def test_troubleshooting_lists_every_exit_code() -> None:
    text = (ROOT / "docs/reference/troubleshooting.md").read_text(encoding="utf-8")
    for code in (0, 1, 2, 3, 4, 5, 6, 7, 8):
        assert f"| {code} |" in text
        assert f"\n## {code}: " in text


def test_recipe_page_lists_every_key() -> None:
    from optkit.ground.recipe import Bench, Calibration, Compiler, Eval, Gates, Input, Model

    text = (ROOT / "docs/reference/recipe_keys.md").read_text(encoding="utf-8")
    for section, part in (
        ("model", Model), ("inputs.NAME", Input), ("calibration", Calibration),
        ("eval", Eval), ("gates", Gates), ("bench", Bench),
        ("compiler", Compiler),
    ):  # fmt: skip
        for key in part.model_fields:
            assert f"`{section}.{key}`" in text, f"{section}.{key}"


def test_layer_pictures_are_the_checked_ones() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    page = (ROOT / "docs/understand/design.md").read_text(encoding="utf-8")
    pictures = re.findall(r"^```text\n(.*?)^```", page, re.DOTALL | re.M)
    for contract in (one for one in config["contracts"] if one["type"] == "layers"):
        folder = ROOT / contract["containers"][0].replace(".", "/")
        drawn = "\n".join(drawing(layer, folder) for layer in contract["layers"])
        assert drawn + "\n" in pictures, drawn


def drawing(layer: str, folder: Path) -> str:
    """A line of the picture: the layer without those optional modules that are not there."""
    names = [name.strip(" ()") for name in re.split("[|:]", layer)]
    present = [
        name for name in names if (folder / name).is_dir() or (folder / f"{name}.py").exists()
    ]
    return (" | " if "|" in layer else " : ").join(present)


def test_whole_recipe_of_its_page_can_be_copied_into_a_project(tmp_path: Path) -> None:
    from optkit.ground.recipe import Recipe

    text = (ROOT / "docs/reference/recipe.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^```yaml\n(name: .*?)^```", text, re.DOTALL | re.M)
    for name in ("pyproject.toml", "src/model.py", "weights.safetensors", "recipes/mine.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "recipes/mine.yaml").write_text(recipe)
    source = Recipe.load(tmp_path / "recipes/mine.yaml").source
    assert source is not None and source.place is not None
    assert source.place.path == (tmp_path / "src/model.py").resolve()


FROM_10 = ROOT / "docs/how_to/from_tensorrt_10.md"


def in_optkit() -> list[str]:
    """What the tables of docs/how_to/from_tensorrt_10.md name in their column `optkit`."""
    rows = [line.split(" | ") for line in FROM_10.read_text(encoding="utf-8").splitlines()
            if line.startswith("| `")]  # fmt: skip
    assert all(len(row) == 3 for row in rows)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row[1])]


def test_options_beside_those_of_tensorrt_10_exist() -> None:
    """A command line names options of its command; without a command they are those of `build`."""
    from optkit.verbs.cli import optkit

    checked = 0
    for name in in_optkit():
        words = shlex.split(name)
        command = optkit.commands[words[1] if words[0] == "optkit" else "build"]
        options = {option for parameter in command.params for option in parameter.opts}
        for option in (word for word in words if word.startswith("-")):
            assert option in options, f"{option} in {name}"
            checked += 1
    assert checked > 40


@pytest.mark.parametrize(
    "setting", sorted({name for name in in_optkit() if name.startswith("--set ")})
)
def test_settings_beside_those_of_tensorrt_10_are_of_a_recipe(setting: str) -> None:
    from optkit.ground.recipe import Recipe

    (_, assignment) = shlex.split(setting)
    recipe = Recipe.load(ROOT / "recipes/digits-vit.yaml")
    changed = recipe.with_overrides([assignment])
    assert changed != recipe or assignment == "calibration.method=minmax"

"""README and docs: the snippets in Python and YAML, as sybil finds them, do what the page says.

`tests/test_docs.py` runs the shell commands: each line is a test of its own there, and expensive
lines are slow tests, while an example of sybil is a whole block.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from ruamel.yaml import YAML
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

from optkit import qat
from optkit.craft.benchmarking.detector_heads import DetectionLimits, detections
from optkit.craft.prediction.cost import read_prices
from optkit.ground.recipe import Model, Recipe
from tests.generation.conftest import POSITIONS, Network, words, write, write_artifact
from tests.test_docs import PAGES, ROOT

# tests of their own run these pages
ELSEWHERE = {
    "docs/learn/first_lesson.md",
    "docs/how_to/package_lora.md",
    "docs/how_to/package_ort.md",
    "docs/how_to/training.md",
}
NOT_HERE = "onnxruntime_genai"  # tests/packaging/test_genai.py loads artifacts with it


def examples(page: str, parser: object) -> list[Example]:
    return list(Sybil([parser]).parse(ROOT / page).examples())  # type: ignore[list-item]


class Reader(torch.nn.Module):
    """Pictures [batch, 1, 8, 8] → logits."""

    def __init__(self) -> None:
        super().__init__()
        self.product = torch.nn.Linear(64, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.product(image.flatten(1))


def pictures(count: int) -> np.ndarray:
    return np.random.default_rng(count).random((count, 1, 8, 8), np.float32)


def readme() -> dict[str, object]:
    return {
        "model": Reader().eval(),
        "example_inputs": (torch.from_numpy(pictures(2)),),
        "batches": [{"image": pictures(8)} for _ in range(4)],
        "test_batches": [(pictures(8), np.arange(8)) for _ in range(20)],
        "images": pictures(5),
    }


def tune() -> dict[str, object]:
    inputs = (torch.from_numpy(pictures(2)),)
    sizes = {"image": {0: torch.export.Dim("batch", min=1, max=32)}}
    program = torch.onnx.export(Reader().eval(), inputs, dynamo=True, dynamic_shapes=sizes)
    assert program is not None
    program.save("model.onnx")
    Path("recipe.yaml").write_text(
        "name: reader\ncalibration: {source: digits}\neval: {task: digits_top1}\n"
    )
    return {}


def generate() -> dict[str, object]:
    write(Network.random(0), Path("model.onnx"))
    files = {
        "tokenizer.json": words().to_str().encode(),
        "config.json": json.dumps({"max_position_embeddings": POSITIONS}).encode(),
    }
    return {"path": write_artifact(Path("model.onnx"), files, Path("artifacts")).path}


def distillation() -> dict[str, object]:
    """What docs/how_to/qat.md has before it goes into the details of this page."""
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))
    batches = [(torch.randn(16, 1, 8, 8), torch.randint(0, 4, (16,))) for _ in range(8)]
    return {
        "torch": torch,
        "qat": qat,
        "float_net": network,
        "loader": batches,
        "example": batches[0][0],
    }


def test_the_client_of_the_detector_finds_what_the_task_counts() -> None:
    """One class of each box is sure: the task counts a box for each class that is."""
    random = np.random.default_rng(3)
    output = np.concatenate([random.uniform(30, 60, (2, 400)), random.uniform(20, 40, (2, 400)),
                             random.uniform(0, 0.2, (3, 400))]).astype(np.float32)  # fmt: skip
    output[4 + random.integers(0, 3, 400), np.arange(400)] = random.uniform(0, 1, 400)
    (client,) = examples("docs/learn/detector.md", PythonCodeBlockParser())
    client.evaluate()
    client.namespace["__builtins__"] = builtins  # sybil takes them away
    corners, scores, kinds = client.namespace["detections"](output)
    limits = DetectionLimits(0.25, 0.7, 300)
    sizes = np.asarray([(128, 128)])
    (wanted,) = detections({"output": output[None]}, sizes, "yolo", limits)
    assert 20 < len(kinds) < (output[4:].max(0) >= 0.25).sum() - 20
    np.testing.assert_array_equal(kinds, wanted.classes)
    np.testing.assert_allclose(scores, wanted.scores, rtol=1e-6)
    np.testing.assert_allclose(corners, wanted.corners, rtol=1e-5)
    nothing = client.namespace["detections"](output * 0)
    assert [len(one) for one in nothing] == [0, 0, 0]


PYTHON: dict[str, Callable[[], dict[str, object]]] = {
    "README.md": readme,
    "docs/learn/detector.md": dict,
    "docs/how_to/generate.md": generate,
    "docs/how_to/qat.md": dict,
    "docs/how_to/tune.md": tune,
    "docs/reference/data.md": dict,
    "docs/reference/python.md": dict,
    "docs/studies/qat.md": distillation,
}
BUILDS = (
    "README.md",
    "docs/how_to/tune.md",
    "docs/reference/python.md",
    "docs/how_to/qat.md",
    "docs/studies/qat.md",
)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] if page in BUILDS else []) for page in PYTHON],
)
def test_python_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    """With what the page supposes, in one namespace from top to bottom."""
    monkeypatch.chdir(tmp_path)
    found = [one for one in examples(page, PythonCodeBlockParser()) if NOT_HERE not in one.parsed]
    assert found
    found[0].namespace.update(PYTHON[page]())
    for example in found:
        example.evaluate()


def pages_with(language: str) -> set[str]:
    names = {page.relative_to(ROOT).as_posix() for page in PAGES}
    return {name for name in names if examples(name, CodeBlockParser(language, str))} - ELSEWHERE


def test_every_page_with_python_is_run() -> None:
    assert pages_with("python") == set(PYTHON)


def read_as_recipe(text: str, folder: Path) -> None:
    """A recipe, or a part of one, is read. Another model is in the place of its own."""
    part = YAML(typ="safe").load(text) or {}
    assert set(part.get("model", {})) <= set(Model.model_fields)
    file = folder / "optkit.yaml"
    YAML().dump({"name": "part", **part, "model": {"hub": "org/name"}}, file)
    assert set(part) <= set(Recipe.load(file).model_dump())


@pytest.mark.parametrize("page", sorted(pages_with("yaml")))
def test_yaml_is_read(page: str, tmp_path: Path) -> None:
    for example in examples(page, CodeBlockParser("yaml", str)):
        if page == "docs/how_to/plan.md":
            (tmp_path / "prices.yaml").write_text(example.parsed)
            assert read_prices(tmp_path / "prices.yaml")
        else:
            read_as_recipe(example.parsed, tmp_path)

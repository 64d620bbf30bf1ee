"""Cases that once gave outdated results, repeated through the command line.

The score of a task is a value that its code reads. So the result of a fresh store is known: the
first value before a change, and the second value after it.
"""

from __future__ import annotations

import sqlite3
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image
from safetensors.numpy import save_file

from tests.cli.conftest import small_model

pytestmark = pytest.mark.slow

Optkit = Any
EVAL = ("eval", "--target", "cpu", "--precision", "int8", "--json")

RECIPE = """\
name: small
model: {path: small.onnx}
calibration: {source: source.py, samples: 64}
eval: {task: task.py}
gates: {max_drop: 100%}
"""
SOURCE = """\
import numpy as np

def samples():
    yield {"x": np.random.default_rng(1).standard_normal((64, 16)).astype(np.float32)}
"""
TASK = """\
import json
import os
import sqlite3
import subprocess
import time
from pathlib import Path

import numpy as np

METRIC = "value"
HERE = Path(__file__).parent

def value():
{value}

def scale():
{scale}

def samples():
    x = np.random.default_rng(2).standard_normal((64, 16)).astype(np.float32)
    yield {{"x": x}}, np.full(64, value())

def score(outputs, labels):
    return np.full(len(labels), float(labels[0]) * scale())
"""


@dataclass(frozen=True)
class Case:
    """`value`, `scale`: bodies of functions that read what `prepare` left. They give 0.25 before
    `change` and 0.5 after it."""

    name: str
    prepare: Callable[[Path], None]
    change: Callable[[Path], None]
    value: str = "return 0.5"
    scale: str = "return 1"


def texts(**files: object) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        for name, text in files.items():
            (folder / name.replace("__", "/")).parent.mkdir(exist_ok=True)
            (folder / name.replace("__", "/")).write_text(str(text))

    return act


def moved(*pairs: tuple[str, str]) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        for old, new in pairs:
            (folder / old).rename(folder / new)

    return act


def row(value: float) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        with sqlite3.connect(folder / "d.db") as base:
            base.execute("create table if not exists t(x)")
            base.execute("delete from t")
            base.execute("insert into t values (?)", [value])
        base.close()

    return act


def both(*acts: Callable[[Path], None]) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        for one in acts:
            one(folder)

    return act


def link(target: str) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        (folder / "link").unlink(missing_ok=True)
        (folder / "link").symlink_to(target)

    return act


CASES = (
    Case("a listed folder gets another file", texts(set__a=1), texts(set__b=1),
         "return 0.25 * len(list((HERE / 'set').iterdir()))"),
    Case("two files of one name exchange their contents", texts(a__v=0.25, b__v=0.5),
         moved(("a", "c"), ("b", "a"), ("c", "b")),
         "return [float((HERE / n / 'v').read_text()) for n in 'ab'][0]"),
    Case("what did not exist is created", texts(), texts(flag=""),
         "return 0.5 if (HERE / 'flag').exists() else 0.25"),
    Case("what could not be opened is created", texts(), texts(v=0.5),
         "try:\n    return float(open(HERE / 'v').read())\nexcept OSError:\n    return 0.25"),
    Case("an optional module appears", texts(),
         both(texts(local_settings="VALUE = 0.5"), moved(("local_settings", "local_settings.py"))),
         "try:\n    import local_settings\n    return local_settings.VALUE\n"
         "except ImportError:\n    return 0.25"),
    Case("a configuration changes", texts(c='{"v": 0.25}'), texts(c='{"v": 0.5}'),
         "return json.loads((HERE / 'c').read_text())['v']"),
    Case("weights that safetensors reads change",
         lambda folder: save_file({"v": np.float32([0.25])}, folder / "w"),
         lambda folder: save_file({"v": np.float32([0.5])}, folder / "w"),
         "from safetensors.numpy import load_file\nreturn float(load_file(HERE / 'w')['v'][0])"),
    Case("a row of a database changes", row(0.25), row(0.5),
         "return sqlite3.connect(HERE / 'd.db').execute('select x from t').fetchone()[0]"),
    Case("a program says something else", texts(v=0.25), texts(v=0.5),
         "return float(subprocess.run(['cat', HERE / 'v'], capture_output=True).stdout)"),
    Case("a link leads elsewhere", both(texts(a=0.25, b=0.5), link("a")), link("b"),
         "return float((HERE / 'link').read_text())"),
    Case("what the score function reads changes", texts(s=0.5), texts(s=1),
         scale="return float((HERE / 's').read_text())"),
    Case("a file is edited while the code runs", texts(v=0.25), texts(),
         "v = float((HERE / 'v').read_text())\nif not (HERE / 'stop').exists():\n"
         "    if not os.fork():\n"
         "        os.execvp('sh', ['sh', '-c', f'echo 0.5 > {HERE}/v; touch {HERE}/stop'])\n"
         "    while not (HERE / 'stop').exists():\n        time.sleep(0.05)\nreturn v"),
)  # fmt: skip


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for all: the model is the same, so each case runs little more than its task."""
    return tmp_path_factory.mktemp("store")


def accuracy(ran: Any) -> float:
    assert ran.code == 0, ran.err
    return float(ran.json["accuracy"]["value"])


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_change_is_followed(
    case: Case, tmp_path: Path, shared: Path, optkit_here: Optkit
) -> None:
    project = tmp_path / case.name.replace(" ", "-")
    project.mkdir()
    rng = np.random.default_rng(0)
    shapes = {"w1": (16, 32), "b1": (32,), "w2": (32, 4), "b2": (4,)}
    weights = {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}
    onnx.save(small_model(weights), project / "small.onnx")
    bodies = {name: textwrap.indent(getattr(case, name), "    ") for name in ("value", "scale")}
    (project / "task.py").write_text(TASK.format(**bodies))
    (project / "source.py").write_text(SOURCE)
    (project / "optkit.yaml").write_text(RECIPE)
    case.prepare(project)
    assert accuracy(optkit_here(*EVAL, cwd=project, cache=shared)) == pytest.approx(0.25)
    case.change(project)
    assert accuracy(optkit_here(*EVAL, cwd=project, cache=shared)) == pytest.approx(0.5)


def test_accuracy_follows_pictures_that_move_to_another_class_folder(
    tmp_path: Path, cache: Path, optkit_here: Optkit
) -> None:
    """With parts of optkit alone: `images` and `top1`."""
    random = np.random.default_rng(0)
    for split, count in (("train", 20), ("test", 25)):
        for name, channel in (("blue", 2), ("red", 0)):
            (tmp_path / split / name).mkdir(parents=True)
            for index in range(count):
                pixels = random.integers(0, 120, (8, 8, 3))
                pixels[..., channel] += 100
                file = tmp_path / split / name / f"{name}{index}.png"
                Image.fromarray(pixels.astype(np.uint8)).save(file)
    for index in range(10):  # twenty of fifty are in the wrong folder
        moved((f"test/red/red{index}.png", f"test/blue/red{index}.png"),
              (f"test/blue/blue{index}.png", f"test/red/blue{index}.png"))(tmp_path)  # fmt: skip
    weight = np.zeros((192, 2), np.float32)
    weight[128:, 0] = weight[:64, 1] = 0.1
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["image"], ["flat"]),
         helper.make_node("MatMul", ["flat", "w"], ["logits"])],
        "colours",
        [helper.make_tensor_value_info("image", floats, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("logits", floats, ["batch", 2])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "c.onnx")
    (tmp_path / "optkit.yaml").write_text(
        "name: colours\nmodel: {path: c.onnx}\n"
        "calibration: {source: images, args: {path: train, mean: 0.5, std: 0.25}}\n"
        "eval: {task: top1, args: {path: test, mean: 0.5, std: 0.25, k: 1}}\n"
        "gates: {max_drop: 100%}\n"
    )
    assert accuracy(optkit_here(*EVAL, cwd=tmp_path)) == pytest.approx(0.6)
    for index in range(10):
        moved((f"test/blue/red{index}.png", f"test/red/red{index}.png"),
              (f"test/red/blue{index}.png", f"test/blue/blue{index}.png"))(tmp_path)  # fmt: skip
    assert accuracy(optkit_here(*EVAL, cwd=tmp_path)) == pytest.approx(1.0)


MODEL = """\
import torch
from pathlib import Path
from safetensors.torch import load_file

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)

def create():
    net = Net()
    net.load_state_dict(load_file(str(Path(__file__).with_name("net.safetensors"))))
    return net
"""


def test_a_graph_follows_the_weights_that_its_factory_loads(
    tmp_path: Path, cache: Path, optkit_here: Optkit
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "optkit.yaml").write_text(
        "name: net\nmodel: {factory: model.py:create}\n"
        "inputs: {x: {dtype: float32, shape: [batch, 4]}}\n"
        "axes: {batch: {min: 1, opt: 2, max: 4}}\n"
    )
    for value, out in ((1.0, "one"), (2.0, "two"), (2.0, "hit")):
        arrays = {"layer.weight": np.full((2, 4), value, np.float32),
                  "layer.bias": np.zeros(2, np.float32)}  # fmt: skip
        if out != "hit":
            save_file(arrays, tmp_path / "net.safetensors")
        ran = optkit_here("export", "--out", tmp_path / out, "--json", cwd=tmp_path)
        assert ran.code == 0, ran.err
        model = onnx.load(tmp_path / out / "model.onnx")
        found = [onnx.numpy_helper.to_array(one) for one in model.graph.initializer]
        assert any(one.shape in ((2, 4), (4, 2)) and (one == value).all() for one in found)

"""Files that run code when they are loaded as pickles: nothing loads them, as a model, as weights,
as data, in a folder of a model or in an artifact."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.figures import Figures
from tests.hostile import onnx_files, pickles

Optkit = Callable[..., Any]

AS_MODEL = (
    "inspect FILE", "doctor FILE", "diff FILE FILE", "init FILE --force --out other.yaml",
    "plan FILE -t l4", "build FILE -t cpu -p fp32 --json", "bench FILE -t cpu",
)  # fmt: skip
AS_DATA = (
    "build --set model.weights=FILE -t cpu -p fp32 --json",
    "init model.py:create --weights FILE --out other.yaml",
    "build model.onnx -t cpu -p int8 --calibration FILE --json",
    "build model.onnx -t cpu -p fp32 --eval top1 --eval-data FILE --json",
    "build model.onnx -t cpu -p int8 --calib FILE --json",
)
IN_A_FOLDER = (
    "build FOLDER -t cpu -p fp32 --json", "plan FOLDER -t l4", "inspect FOLDER", "verify FOLDER",
    "build FOLDER --adapter FOLDER -t cpu -p fp32 --json", "generate FOLDER",
)  # fmt: skip
NAMES = ("pytorch_model.bin", "adapter_model.bin", "model.safetensors", "adapter_model.safetensors",
         "optimizer.pt", "training_args.bin")  # fmt: skip


def project(folder: Path) -> None:
    """A model as Python and as a graph, whose recipe names no weights."""
    onnx_files.save(onnx_files.plain_model(), folder)
    (folder / "model.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x + 1\n\n\ndef create():\n    return Net()\n"
    )
    (folder / "optkit.yaml").write_text(
        "name: net\nmodel: {factory: model.py:create}\n"
        "inputs: {x: {dtype: float32, shape: [batch, 4]}}\n"
    )


def as_folder(file: Path, folder: Path) -> None:
    """The file under each name that weights of a Hugging Face folder have."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama", "architectures": ["X"]}')
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    for name in NAMES:
        (folder / name).write_bytes(file.read_bytes())


def test_the_attacks_are_real(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    for path in pickles.write(tmp_path, canary).values():
        if path.suffix == ".pth":
            code = (
                "import pickle, sys, time; x = pickle.load(open(sys.argv[1], 'rb')); x and x.wait"
            )
            subprocess.run([sys.executable, "-c", code, path], check=False, capture_output=True)
            for _ in range(100):
                if canary.exists():
                    break
                subprocess.run(["sleep", "0.05"], check=True)  # one of them does not wait
            canary.unlink()  # fails where it does not exist


@pytest.mark.slow
def test_no_pickle_is_loaded(tmp_path: Path, optkit_here: Optkit, figures: Figures) -> None:
    canary, work = tmp_path / "canary", tmp_path / "work"
    work.mkdir()
    project(work)
    files = pickles.write(work, canary)
    chosen = list(files)[:: figures.times(12, 1)]
    done = 0
    for name in chosen:
        as_folder(files[name], work / "folder")
        for line in (*AS_MODEL, *AS_DATA, *IN_A_FOLDER):
            text = line.replace("FILE", files[name].name).replace("FOLDER", "folder")
            told = optkit_here(*text.split(), cwd=work, cache=tmp_path / "cache")
            unread = "init model.py" in text  # writes the name of the file into a recipe
            assert told.code in ((0, 2, 5) if unread else (2, 5)), f"{text}: {told.code} {told.err}"
            assert "Traceback" not in told.err
            assert not canary.exists(), text
            done += 1
    figures.tell(
        "malicious pickles", done,
        f"{len(chosen)} files: 10 ways to call a function (reduce, build, inst, getattr, nested …) "
        "in 7 containers (checkpoint, state_dict, .npy, .npz, .pt2, and under the names of "
        "safetensors and ONNX), each through 18 commands: refused, and no file of theirs appears",
    )  # fmt: skip

"""Libraries of operators compiled here, for ONNX Runtime and for TensorRT, and a classifier of
digits with one of the operators."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits

DOMAIN = "optkit.test"
PIXELS, LABELS = load_digits(return_X_y=True)
IMAGES = (PIXELS / 16).astype(np.float32).reshape(-1, 1, 8, 8)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """libbound.so: optkit.test::Bound(x) = x / (1 + |x|), which the standard calls Softsign."""
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    place = tmp_path_factory.mktemp("library") / "libbound.so"
    source = Path(__file__).with_name("bound.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", place, source, "-lm"], check=True)
    return place


def plugins(folder: Path, operator: str = "Bound", file: str = "libplugins.so") -> Path:
    """A library of TensorRT plugins with the creator of `operator`."""
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    source, place = Path(__file__).with_name("plugin.cpp"), folder / file
    command = ["g++", "-shared", "-fPIC", f'-DNAME="{operator}"', "-o", str(place), str(source)]
    subprocess.run(command, check=True)
    return place


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plugins(tmp_path_factory.mktemp("plugin"))


@pytest.fixture(scope="session")
def weights() -> list[np.ndarray]:
    """Two convolutions, and a linear classifier fitted to their features of 1,200 digits."""
    draw = np.random.default_rng(0)
    kernels = [draw.normal(0, n**-0.5, shape) for n, shape in
               ((9, (32, 1, 3, 3)), (288, (32, 32, 3, 3)))]  # fmt: skip
    kernels = [kernel.astype(np.float32) for kernel in kernels]
    import torch

    with torch.no_grad():
        x = torch.nn.functional.softsign(
            torch.conv2d(torch.tensor(IMAGES), torch.tensor(kernels[0]), padding=1)
        )
        x = torch.conv2d(x, torch.tensor(kernels[1]), padding=1, stride=2).relu().flatten(1)
    features, wanted = x.numpy()[:1200], np.eye(10)[LABELS[:1200]]
    solved = np.linalg.solve(features.T @ features + 0.1 * np.eye(512), features.T @ wanted)
    return [*kernels, solved.astype(np.float32)]


def classifier(weights: list[np.ndarray], operator: str, domain: str) -> onnx.ModelProto:
    """Convolution, the operator, convolution, Relu, product."""
    nodes = [
        helper.make_node("Conv", ["image", "w0"], ["c0"], "conv0", pads=[1, 1, 1, 1]),
        helper.make_node(operator, ["c0"], ["b0"], "bound0", domain=domain),
        helper.make_node("Conv", ["b0", "w1"], ["c1"], "conv1", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Flatten", ["r1"], ["f"], "flatten"),
        helper.make_node("MatMul", ["f", "w2"], ["logits"], "classify"),
    ]
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "digits",
        [helper.make_tensor_value_info("image", floats, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", floats, ["batch", 10])],
        [numpy_helper.from_array(weight, f"w{index}") for index, weight in enumerate(weights)],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.fixture
def project(tmp_path: Path, weights: list[np.ndarray], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with custom.onnx, standard.onnx (the same with Softsign) and samples.npz; the store
    is empty, so nothing is trusted."""
    monkeypatch.setenv("OPTKIT_CACHE", str(tmp_path / "cache"))
    onnx.save(classifier(weights, "Bound", DOMAIN), tmp_path / "custom.onnx")
    onnx.save(classifier(weights, "Softsign", ""), tmp_path / "standard.onnx")
    np.savez(tmp_path / "samples.npz", image=IMAGES[:256])
    return tmp_path

"""Model folders of MLflow. `tests/integrations/test_tracking.py` loads them with MLflow."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from optkit.facts.errors import UsageError
from optkit.facts.tensors import TensorInfo
from optkit.ground.artifact import Artifact
from optkit.road.packaging import formats, ort_settings
from optkit.road.packaging.variants import PackageSubject, Variant
from tests.packaging import tiny
from tests.packaging.identity import artifact, contents


def package(out: Path, *artifacts: Artifact) -> tuple[Path, tuple[str, ...]]:
    """The folder of the package, and its notes."""
    subject = PackageSubject("net", tuple(map(Variant, artifacts)))
    written = formats.package(subject, "mlflow", out)
    return Path(written.folder), written.notes


def mlmodel(folder: Path) -> Any:
    return YAML(typ="safe", pure=True).load((folder / "MLmodel").read_text())


def test_a_folder_says_how_the_graph_is_loaded(tmp_path: Path) -> None:
    inputs = (TensorInfo("ids", "int64", ("batch", "past + new")), TensorInfo("n", "float32", ()))
    built = artifact(tmp_path, "cpu", inputs=inputs, location="model.onnx.data",
                     content={"tokenizer.json": b"{}"})  # fmt: skip
    folder, notes = package(tmp_path / "packages", built)
    assert contents(folder).keys() == {
        "MLmodel", "conda.yaml", "extra_files/tokenizer.json", "input_example.json", "model.onnx",
        "model.onnx.data", "python_env.yaml", "requirements.txt", "serving_input_example.json",
    }  # fmt: skip
    model = mlmodel(folder)
    assert model["flavors"]["onnx"]["providers"] == ["CPUExecutionProvider"]
    assert model["flavors"]["onnx"]["onnx_session_options"] == {
        "graph_optimization_level": 99,
        "extra_session_config": {
            "optimization.disable_specified_optimizers": "MatMulAddFusion;WeightBiasQuantization"
        },
    }
    assert json.loads(model["signature"]["inputs"]) == [
        {"name": "ids", "type": "tensor", "tensor-spec": {"dtype": "int64", "shape": [-1, -1]}},
        {"name": "n", "type": "tensor", "tensor-spec": {"dtype": "float32", "shape": []}},
    ]
    example = json.loads((folder / "input_example.json").read_text())
    assert example == {"ids": [[0, 0]], "n": 0.0}
    assert notes == ()


def test_every_figure_has_its_evidence(tmp_path: Path) -> None:
    folder, notes = package(tmp_path / "packages", tiny.artifact(tmp_path))
    about = mlmodel(folder)["metadata"]["optkit"]
    assert (about["target"], about["precision"], about["gate"]) == ("l4", "int8", "pass")
    assert about["batch"] == "8" and "measured_on" not in about  # a prediction
    assert about["figures"]["accuracy_drop"] == {
        "value": 0.0011, "evidence": "simulated", "interval": [-0.0032, 0.0063],
    }  # fmt: skip
    assert all("evidence" in figure for figure in about["figures"].values())
    assert "which this format does not hold" in notes[0]


def test_a_graph_for_a_compiler_keeps_its_q_dq_on_the_cpu(tmp_path: Path) -> None:
    """A level above "basic" costs 13 dB where the provider is absent."""
    folder, notes = package(tmp_path / "packages", artifact(tmp_path, "h100-sxm", "int8"))
    flavor = mlmodel(folder)["flavors"]["onnx"]
    assert flavor["onnx_session_options"]["graph_optimization_level"] == 1
    assert flavor["providers"] == [
        "TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider",
    ]  # fmt: skip
    assert "onnxruntime-gpu" in (folder / "requirements.txt").read_text()
    assert "MLflow runs the graph on the CPU" in notes[0]
    floats, _ = package(tmp_path / "floats", artifact(tmp_path, "h100-sxm", "fp16"))
    options = mlmodel(floats)["flavors"]["onnx"]["onnx_session_options"]
    assert options["graph_optimization_level"] == 99


def test_onnx_runtime_opens_a_session_with_the_providers_of_every_backend(tmp_path: Path) -> None:
    """MLflow registers no plugin, so it cannot name one."""
    ort = pytest.importorskip("onnxruntime")
    model = artifact(tmp_path, "l4").model_path
    for device in ort_settings._DEVICES.values():
        with warnings.catch_warnings(action="ignore"):  # this wheel lacks most of them
            session = ort.InferenceSession(str(model), providers=[*device.built_in])
        assert session.get_providers() == ["CPUExecutionProvider"]
    folder, _ = package(tmp_path / "packages", artifact(tmp_path, "rtx4090"))
    assert mlmodel(folder)["flavors"]["onnx"]["providers"] == [
        "TensorrtExecutionProvider",
        "CUDAExecutionProvider",
        "CPUExecutionProvider",
    ]


def test_a_large_sample_is_no_example(tmp_path: Path) -> None:
    large = (TensorInfo("image", "float32", ("batch", 3, 1024, 1024)),)
    folder, notes = package(tmp_path / "packages", artifact(tmp_path, "cpu", inputs=large))
    assert not (folder / "input_example.json").exists()
    assert "saved_input_example_info" not in mlmodel(folder)
    assert notes == ("there is no input example, because one sample is large",)


def test_what_the_format_cannot_hold_is_refused(tmp_path: Path) -> None:
    pair = [artifact(tmp_path, name) for name in ("cpu", "l4")]
    with pytest.raises(UsageError, match="holds one artifact, and this is a fleet for cpu, l4"):
        package(tmp_path / "packages", *pair)
    half = (TensorInfo("x", "bfloat16", ("batch", 4)),)
    with pytest.raises(UsageError, match="cannot say the dtype bfloat16") as refused:
        package(tmp_path / "packages", tiny_with(tmp_path, half))
    assert refused.value.where is not None and refused.value.where.endswith("model.onnx: x")
    assert not (tmp_path / "packages").exists()


def tiny_with(out: Path, inputs: tuple[TensorInfo, ...]) -> Artifact:
    """A tiny artifact whose manifest declares other inputs than its graph has."""
    built = tiny.artifact(out)
    return Artifact(built.path, replace(built.manifest, inputs=inputs))


def test_a_graph_for_vnni_says_what_other_cpus_need(tmp_path: Path) -> None:
    built = artifact(tmp_path, "cpu")
    vnni = Artifact(built.path, replace(built.manifest, instruction_set="vnni"))
    _, (note,) = package(tmp_path / "packages", vnni)
    assert "for CPUs with VNNI" in note and "session.x64quantprecision" in note


def test_the_same_artifact_gives_the_same_bytes(tmp_path: Path) -> None:
    built = artifact(tmp_path, "cpu")
    first, _ = package(tmp_path / "one", built)
    second, _ = package(tmp_path / "two", built)
    assert contents(first) == contents(second)
    assert mlmodel(first)["model_uuid"] == built.digest[:32]

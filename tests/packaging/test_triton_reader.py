"""Configurations for Triton, read by its own protobuf, and the graphs that they name, run with
their options."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.facts.tensors import Feed, TensorInfo
from optkit.ground.artifact import Artifact
from optkit.ground.data import parts
from optkit.ground.runtimes import SessionOptions, simulator
from optkit.road.packaging import formats
from optkit.road.packaging.triton.pbtxt import Symbol
from optkit.road.packaging.triton.served import ServedModel, served
from optkit.road.packaging.variants import PackageSubject, Variant
from tests.conftest import Optkit
from tests.environments import environment
from tests.packaging.nets import DTYPES, artifact, graph, manifest, report, row

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def read() -> Callable[[Sequence[str]], list[Any]]:
    """Configurations as Triton's protobuf reads them: the fields that are set, or the error."""
    python = environment("tritonclient-grpc", "tritonclient[grpc]==2.73.0")

    def parse(texts: Sequence[str]) -> list[Any]:
        done = subprocess.run(
            [python, Path(__file__).with_name("protobuf.py")], input=json.dumps(list(texts)),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found: list[Any] = json.loads(done.stdout)
        return found

    return parse


def said(value: Any) -> Any:
    """A message as its reader gives it back: without scalars that have the default."""
    if is_dataclass(value):
        given = {field.name: getattr(value, field.name) for field in fields(value)}
        kept = {n: v for n, v in given.items() if v not in (None, (), {}, "", 0) or v is True}
        return {name: said(item) for name, item in kept.items()}
    if isinstance(value, Mapping):
        return {key: said(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [said(item) for item in value]
    return str(value) if isinstance(value, Symbol) else value


def check_rules(config: Mapping[str, Any], folder_name: str) -> None:
    """What Triton's core and backends check when they load a model (ValidateModelConfig,
    ValidateIOShape, ValidateInstanceGroup, GenerateWarmupData)."""
    assert config["name"] == folder_name
    largest = config.get("max_batch_size", 0)
    ensemble = config["platform"] == "ensemble"
    pairs = {("onnxruntime_onnx", "onnxruntime"), ("tensorrt_plan", "tensorrt"),
             ("ensemble", None)}  # fmt: skip
    assert (config["platform"], config.get("backend")) in pairs
    assert config["version_policy"]
    for tensor in (*config["input"], *config["output"]):
        assert tensor["name"] and tensor["data_type"] != "TYPE_INVALID"
        assert tensor["dims"] and all(dim == -1 or dim >= 1 for dim in tensor["dims"])
        if "reshape" in tensor:  # to no axis but the batch
            assert largest > 0 and tensor["dims"] == [1] and not tensor["reshape"].get("shape")
    batches = config.get("dynamic_batching", {}).get("preferred_batch_size", [])
    assert all(0 < batch <= largest for batch in batches)
    if ensemble:
        assert not config.keys() & {"instance_group", "optimization", "model_warmup"}
        return
    [group] = config["instance_group"]
    assert group["kind"] in ("KIND_CPU", "KIND_GPU")
    assert "profile" not in group or config["platform"] == "tensorrt_plan"
    dims = {tensor["name"]: tensor["dims"] for tensor in config["input"]}
    for sample in config.get("model_warmup", []):
        assert 1 <= sample["batch_size"] <= max(largest, 1)
        assert sample["inputs"].keys() == dims.keys()
        for name, one in sample["inputs"].items():
            assert len(one["dims"]) == len(dims[name]) and all(size >= 1 for size in one["dims"])
            fixed = zip(one["dims"], dims[name], strict=True)
            assert all(dim in (-1, size) for size, dim in fixed)


AXIS_NAMES = ("batch", "batch", "batch", "width", "n")
DIMS = st.one_of(st.integers(1, 9), st.sampled_from(AXIS_NAMES))
SHAPES = st.one_of(
    st.lists(DIMS, max_size=4), st.lists(DIMS, max_size=3).map(lambda rest: ["batch", *rest])
).map(tuple)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9)
SPANS = st.lists(st.integers(1, 64), min_size=3, max_size=3).map(sorted)
TENSOR = st.tuples(NAMES, st.sampled_from([d for d in DTYPES if "float8" not in d]), SHAPES)
SIGNATURES = st.tuples(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
    st.lists(TENSOR, min_size=2, max_size=6, unique_by=lambda tensor: tensor[0]),
    st.dictionaries(st.sampled_from(("batch", "width", "n")), SPANS),
    st.sampled_from(["cpu", "l4"]),
)


def test_500_signatures_are_read_back_as_they_are(
    read: Callable[[Sequence[str]], list[Any]], tmp_path: Path
) -> None:
    made: list[tuple[ServedModel, list[TensorInfo], list[TensorInfo]]] = []
    file = tmp_path / "model.onnx"
    (tmp_path / "report.json").write_bytes(report([row(1, 1.0), row(8, 3.0)], None))
    listed = artifact(tmp_path / "listed").manifest.files

    @settings(max_examples=500)
    @given(SIGNATURES)
    def serve(signature: Any) -> None:
        name, tensors, spans, target = signature
        infos = [TensorInfo(*one) for one in tensors]
        inputs, outputs = infos[:-1], infos[-1:]
        file.write_bytes(graph(inputs, outputs))
        axes = {
            axis: dict(zip(("min", "opt", "max"), span, strict=True))
            for axis, span in spans.items()
        }
        one = manifest(target, inputs=tuple(inputs), outputs=tuple(outputs),
                       recipe={"axes": axes}, files=listed)  # fmt: skip
        made.append((served(name, Variant(Artifact(tmp_path, one)), "model"), inputs, outputs))

    serve()
    assert len(made) >= 500
    parsed = read([one.text for one, _, _ in made])
    for (one, inputs, outputs), found in zip(made, parsed, strict=True):
        assert isinstance(found, dict), (one.text, found)
        assert found == said(one.config)
        check_rules(found, one.config.name)
        check_dims(found, inputs, outputs)


def check_dims(
    config: Mapping[str, Any], inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]
) -> None:
    """The full shape of every tensor, as ONNX Runtime's backend compares it with the graph's."""
    batched = config.get("max_batch_size", 0) > 0
    for group, infos in (("input", inputs), ("output", outputs)):
        for tensor, info in zip(config[group], infos, strict=True):
            shape = [size if isinstance(size, int) else -1 for size in info.shape]
            seen = tensor["reshape"].get("shape", []) if "reshape" in tensor else tensor["dims"]
            whole = [-1, *seen] if batched else seen
            assert tensor["name"] == info.name
            assert whole == (shape or [1])  # ONNX Runtime's backend makes a scalar of [1]


def graph_infos(file: Path) -> tuple[list[TensorInfo], list[TensorInfo]]:
    """Inputs and outputs, read by the onnx library."""
    loaded = onnx.load(file, load_external_data=False).graph
    given = {one.name for one in loaded.initializer}
    return tuple(  # type: ignore[return-value]
        [TensorInfo(v.name, "", tuple(d.dim_param or d.dim_value for d in
                                      v.type.tensor_type.shape.dim))
         for v in values if v.name not in given]
        for values in (loaded.input, loaded.output)
    )  # fmt: skip


LEVELS = {
    -1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    0: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def run(config: Mapping[str, Any], folder: Path, feed: Feed) -> Feed:
    """The packaged graph in plain ONNX Runtime, with the options of the configuration."""
    options = onnxruntime.SessionOptions()
    level = config.get("optimization", {}).get("graph", {}).get("level", 0)
    options.graph_optimization_level = LEVELS[level]
    parameters = config["parameters"]
    if (threads := parameters.get("intra_op_thread_count")) is not None:
        options.intra_op_num_threads = int(threads["string_value"])
    session = onnxruntime.InferenceSession(
        folder / "1" / config["default_model_filename"], options,
        providers=["CPUExecutionProvider"],
    )  # fmt: skip
    wanted = [tensor["name"] for tensor in config["output"]]
    return dict(zip(wanted, session.run(wanted, feed), strict=True))


@pytest.mark.parametrize("recipe", ["digits-vit", "house-numbers"])
def test_a_fleet_end_to_end(
    recipe: str,
    read: Callable[[Sequence[str]], list[Any]],
    optkit_apart: Optkit,
    tmp_path: Path,
    cache: Path,
) -> None:
    pytest.importorskip("tensorrt_rtx")
    quick = ("calibration.samples=16", "bench.seconds=0.1", "bench.warmup_seconds=0",
             "eval.stop_early=true")  # fmt: skip
    built = optkit_apart(
        "build", "--recipe", recipe, "--target", "l4,cpu", "--precision", "int8",
        *(part for one in quick for part in ("--set", one)), "--out", tmp_path, "--json",
        cache=cache,
    )  # fmt: skip
    assert built.code == 0, built.err
    fleet = Path(built.json["fleet"])
    packed = optkit_apart("package", fleet, "--format", "triton", "--out", tmp_path, "--json")
    assert packed.code == 0, packed.err
    folder = Path(packed.json["folder"]) / recipe
    texts = {name: (folder / "configs" / f"{name}.pbtxt").read_text() for name in ("l4", "cpu")}
    for name, config in zip(texts, read([*texts.values()]), strict=True):
        assert isinstance(config, dict), config
        check_rules(config, recipe)
        check_dims(config, *graph_infos(folder / "1" / config["default_model_filename"]))
        assert config["max_batch_size"] == {"digits-vit": 32, "house-numbers": 64}[recipe]
        one = Artifact.load(tmp_path / f"{recipe}-{name}-int8")
        [info] = one.manifest.inputs
        rng = np.random.default_rng(0)
        feed = {info.name: rng.normal(size=(5, *info.shape[1:])).astype(np.float32)}
        found = run(config, folder, feed)
        # here, the artifact for the L4 would run another graph: its simulation
        own = (one.session() if name == "cpu"
               else simulator().session(one.model_path, SessionOptions(level="basic")))  # fmt: skip
        with own as session:
            expected = session.run(feed)
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[key], expected[key]) for key in found), name


def test_an_ensemble_runs_encoder_and_decoder(
    read: Callable[[Sequence[str]], list[Any]], optkit_here: Optkit, tmp_path: Path, cache: Path
) -> None:
    pytest.importorskip("transformers")
    from tests.generation import speakers

    speakers.write("bart", tmp_path / "bart", wide=False)
    (tmp_path / "optkit.yaml").write_text(
        "name: bart\nmodel: {path: bart}\nbench: {seconds: 0.1, warmup_seconds: 0, batches: [1]}\n"
    )
    built = optkit_here("build", "--target", "cpu", "--precision", "fp32", "--json",
                        cwd=tmp_path, cache=cache)  # fmt: skip
    assert built.code == 0, built.err
    one = Artifact.load(tmp_path / built.json["artifact"])
    folder = Path(
        formats.package(PackageSubject.of(one.path, parts=True), "triton", tmp_path / "out").folder
    )
    found = dict(zip(
        ("bart", "bart-encoder", "bart-decoder"),
        read([(folder / name / "config.pbtxt").read_text()
              for name in ("bart", "bart-encoder", "bart-decoder")]),
        strict=True,
    ))  # fmt: skip
    for name, config in found.items():
        assert isinstance(config, dict), config
        check_rules(config, name)
    assert [*(folder / "bart" / "1").iterdir()] == [folder / "bart" / "1" / "README"]
    rng = np.random.default_rng(0)
    decoder = one.parts["decoder"].manifest
    empty = {info.name: np.zeros((2, *info.shape[1:2], 0, *info.shape[3:]), info.dtype)
             for info in decoder.inputs if ".decoder." in info.name}  # fmt: skip
    feed = {
        "input_ids": rng.integers(3, 99, (2, 6)), "attention_mask": np.ones((2, 6), np.int64),
        "decoder_input_ids": rng.integers(3, 99, (2, 3)), **empty,
    }  # fmt: skip
    tensors = {t["name"]: feed[t["name"]] for t in found["bart"]["input"]}
    assert tensors.keys() == feed.keys()
    for step in found["bart"]["ensemble_scheduling"]["step"]:
        inputs = {inner: tensors[outer] for inner, outer in step["input_map"].items()}
        outputs = run(found[step["model_name"]], folder / step["model_name"], inputs)
        tensors |= {outer: outputs[inner] for inner, outer in step["output_map"].items()}
    whole = {name: feed[name] for name in ("input_ids", "attention_mask", "decoder_input_ids")}
    with one.parts["encoder"].session() as encoder, one.parts["decoder"].session() as second:
        encoded = encoder.run(parts.of_encoder(whole))
        expected = encoded | second.run(parts.of_decoder(whole, encoded) | empty)
    assert {tensor["name"] for tensor in found["bart"]["output"]} == expected.keys()
    assert all(np.array_equal(tensors[name], expected[name]) for name in expected)

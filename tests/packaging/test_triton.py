"""Model repositories for Triton: what is in them, and where each value comes from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from ruamel.yaml import YAML

from optkit.facts.documents.package import Package
from optkit.facts.errors import UsageError
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import DevicePhases, PhaseTimes
from optkit.facts.tensors import TensorInfo
from optkit.ground.artifact import Artifact, write
from optkit.road.packaging import formats
from optkit.road.packaging.triton.batching import batching
from optkit.road.packaging.triton.releases import table
from optkit.road.packaging.triton.served import ServedModel, served
from optkit.road.packaging.variants import PackageSubject, Variant
from tests.packaging.nets import AXES, WEIGHT, Y, artifact, graph, manifest, row, with_engine


def package(out: Path, *artifacts: Artifact) -> tuple[Path, Package]:
    subject = PackageSubject("net", tuple(Variant(one) for one in artifacts))
    written = formats.package(subject, "triton", out)
    return Path(written.folder), written


def model(tmp_path: Path, one: Artifact) -> ServedModel:
    return served("net", Variant(one), "model")


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


# --- one artifact, fleets -------------------------------------------------------------------------

BESIDE = {"inferenceservice.yaml", "model_analyzer.yaml", "optkit-package.json"}
CPU_TEXT = """\
name: "net"
platform: "onnxruntime_onnx"
backend: "onnxruntime"
max_batch_size: 32
input {
  name: "x"
  data_type: TYPE_FP32
  dims: [ 4 ]
}
output {
  name: "y"
  data_type: TYPE_FP32
  dims: [ 4 ]
}
version_policy {
  latest {
    num_versions: 1
  }
}
# 8 is the tuned batch; by batch, of ONNX Runtime: 1: 1 ms (measured), 8: 2 ms (measured)
# delay 2000 us: min(t8, (8 + 1) / 2 * t1 - t8), if that is positive
dynamic_batching {
  preferred_batch_size: [ 8 ]
  max_queue_delay_microseconds: 2000
}
instance_group {
  kind: KIND_CPU
  count: 1
}
default_model_filename: "model.onnx"
"""


def test_an_artifact_is_a_model_with_one_configuration(tmp_path: Path) -> None:
    folder, written = package(
        tmp_path / "out", artifact(tmp_path, rows=[row(1, 1.0), row(8, 2.0)], precision="fp32")
    )
    assert names(folder) == {
        "net/config.pbtxt", "net/1/model.onnx", *BESIDE
    }  # fmt: skip
    text = (folder / "net" / "config.pbtxt").read_text()
    assert text.startswith(CPU_TEXT)
    assert (folder / "net" / "1" / "model.onnx").read_bytes() == graph()
    assert written.notes == ("cpu: the graph has opset 21, which Triton runs from 24.05 on",)
    search = YAML(typ="safe").load(folder / "model_analyzer.yaml")
    assert search == {
        "model_repository": ".", "run_config_search_mode": "quick",
        "run_config_search_max_model_batch_size": 32, "profile_models": {"net": {}},
    }  # fmt: skip


def test_a_fleet_has_a_configuration_per_target(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.arange(4, dtype=np.float32), WEIGHT)
    data = weight.raw_data
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="model.onnx.data")
    far = {"model.onnx": graph(weight=weight), "model.onnx.data": data}
    folder, written = package(
        tmp_path / "out", artifact(tmp_path, "l4", content=far), artifact(tmp_path, "cpu")
    )
    assert names(folder) - BESIDE == {
        "net/config.pbtxt", "net/configs/l4.pbtxt", "net/configs/cpu.pbtxt",
        "net/1/l4.onnx", "net/1/l4.onnx.data", "net/1/cpu.onnx",
    }  # fmt: skip
    texts = {name: (folder / "net" / "configs" / f"{name}.pbtxt").read_text()
             for name in ("l4", "cpu")}  # fmt: skip
    assert (folder / "net" / "config.pbtxt").read_text() == texts["cpu"]
    assert 'default_model_filename: "l4.onnx"' in texts["l4"] and "KIND_GPU" in texts["l4"]
    loaded = onnx.load(folder / "net" / "1" / "l4.onnx")
    assert np.array_equal(numpy_helper.to_array(loaded.graph.initializer[0]), np.arange(4))
    assert "--model-config-name=TARGET; without it, the configuration of cpu" in written.notes[0]


def test_a_service_of_kserve_for_each_target(tmp_path: Path) -> None:
    content = {"model.onnx": graph(opset=23)}
    built = (artifact(tmp_path, "l4"), artifact(tmp_path, "cpu", content=content))
    subject = PackageSubject("My_net", tuple(Variant(one) for one in built))
    folder = Path(formats.package(subject, "triton", tmp_path / "out").folder)
    gpu, cpu = YAML(typ="safe").load_all(folder / "inferenceservice.yaml")
    assert gpu == {
        "apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
        "metadata": {"name": "my-net-l4"},
        "spec": {"predictor": {"model": {
            "modelFormat": {"name": "triton"}, "protocolVersion": "v2",
            "runtimeVersion": "24.05-py3", "storageUri": "pvc://VOLUME/My_net-triton",
            "args": ["--model-config-name=l4"],
            "resources": {"limits": {"nvidia.com/gpu": "1"}},
        }}},
    }  # fmt: skip
    served_on_cpu = cpu["spec"]["predictor"]["model"]
    assert served_on_cpu["runtimeVersion"] == "26.02-py3" and "resources" not in served_on_cpu
    folder, _ = package(tmp_path / "one", built[1])
    one = YAML(typ="safe").load(folder / "inferenceservice.yaml")
    assert "args" not in one["spec"]["predictor"]["model"]


def test_labels_are_those_of_the_classes_of_the_one_output_that_has_them(tmp_path: Path) -> None:
    config = {
        "config.json": json.dumps({"id2label": {"1": "b", "0": "a", "2": "c", "3": "d"}}).encode()
    }
    folder, _ = package(tmp_path / "out", artifact(tmp_path, content=config))
    assert (folder / "net" / "labels.txt").read_text() == "a\nb\nc\nd\n"
    assert 'label_filename: "labels.txt"' in (folder / "net" / "config.pbtxt").read_text()
    few = {"config.json": json.dumps({"id2label": {"0": "a"}}).encode()}
    assert model(tmp_path, artifact(tmp_path, content=few)).beside == {}


def test_what_triton_does_not_run_on_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Triton does not run on Apple M2 Max"):
        package(tmp_path / "out", artifact(tmp_path, "apple-m2-max"))
    assert not (tmp_path / "out").exists()


# --- engines and graphs --------------------------------------------------------------------------


def test_an_engine_of_a_known_tensorrt_is_packaged(tmp_path: Path) -> None:
    one = with_engine(tmp_path, "tensorrt", "11.0.0.114")
    found = model(tmp_path, one)
    assert found.files == {"model.plan": one.path / "tensorrt.engine"}
    config = found.config
    assert (config.platform, config.backend) == ("tensorrt_plan", "tensorrt")
    assert config.instance_group[0].profile == ("0",) and config.optimization is None
    assert "runs in no other version: use Triton 26.06" in found.notes[0]


def test_the_version_is_that_of_the_machine_that_finished_the_build(tmp_path: Path) -> None:
    one = with_engine(tmp_path, "tensorrt", "10.16.1.11", finished={"tensorrt": "11.0.0.114"})
    assert [*model(tmp_path, one).files] == ["model.plan"]


def test_cuda_graphs_only_where_latency_was_measured_with_them(tmp_path: Path) -> None:
    times = PhaseTimes(0.1, 1.0, 0.1, 0.1, runs=9)
    rows = [row(8, 1.0, phases=DevicePhases(times, times))]
    optimization = model(tmp_path, with_engine(tmp_path, "tensorrt", "11.0.0", rows=rows)).config
    assert optimization.optimization is not None and optimization.optimization.cuda is not None


@pytest.mark.parametrize(
    ("backend", "version", "reason"),
    [
        ("tensorrt-rtx", "1.7.1.116", "Triton does not load engines of tensorrt-rtx"),
        (
            "tensorrt",
            "10.16.1.11",
            "to have the engine's TensorRT 10.16.1.11 (known: 8.6.3 in 24.02,",
        ),
        ("tensorrt", "11.0.1.2", "known to have the engine's TensorRT 11.0.1.2"),
    ],
)
def test_without_an_engine_for_triton_the_graph_gets_the_accelerator(
    backend: str, version: str, reason: str, tmp_path: Path
) -> None:
    given = with_engine(tmp_path, backend, version)
    found = model(tmp_path, given)
    assert [*found.files] == ["model.onnx"]
    optimization = found.config.optimization
    assert optimization is not None and optimization.execution_accelerators is not None
    [accelerator] = optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.name == "tensorrt"
    assert accelerator.parameters == {
        "max_workspace_size_bytes": str(1 << 30), "trt_builder_optimization_level": "5",
        "trt_engine_cache_enable": "true",
        "trt_engine_cache_path": f"/var/cache/optkit-{given.digest[:16]}",
        "trt_profile_min_shapes": "x:1x4", "trt_profile_opt_shapes": "x:8x4",
        "trt_profile_max_shapes": "x:32x4",
    }  # fmt: skip
    assert optimization.graph is not None and optimization.graph.level == -1
    [note] = [note for note in found.notes if "compiles the graph" in note]
    assert reason in note


def test_the_level_is_the_one_of_the_metadata(tmp_path: Path) -> None:
    for level, asked in (("all", None), ("basic", -1)):
        content = {"model.onnx": graph(optimization_level=level)}
        found = model(tmp_path, artifact(tmp_path / level, content=content)).config.optimization
        assert (found and found.graph and found.graph.level) == asked


def test_notes_for_cpus(tmp_path: Path) -> None:
    one = artifact(tmp_path, instruction_set="vnni", content={"model.onnx": graph(opset=23)})
    notes = " ".join(model(tmp_path, one).notes)
    for said in ("opset 23, which Triton runs from 26.02 on", "CPUs with VNNI only",
                 "MatMulAddFusion and WeightBiasQuantization, which Triton cannot"):  # fmt: skip
        assert said in notes


def test_the_threads_are_those_of_the_measurement(tmp_path: Path) -> None:
    recipe = {"name": "net", "axes": AXES, "bench": {"threads": 3}}
    parameters = model(tmp_path, artifact(tmp_path, recipe=recipe)).config.parameters
    assert parameters["intra_op_thread_count"].string_value == "3"


# --- inputs and outputs --------------------------------------------------------------------------


def of(tmp_path: Path, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo],
       axes: Mapping[str, object]) -> ServedModel:  # fmt: skip
    given = {"inputs": tuple(inputs), "outputs": tuple(outputs), "recipe": {"axes": axes}}
    content = {"model.onnx": graph(inputs, outputs)}
    return model(tmp_path, artifact(tmp_path, content=content, **given))


@pytest.mark.parametrize(
    ("shapes", "axes", "batch", "dims", "why"),
    [
        ([("batch", 3, "width"), ("batch", 2)], AXES, 32, [(3, -1), (2,)], None),
        ([("batch",), ("batch", 2)], AXES, 32, [(1,), (2,)], None),
        ([(4, 3), (4, 2)], AXES, 0, [(4, 3), (4, 2)], "not the same dynamic axis"),
        ([("batch", 3), ()], AXES, 0, [(-1, 3), (1,)], "not the same dynamic axis"),
        ([("batch", 3), ("n", 3)], AXES, 0, [(-1, 3), (-1, 3)], "not the same dynamic axis"),
        ([("batch", 3), ("batch", 3)], {}, 0, [(-1, 3), (-1, 3)], "has no range"),
        ([("batch", 3), ("batch", 3)], {"batch": {"min": 4, "opt": 8, "max": 8}}, 0,
         [(-1, 3), (-1, 3)], "at least 4 samples"),
        ([(), ()], {}, 0, [(1,), (1,)], "not the same dynamic axis"),
    ],
)  # fmt: skip
def test_dims_and_batches(
    shapes: Any, axes: Any, batch: int, dims: Any, why: str | None, tmp_path: Path
) -> None:
    taken, made = (TensorInfo(n, "float32", s) for n, s in zip("xy", shapes, strict=True))
    found = of(tmp_path, [taken], [made], axes)
    config = found.config
    assert config.max_batch_size == batch
    assert [config.input[0].dims, config.output[0].dims] == dims
    assert (config.dynamic_batching is not None) == (batch > 1)
    assert why is None or why in found.comments["max_batch_size"]
    squeezed = batch > 0 and len(shapes[0]) == 1
    assert (config.input[0].reshape is not None) == squeezed


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        (TensorInfo("x", "float8_e4m3fn", (2,)), "Triton has no data type for float8_e4m3fn"),
        (TensorInfo("x", "float32", ("batch", 0)), "no tensors without elements"),
    ],
)
def test_what_triton_cannot_say_is_refused_with_the_tensor(
    info: TensorInfo, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=reason) as refused:
        of(tmp_path, [info], [Y], AXES)
    assert "input 'x'" in str(refused.value.where)


def test_a_decoder_keeps_its_cache_outside(tmp_path: Path) -> None:
    axes = {name: {"min": 1, "opt": size, "max": 64}
            for name, size in (("batch", 1), ("sequence", 4), ("past", 12))}  # fmt: skip
    inputs = [TensorInfo("input_ids", "int64", ("batch", "sequence")),
              *(TensorInfo(f"past_key_values.0.{what}", "float16", ("batch", 2, "past", 16))
                for what in ("key", "value"))]  # fmt: skip
    outputs = [TensorInfo("logits", "float16", ("batch", "sequence", 99)),
               *(TensorInfo(f"present.0.{what}", "float16", ("batch", 2, "past + sequence", 16))
                 for what in ("key", "value"))]  # fmt: skip
    found = of(tmp_path, inputs, outputs, axes)
    assert [t.dims for t in found.config.input] == [(-1,), (2, -1, 16), (2, -1, 16)]
    assert "send each output present.* as the input past_key_values.*" in " ".join(found.notes)
    assert found.shapes == ("input_ids:4", "past_key_values.0.key:2,12,16",
                            "past_key_values.0.value:2,12,16")  # fmt: skip
    assert found.config.model_warmup[0].inputs["past_key_values.0.key"].dims == (2, 12, 16)


# --- batches -------------------------------------------------------------------------------------


def test_the_delay_costs_requests_that_arrive_together_nothing() -> None:
    """The mean answer of b requests, one after another and in a batch after the delay."""
    sweep = [row(1, 0.5), row(4, 1.0), row(8, 1.75)]
    found = batching(sweep, 8, 32, "the engine")
    assert found is not None and found.known
    delay, b = found.settings.max_queue_delay_microseconds / 1000, 8
    alone = sum(0.5 * place for place in range(1, b + 1)) / b
    assert delay + 1.75 == pytest.approx(alone)
    assert found.settings.preferred_batch_size == (4, 8)


@pytest.mark.parametrize(
    ("sweep", "tuned", "largest", "preferred", "delay"),
    [
        ([row(1, 1.0), row(8, 1.0)], 8, 8, (8,), 1000),  # no longer than a batch runs
        ([row(1, 1.0), row(8, 8.0)], 8, 8, (8,), 0),  # a batch gains nothing
        ([row(8, 1.0)], 8, 8, (8,), 0),
        ([row(1, 1.0), row(4, 1.0), row(16, 5.0)], 8, 32, (4, 8), 0),  # 8 is not in the sweep
        ([row(1, 1.0), row(64, 2.0)], 1, 8, (), 0),  # 64 is too large
    ],
)
def test_preferred_batches_and_delay(
    sweep: list[Any], tuned: int, largest: int, preferred: tuple[int, ...], delay: int
) -> None:
    found = batching(sweep, tuned, largest, "the engine")
    assert found is not None
    assert found.settings.preferred_batch_size == preferred
    assert found.settings.max_queue_delay_microseconds == delay
    assert batching(sweep, tuned, 1, "the engine") is None


def test_the_comment_says_how_each_figure_is_known() -> None:
    sweep = [row(8, 0.25, Evidence.PREDICTED), row(16, 0.5, marks=("the clock fell",))]
    found = batching(sweep, 8, 32, "the tensorrt-rtx engine")
    assert found is not None
    assert found.why.splitlines() == [
        (
            "8 is the tuned batch; by batch, of the tensorrt-rtx engine: 8: 0.25 ms (predicted), "
            "16: 0.5 ms (measured; the clock fell)"
        ),
        "delay 0: the latency at batch 1 is not known",
    ]


# --- the table of releases -----------------------------------------------------------------------


def test_the_table_has_every_month_and_a_source_for_each_tensorrt() -> None:
    months = [f"{year}.{month:02}" for year in (24, 25, 26) for month in range(1, 13)]
    assert [*table().releases] == months[: months.index("26.10") + 1]
    assert all((r.tensorrt is None) == (r.source is None) for r in table().releases.values())
    versions = [[int(part) for part in r.onnxruntime.split(".")]
                for r in table().releases.values() if r.onnxruntime]  # fmt: skip
    assert versions == sorted(versions)
    assert table().first_with_opset(99) is None


def test_two_graphs_of_which_none_reads_the_other_are_refused(tmp_path: Path) -> None:
    inner = artifact(tmp_path / "parts", "cpu")
    files: dict[str, Path | bytes] = {
        f"{part}/{file}": inner.path / file
        for part in ("encoder", "decoder") for file in (*inner.manifest.files, "manifest.json")
    }  # fmt: skip
    digests = {"encoder": inner.digest, "decoder": inner.digest}
    whole = write(tmp_path, manifest("cpu", parts=digests), files)
    with pytest.raises(UsageError, match="net-decoder reads no output of net-encoder"):
        package(tmp_path / "out", whole)


def test_a_slim_copy_has_the_latency_of_the_result_alone(tmp_path: Path) -> None:
    whole = with_engine(tmp_path, "tensorrt-rtx", "1.7.1.116", rows=[row(1, 1.0), row(8, 2.0)])
    slim = formats.package(PackageSubject("net", (Variant(whole),)), "slim", tmp_path / "out")
    [copy] = PackageSubject.of(Path(slim.folder)).variants
    found = served("net", copy, "model")
    assert "8: 0.25 ms (predicted)" in found.comments["dynamic_batching"]
    optimization = found.config.optimization
    assert optimization is not None and optimization.execution_accelerators is not None
    [accelerator] = optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.parameters == {
        "trt_engine_cache_enable": "true",
        "trt_engine_cache_path": f"/var/cache/optkit-{whole.digest[:16]}",
        "trt_profile_min_shapes": "x:1x4", "trt_profile_opt_shapes": "x:8x4",
        "trt_profile_max_shapes": "x:32x4",
    }  # fmt: skip

"""ONNX Runtime's other providers: options by their documented names, refusals with the CPU wheel,
and the same code with the CPU's provider. experiments/gpu/check.py tests a real GPU."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from optkit.craft.backends import ort_providers
from optkit.craft.backends.bound_session import BoundSession
from optkit.craft.backends.onnxruntime import OnnxRuntime, native_options
from optkit.craft.backends.ort_providers import CoreMLProvider, CudaProvider, TensorRTProvider
from optkit.craft.backends.ort_session import CPU, Providers
from optkit.craft.backends.tensorrt import TensorRT
from optkit.facts.codec import from_json, to_json
from optkit.facts.engines import Engine
from optkit.facts.errors import Impossible, InputRefused, ToolchainMissing
from optkit.facts.evidence import Evidence
from optkit.facts.precisions import PRECISIONS
from optkit.facts.tensors import AxisRange, TensorInfo
from optkit.ground import artifact
from optkit.ground.artifact import Manifest, reader
from optkit.ground.devices import Gpu, Target, target
from optkit.ground.runtimes import SessionOptions, backend
from optkit.ground.store import Store, eviction
from optkit.ground.store.leases import IN_USE_SECONDS

KNOWN = json.loads((Path(__file__).parent / "api" / "onnxruntime-providers.json").read_text())
ALL = (CudaProvider(), TensorRTProvider(), CoreMLProvider())
OUT = "conv.relu.y"
INPUTS = (TensorInfo("x", "float32", ("batch", 8, 16, 16)),)


class Here(CudaProvider):
    """The CPU's provider, taken for that of a device."""

    name, provider, device = "onnxruntime-here", "CPUExecutionProvider", "cpu"

    def check_here(self, target: str | None, where: str) -> None: ...

    def providers(
        self,
        target: Target | None,
        cuda_graph: bool,
        kept: Path | None = None,
        compiled: Path | None = None,
    ) -> Providers:
        self.folders = kept, compiled
        return (CPU,)


@pytest.fixture
def model(net: Any, tmp_path: Path) -> Path:
    return convolution(net, tmp_path / "m.onnx", "batch")


def convolution(net: Any, path: Path, batch: int | str) -> Path:
    build = net(carrier="float32", activation="uint8")
    y = build.conv("x", "conv", 8, 16, relu=True)
    return Path(build.write(path, y, (batch, 8, 16, 16), (batch, 16, 16, 16)))


# ── options ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("one", ALL)
@pytest.mark.parametrize("device", [None, "l4", "h100", "apple-m2-max"])
def test_options_have_the_names_that_the_library_reads(
    one: CudaProvider, device: str | None, tmp_path: Path
) -> None:
    asked = one.providers(
        target(device) if device else None, one.device == "cuda", tmp_path, tmp_path
    )
    assert asked[0][0] == one.provider and asked[-1] == CPU
    for name, settings in asked:
        assert set(settings) <= set(KNOWN[name])
        assert all(isinstance(value, str) for value in settings.values())


def test_limits_come_from_the_target() -> None:
    (cuda, options), _ = CudaProvider().providers(target("l4"), False, None)
    assert options["gpu_mem_limit"] == str(18 * 10**9) and options["use_tf32"] == "0"
    assert "enable_cuda_graph" not in options
    assert CudaProvider().providers(None, True, None)[0][1]["enable_cuda_graph"] == "1"
    trt, then, _ = TensorRTProvider().providers(target("h100"), True, Path("kept"))
    assert trt[1]["trt_max_workspace_size"] == str(40 * 10**9)
    assert trt[1]["trt_cuda_graph_enable"] == trt[1]["trt_timing_cache_enable"] == "1"
    assert not any("fp16" in name or "int8" in name for name in trt[1])  # strongly typed
    assert then[0] == cuda and "enable_cuda_graph" not in then[1]


@pytest.mark.parametrize("one", ALL)
def test_a_plan_tells_every_reason_and_no_place(one: CudaProvider) -> None:
    for span in (AxisRange(1, 8, 32), AxisRange(8, 8, 8)):
        plan = one.spec(INPUTS, target("l4"), PRECISIONS["fp16"], {"batch": span})
        assert plan.reasons.keys() == {*plan.options, "profile"}
        assert plan.options["cuda_graph"] == (one.device == "cuda" and span.min == span.max)
        assert "device_id" not in plan.options and "/" not in json.dumps(plan.options)


def test_what_is_quantized_goes_to_tensorrt_alone() -> None:
    for one in (CudaProvider(), CoreMLProvider()):
        assert one.refuses(target("l4"), PRECISIONS["fp16"]) is None
        assert "floats only" in (one.refuses(target("l4"), PRECISIONS["int8"]) or "")
        with pytest.raises(Impossible, match="floats only"):
            one.rules(target("l4"), PRECISIONS["int8"])
    full = TensorRT()
    assert TensorRTProvider().rules(target("l4"), PRECISIONS["int8"]) == full.rules(
        target("l4"), PRECISIONS["int8"]
    )
    assert TensorRTProvider().refuses(target("l4"), PRECISIONS["nf4"]) == full.refuses(
        target("l4"), PRECISIONS["nf4"]
    )


def test_what_is_compiled_of_a_model_is_not_found_for_another(
    net: Any, model: Path, tmp_path: Path
) -> None:
    """Providers look for their files by names of values: here the names are the same."""
    one, kept = Here(), Store(tmp_path / "store").root / "devices"

    def folder(file: Path) -> Path:
        one.session(file, SessionOptions(kept=kept)).close()
        assert one.folders[0] == kept and one.folders[1] is not None
        return one.folders[1]

    first = folder(model)
    (first / "TensorrtExecutionProvider_graph_0.engine").write_bytes(b"compiled")
    (tmp_path / "copy").mkdir()
    assert folder(convolution(net, tmp_path / "copy" / "m.onnx", "batch")) == first

    loaded = onnx.load(model)
    weight = max(loaded.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    weight.raw_data = bytes(reversed(weight.raw_data))
    onnx.save(loaded, model)
    assert (second := folder(model)) != first and not any(second.glob("*.engine"))

    old = first / "entry.json"
    os.utime(old, (0, old.stat().st_mtime - 2 * IN_USE_SECONDS))
    assert eviction.gc(Store(tmp_path / "store"), 0) == (1, len(b"compiled"))
    assert not first.exists() and second.exists()


# ── refusals ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", [one.name for one in ALL])
def test_a_wheel_without_the_provider_is_reported(name: str, model: Path) -> None:
    one = backend(name)
    with pytest.raises(ToolchainMissing, match=r"has no \w+ExecutionProvider") as caught:
        one.session(model)
    assert "pip install 'optkit[" in (caught.value.hint or "")
    device = target("apple-m2-max" if "coreml" in name else "h100")
    assert device.title in (one.offline(device) or "")


def test_nodes_that_stay_on_the_cpu_are_reported(model: Path) -> None:
    options = native_options(model, SessionOptions(1, False))
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    with BoundSession(model, options, (CPU,), "cpu", records=False) as session:
        session.verify()
        session._first = "CUDAExecutionProvider"
        with pytest.raises(ToolchainMissing, match="1 of 1 nodes that multiply run on CPU") as told:
            session.verify()
    assert "(Conv)" in (told.value.where or "")


def test_apple_is_asked_by_its_chip(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolchainMissing, match="this machine runs Linux"):
        CoreMLProvider().check_here("apple-m2-max", "m.onnx")
    chip = Gpu(0, "Apple M2 Max", None, "", None)
    monkeypatch.setattr(ort_providers, "_apple_chip", lambda: chip)
    CoreMLProvider().check_here("apple-m2-max", "m.onnx")
    assert CoreMLProvider().offline(target("apple-m2-max")) is None
    assert CoreMLProvider().offline(target("apple-m3-max")) is not None
    with pytest.raises(ToolchainMissing, match=r"built for apple-m3-max, .* Apple M2 Max"):
        CoreMLProvider().check_here("apple-m3-max", "m.onnx")


# ── the road, over the CPU's provider ──────────────────────────────────────────────────────────


def test_bound_runs_give_what_plain_runs_give(model: Path) -> None:
    random = np.random.default_rng(3)
    with (
        Here().session(model, SessionOptions(threads=1)) as bound,
        OnnxRuntime().session(model) as plain,
    ):
        for batch in (1, 3):
            feed = {"x": random.standard_normal((batch, 8, 16, 16)).astype(np.float32)}
            np.testing.assert_allclose(bound.run(feed)[OUT], plain.run(feed)[OUT], atol=1e-5)
        with pytest.raises(InputRefused, match="float64"):
            bound.run({"x": np.zeros((1, 8, 16, 16))})


def test_recorded_runs_keep_their_buffers(net: Any, model: Path, tmp_path: Path) -> None:
    with pytest.raises(Impossible, match="every size is fixed"):
        Here().session(model, SessionOptions(cuda_graph=True))
    fixed = convolution(net, tmp_path / "fixed.onnx", 2)
    random = np.random.default_rng(3)
    with (
        Here().session(fixed, SessionOptions(cuda_graph=True)) as bound,
        OnnxRuntime().session(fixed) as plain,
    ):
        held = []
        for _ in range(3):
            feed = {"x": random.standard_normal((2, 8, 16, 16)).astype(np.float32)}
            np.testing.assert_allclose(bound.run(feed)[OUT], plain.run(feed)[OUT], atol=1e-5)
            held.append(bound._fixed["x"].data_ptr())
        assert len(set(held)) == 1


def test_the_engine_is_the_graph_and_its_nodes(model: Path, tmp_path: Path, unwatched: Any) -> None:
    out = tmp_path / "out"
    out.mkdir()
    plan = Here().spec(INPUTS, target("l4"), PRECISIONS["fp32"], {"batch": AxisRange(1, 8, 32)})
    engine = Here().compile(model, plan, {}, out, unwatched)
    assert (out / engine.file).read_bytes() == model.read_bytes() and engine.batch == 8
    assert [layer.products for layer in engine.layers if layer.products] == [("conv",)]
    assert engine.layers[0].dtype is None and "not in what they multiply" in (engine.note or "")
    assert from_json(Engine, json.loads(json.dumps(to_json(engine)))) == engine


def test_an_artifact_without_engine_runs_on_its_device(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = Manifest(
        "m-h100", "h100-sxm", "fp16", "d" * 64, {}, INPUTS, INPUTS, {}, {"status": "ok"}
    )
    made = artifact.write(tmp_path / "out", manifest, {"model.onnx": model})
    with made.session() as elsewhere:
        assert (elsewhere.backend, elsewhere.evidence) == ("onnxruntime", Evidence.SIMULATED)

    def here(name: str) -> Any:
        return Here() if name == "onnxruntime-cuda" else backend(name)

    monkeypatch.setattr(reader, "backend", here)
    with made.session() as running:
        assert (running.backend, running.evidence) == ("onnxruntime-cuda", Evidence.MEASURED)
        assert running.note == "no engine was compiled; model.onnx runs on the device"
        assert running.run({"x": np.zeros((1, 8, 16, 16), np.float32)})[OUT].shape[0] == 1

"""The options of TensorRT for a device: by rule, with reasons, and accepted by the library."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optkit.craft.backends import build_options
from optkit.craft.backends.tensorrt import TensorRT
from optkit.craft.backends.tensorrt_rtx import TensorRTRTX
from optkit.facts.codec import from_json, to_json
from optkit.facts.engines import BuildSpec
from optkit.facts.errors import Impossible, ToolchainMissing
from optkit.facts.precisions import PRECISIONS
from optkit.facts.tensors import AxisRange, TensorInfo
from optkit.ground.devices import target
from optkit.ground.recipe import Recipe
from optkit.ground.store import digest_json
from optkit.road import pipeline
from optkit.road.pipeline import Job

INPUTS = (TensorInfo("x", "float32", ("batch", 8, 16, 16)),)
BATCH = {"batch": AxisRange(1, 8, 32)}
FULL, RTX = TensorRT(), TensorRTRTX()


def spec(backend: TensorRT, device: str, axes: dict[str, AxisRange] | None = None) -> BuildSpec:
    return backend.spec(INPUTS, target(device), PRECISIONS["int8"], axes or BATCH)


@pytest.mark.parametrize("backend", [FULL, RTX])
@pytest.mark.parametrize("device", ["t4", "l4", "rtx4090", "h100", "orin", "rtx5090"])
def test_every_option_has_its_reason(backend: TensorRT, device: str) -> None:
    plan = spec(backend, device)
    assert plan.reasons.keys() == {*plan.options, "profile", "workspace_bytes"}
    assert all(plan.reasons.values())
    assert from_json(BuildSpec, json.loads(json.dumps(to_json(plan)))) == plan


@pytest.mark.parametrize(("backend", "differ"), [
    (FULL, {"aux_streams", "timing_iterations", "tiling", "l2_limit_bytes"}),
    (RTX, {"aux_streams"}),
])  # fmt: skip
def test_boards_of_one_compute_capability_differ_and_say_why(
    backend: TensorRT, differ: set[str]
) -> None:
    l4, rtx4090 = spec(backend, "l4"), spec(backend, "rtx4090")
    assert l4.compute_capability == rtx4090.compute_capability == "8.9"
    assert {n for n in l4.options if l4.options[n] != rtx4090.options[n]} == differ
    assert {n for n in differ if l4.reasons[n] == rtx4090.reasons[n]} <= {"l2_limit_bytes"}
    assert "58 multiprocessors" in l4.reasons["aux_streams"]
    if backend is FULL:
        assert "72 W" in l4.reasons["timing_iterations"]
        assert (l4.options["l2_limit_bytes"], l4.options["tiling"]) == (48 * 2**20, "MODERATE")
        assert "403 FP16 operations per byte" in l4.reasons["tiling"]
        assert rtx4090.options["tiling"] == "FAST"


def test_figures_decide_and_nothing_else() -> None:
    small = replace(target("rtx4090"), facts=target("t4").facts, peaks=target("t4").peaks)
    assert build_options.timed_options(small)["tiling"].value == "NONE"
    assert "l2_limit_bytes" not in build_options.timed_options(small)
    assert "not verified" in build_options.timed_options(target("h100"))["l2_limit_bytes"].why
    one_memory = spec(FULL, "orin")
    assert one_memory.workspace_bytes == 16 * 10**9
    unknown = replace(target("l4"), facts={}, peaks={})
    assert build_options.workspace(unknown).value is None
    assert "not known" in build_options.timed_options(unknown)["timing_iterations"].why


def test_shapes_decide_on_recording_and_on_a_second_artifact() -> None:
    assert spec(FULL, "l4").options["cuda_graph"] is True
    two = {**BATCH, "sequence": AxisRange(1, 64, 128)}
    assert spec(FULL, "l4", two).options["cuda_graph"] is False
    assert "an artifact for each" not in spec(FULL, "l4").reasons["profile"]
    wide = spec(FULL, "l4", {"batch": AxisRange(1, 1, 64)})
    assert "batch may grow over 16 times" in wide.reasons["profile"]


def test_the_same_inputs_give_the_same_spec_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest_json(to_json(spec(FULL, "l4")))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("HOME", "/nowhere")
    assert digest_json(to_json(spec(FULL, "l4"))) == before
    assert "/" not in json.dumps(spec(FULL, "l4").options)


def test_a_recipe_asks_otherwise_where_the_compiler_can() -> None:
    plan = spec(FULL, "l4").asking({"refittable": True, "workspace_bytes": 1 << 30})
    assert plan.options["refittable"] is True and plan.workspace_bytes == 1 << 30
    assert plan.reasons["refittable"] == plan.reasons["workspace_bytes"] == "the recipe asks for it"
    assert spec(FULL, "l4").asking({}) == spec(FULL, "l4")
    with pytest.raises(Impossible, match="tensorrt-rtx has no option refittable"):
        spec(RTX, "l4").asking({"refittable": True})
    recipe = Recipe.from_dict({"name": "m", "compiler": {"refittable": True}})
    assert pipeline.check(Job(recipe, target("h100"), PRECISIONS["fp16"])).pending == ("tensorrt",)
    with pytest.raises(Impossible, match="onnxruntime has no option refittable"):
        pipeline.check(Job(recipe, target("cpu"), PRECISIONS["fp32"]))


# ── taken by the library ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("device", "capability"), [
    ("l4", "8.9"), ("rtx4090", "8.9"), ("a10", "8.6"), ("rtx5090", "12.0"),
])  # fmt: skip
def test_every_option_compiles(
    device: str, capability: str, net: Any, tmp_path: Path, unwatched: Any
) -> None:
    """As each option is read back, a compile is the proof that the library took all of them."""
    pytest.importorskip("tensorrt_rtx", exc_type=ImportError)
    plan = spec(RTX, device)
    assert plan.compute_capability == capability
    build = net()
    y = build.conv(build.quantized(build.start()), "conv", 8, 16, relu=True)
    model = build.write(tmp_path / "m.onnx", y, ("batch", 8, 16, 16), ("batch", 16, 16, 16))
    engine = RTX.compile(model, plan, {"conv": PRECISIONS["int8"]}, tmp_path, unwatched)
    assert engine.landing.landed == 1


@pytest.mark.parametrize(("option", "value"), [
    ("hardware_compatibility", "SAME_COMPUTE_CAPABILITY"), ("typo", 1),
])  # fmt: skip
def test_what_the_library_does_not_take_is_an_error(
    option: str, value: Any, net: Any, tmp_path: Path, unwatched: Any
) -> None:
    pytest.importorskip("tensorrt_rtx", exc_type=ImportError)
    plan = spec(RTX, "l4")
    plan = replace(plan, options={**plan.options, option: value})
    build = net()
    model = build.write(
        tmp_path / "m.onnx", build.start(), ("batch", 8, 16, 16), ("batch", 8, 16, 16)
    )
    with pytest.raises(ToolchainMissing, match=rf"TensorRT-RTX .* does not accept {option}"):
        RTX.compile(model, plan, {}, tmp_path, unwatched)


def test_every_option_of_full_tensorrt_is_written_and_read_back() -> None:
    """Over a configuration that has just the attributes that the dumps of 11.4 list."""
    dump = json.loads((Path(__file__).parent / "api" / "tensorrt-11.4.json").read_text())
    trt = SimpleNamespace(
        **{kind: SimpleNamespace(**{n: n for n in names}) for kind, names in dump["enums"].items()}
    )
    config = Configuration(dump["classes"]["IBuilderConfig"])
    plan = spec(FULL, "l4")
    build_options.apply(trt, config, plan, "TensorRT")
    assert config.flags == {"EDITABLE_TIMING_CACHE"}
    assert config.pools == {"WORKSPACE": plan.workspace_bytes}
    assert config.l2_limit_for_tiling == 48 * 2**20
    assert config.hardware_compatibility_level == "NONE" and config.max_aux_streams == 0

    del trt.BuilderFlag.EDITABLE_TIMING_CACHE
    with pytest.raises(ToolchainMissing, match="timing_cache"):
        build_options.apply(trt, config, plan, "TensorRT")


class Configuration:
    """An IBuilderConfig by its dump: an attribute that is not listed cannot be set."""

    def __init__(self, listed: dict[str, str]) -> None:
        vars(self).update(listed=listed, flags={"TF32"}, pools={})

    def __setattr__(self, name: str, value: Any) -> None:
        assert self.listed[name] == "", f"{name} is a method"  # type: ignore[attr-defined]
        vars(self)[name] = value

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def set_flag(self, flag: str) -> None:
        self.flags.add(flag)

    def clear_flag(self, flag: str) -> None:
        self.flags.discard(flag)

    def get_flag(self, flag: str) -> bool:
        return flag in self.flags

    def set_memory_pool_limit(self, pool: str, size: int) -> None:
        self.pools[pool] = size

    def get_memory_pool_limit(self, pool: str) -> int:
        return int(self.pools[pool])


def branches(net: Any, path: Path) -> Path:
    """Two products side by side, which may run in streams of their own."""
    build = net()
    x = build.start()
    sides = [
        build.node("Softmax", [build.node("MatMul", [x, build.floats(f"w{i}", (256, 256))],
                                          f"fc{i}")], f"s{i}")
        for i in range(2)
    ]  # fmt: skip
    many = [build.node("MatMul", [side, build.floats(f"v{i}", (256, 256))], f"out{i}")
            for i, side in enumerate(sides)]  # fmt: skip
    y = build.node("Add", many, "sum")
    return Path(build.write(path, y, (8, 256, 256), (8, 256, 256)))


def test_rtx_is_asked_for_what_changes_its_engine_and_for_nothing_else(
    net: Any, tmp_path: Path, unwatched: Any
) -> None:
    pytest.importorskip("tensorrt_rtx", exc_type=ImportError)
    model = branches(net, tmp_path / "m.onnx")
    plan = RTX.spec(
        (TensorInfo("x", "float32", (8, 256, 256)),), target("l4"), PRECISIONS["fp16"], {}
    )

    def engine(**options: Any) -> bytes:
        asked = replace(plan, options={**plan.options, **options})
        return (tmp_path / RTX.compile(model, asked, {}, tmp_path, unwatched).file).read_bytes()

    as_asked = engine()
    assert engine() == as_asked
    timed = {"optimization_level": 0, "timing_iterations": 8, "tiling": "FULL",
             "l2_limit_bytes": 48 * 2**20}  # fmt: skip
    assert engine(**timed) == as_asked
    assert engine(aux_streams="builder") != as_asked

"""TensorRT: specifications are pure; with the TensorRT-RTX wheel, small networks are really
compiled."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from optkit.craft.backends.build_log import BuildProgress
from optkit.craft.backends.tensorrt import TensorRT
from optkit.craft.backends.tensorrt_rtx import TensorRTRTX
from optkit.facts import codec
from optkit.facts.engines import BuildSpec, Engine
from optkit.facts.errors import Impossible, InputRefused, ToolchainMissing, UsageError
from optkit.facts.precisions import PRECISIONS
from optkit.facts.tensors import AxisRange, TensorInfo
from optkit.ground.devices import target

BATCH = {"batch": AxisRange(1, 8, 32)}


def spec(shape: tuple[Any, ...], device: str = "l4", precision: str = "int8") -> BuildSpec:
    inputs = (TensorInfo("x", "float32", shape),)
    return TensorRTRTX().spec(inputs, target(device), PRECISIONS[precision], BATCH)


# ── plans ──────────────────────────────────────────────────────────────────────────────────────


def test_plans_load_no_library() -> None:
    code = """
import sys
from optkit.craft.backends.tensorrt import TensorRT
from optkit.craft.backends.tensorrt_rtx import TensorRTRTX
from optkit.ground.devices import target
from optkit.facts.precisions import PRECISIONS
int8 = PRECISIONS["int8"]
for backend in (TensorRT(), TensorRTRTX()):
    for name in ("l4", "h100", "cpu"):
        backend.offline(target(name)), backend.rules(target(name), int8), backend.versions()
        backend.spec((), target(name), int8, {})
assert not {"tensorrt", "tensorrt_rtx", "onnxruntime", "torch"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_rtx_compiles_offline_for_what_it_knows() -> None:
    rtx = TensorRTRTX()
    assert all(rtx.offline(target(name)) is None for name in ("l4", "t4", "rtx4090", "rtx5090"))
    assert "9.0" in (rtx.offline(target("h100")) or "")
    assert "none" in (rtx.offline(target("cpu")) or "")


def test_full_tensorrt_wants_the_device() -> None:
    assert "NVIDIA H100" in (TensorRT().offline(target("h100")) or "")


def test_rules_follow_the_hardware_and_the_compiler() -> None:
    full, rtx = (b.rules(target("l4"), PRECISIONS["int8"]) for b in (TensorRT(), TensorRTRTX()))
    assert (rtx.activation.dtype, rtx.activation.symmetric) == ("int8", True)
    assert (rtx.weight.granularity, rtx.weight.symmetric) == ("channel", True)
    assert rtx.depthwise_conv == "nowhere"
    assert rtx.split_scale == rtx.ops and full == replace(rtx, split_scale=frozenset())
    assert "Conv" in TensorRTRTX().rules(target("t4"), PRECISIONS["int8"]).excluded


def test_every_option_of_a_plan_has_its_reason() -> None:
    plan = spec(("batch", 3, 32, 32))
    assert plan.profile["x"] == ((1, 3, 32, 32), (8, 3, 32, 32), (32, 3, 32, 32))
    assert plan.reasons.keys() == {*plan.options, "profile", "workspace_bytes"}
    assert 0 < (plan.workspace_bytes or 0) <= 24e9
    assert codec.from_json(BuildSpec, json.loads(json.dumps(codec.to_json(plan)))) == plan


def test_a_plan_refuses_what_is_no_range() -> None:
    with pytest.raises(UsageError):
        TensorRTRTX().spec(
            (TensorInfo("x", "float32", ("batch",)),),
            target("l4"),
            PRECISIONS["int8"],
            {"batch": AxisRange(8, 4, 32)},
        )


@pytest.mark.parametrize("error", [ModuleNotFoundError("no"), OSError("libnvinfer.so.11: no")])
def test_a_missing_library_names_the_extra(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise error

    monkeypatch.setattr("optkit.craft.backends.tensorrt.importlib.import_module", absent)
    for backend, extra in ((TensorRT(), "optkit[tensorrt]"), (TensorRTRTX(), "optkit[rtx]")):
        with pytest.raises(ToolchainMissing) as caught:
            backend.check()
        assert extra in (caught.value.hint or "")


@given(st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=4), max_leaves=20))
def test_progress_only_rises_and_stays_a_fraction(tree: list[Any]) -> None:
    phases, seen = BuildProgress(), [0.0]

    def walk(node: list[Any], name: str, parent: str | None) -> None:
        phases.start(name, parent, len(node))
        for index, child in enumerate(node):
            walk(child, f"{name}.{index}", name)
            seen.append(phases.step(name, index))
        phases.finish(name)

    walk(tree, "root", None)
    assert seen == sorted(seen) and seen[-1] <= 1.0
    assert not tree or seen[-1] == pytest.approx(1.0)


# ── compiles ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def rtx() -> TensorRTRTX:
    pytest.importorskip("tensorrt_rtx", exc_type=ImportError)
    return TensorRTRTX()


@pytest.fixture
def compiled(rtx: TensorRTRTX, tmp_path: Path, unwatched: Any) -> Callable[..., Engine]:
    def run(model: Path, plan: BuildSpec, *planned: str) -> Engine:
        nodes = dict.fromkeys(planned, PRECISIONS["int8"])
        return rtx.compile(model, plan, nodes, tmp_path, unwatched)

    return run


def residual(net: Any, path: Path, batch: int | str = "batch", **form: Any) -> Path:
    """conv-relu, conv-relu, conv, + identity, relu; INT8 in front of every convolution."""
    build = net(**form)
    x = build.conv(build.quantized(build.start()), "stem", 8, 16, relu=True)
    shared = build.quantized(x)
    y = build.conv(shared, "c1", 16, 16, relu=True)
    y = build.conv(build.quantized(y), "c2", 16, 16)
    y = build.node("Relu", [build.node("Add", [y, shared], "add")], "relu")
    return build.write(path, y, (batch, 8, 16, 16), (batch, 16, 16, 16))


CONVOLUTIONS = ("stem", "c1", "c2")


def test_a_residual_block_lands_whole(
    compiled: Callable[..., Engine], net: Any, tmp_path: Path
) -> None:
    model = residual(net, tmp_path / "m.onnx")
    engine = compiled(model, spec(("batch", 8, 16, 16)), *CONVOLUTIONS)

    assert (engine.landing.planned, engine.landing.landed) == (3, 3)
    assert engine.landing.by_dtype == {"int8": 3}
    assert (tmp_path / engine.file).stat().st_size == engine.bytes > 0
    assert engine.batch == 8 and engine.memory["weights"] > 0
    assert "tensorrt-rtx" in engine.versions
    assert codec.from_json(Engine, json.loads(json.dumps(codec.to_json(engine)))) == engine


def test_bytes_are_those_of_the_graph_made_static(
    compiled: Callable[..., Engine], net: Any, tmp_path: Path
) -> None:
    dynamic = compiled(residual(net, tmp_path / "d.onnx"), spec(("batch", 8, 16, 16)))
    static = compiled(residual(net, tmp_path / "s.onnx", 8), spec((8, 8, 16, 16)))

    assert dynamic.layers[0].bytes_moved is None
    assert static.layers == static.static_layers
    assert dynamic.bytes_moved == static.bytes_moved
    # the float32 input is read and the float32 output written, and at least that is moved
    assert (static.bytes_moved or 0) > 4 * 8 * (8 + 16) * 16 * 16


def test_a_scale_of_rank_one_loses_every_convolution(
    compiled: Callable[..., Engine], net: Any, tmp_path: Path
) -> None:
    model = residual(net, tmp_path / "m.onnx", rank=1)
    landing = compiled(model, spec(("batch", 8, 16, 16)), *CONVOLUTIONS).landing
    assert (landing.landed, landing.by_dtype) == (0, {"float16": 3})


def test_sm75_never_lands_a_convolution(
    compiled: Callable[..., Engine], net: Any, tmp_path: Path
) -> None:
    model = residual(net, tmp_path / "m.onnx")
    engine = compiled(model, spec(("batch", 8, 16, 16), "t4"), *CONVOLUTIONS)
    assert engine.landing.landed == 0


def test_scales_along_the_summed_axis_do_not_count_as_landed(
    compiled: Callable[..., Engine], net: Any, tmp_path: Path
) -> None:
    for name, axis, expected in (("right", -1, "int8"), ("wrong", 0, "float16")):
        build = net()
        y = build.matmul(build.quantized(build.start()), "fc", 32, 64, scale_axis=axis)
        model = build.write(tmp_path / f"{name}.onnx", y, (8, 32), (8, 64))
        assert compiled(model, spec((8, 32)), "fc").landing.by_dtype == {expected: 1}


def test_a_merged_projection_lands_only_with_its_scale_split(
    compiled: Callable[..., Engine], net: Any, tmp_path: Path
) -> None:
    """The reason for `split_scale`: slices behind the product are pulled through it."""
    for split in (False, True):
        build = net()
        x = build.quantized(build.start())
        if split:
            w = build.weight("qkv", (64, 192), 1)
            build.constants["qkv.ws"] = np.float16(0.01)
            build.constants["qkv.wz"] = np.int8(0)
            y = build.node(
                "Mul", [build.node("MatMul", [x, w], "qkv"), build.floats("r", (192,))], "mul"
            )
        else:
            y = build.matmul(x, "qkv", 64, 192)
        y = build.node("Add", [y, build.floats("b", (192,))], "bias")
        heads = build.constant("heads", np.array([0, 0, 3, 4, 16]))
        y = build.node(
            "Transpose", [build.node("Reshape", [y, heads], "r5")], "t", perm=[2, 0, 3, 1, 4]
        )
        q, k, v = (build.node("Gather", [y, build.constant(n, np.array(i))], f"g{n}", axis=0)
                   for i, n in enumerate("qkv"))  # fmt: skip
        k = build.node("Transpose", [k], "kt", perm=[0, 1, 3, 2])
        a = build.node("Softmax", [build.node("MatMul", [q, k], "qk")], "softmax", axis=-1)
        y = build.node("MatMul", [a, v], "pv")
        model = build.write(tmp_path / "m.onnx", y, ("batch", 9, 64), ("batch", 4, 9, 16))
        landing = compiled(model, spec(("batch", 9, 64)), "qkv").landing
        assert landing.landed == int(split)
        assert [row.node for row in landing.activations] == ["qk", "pv"]


def test_external_weights_are_found(
    compiled: Callable[..., Engine], net: Any, tmp_path: Path
) -> None:
    model = residual(net, tmp_path / "m.onnx")
    folder = tmp_path / "external"
    folder.mkdir()
    onnx.save(onnx.load(model), folder / "m.onnx", save_as_external_data=True, size_threshold=0)
    plan = spec(("batch", 8, 16, 16))
    inline = compiled(model, plan, *CONVOLUTIONS)
    assert compiled(folder / "m.onnx", plan, *CONVOLUTIONS).landing == inline.landing


def test_progress_rises_over_both_compiles(rtx: TensorRTRTX, net: Any, tmp_path: Path) -> None:
    seen: list[float] = []
    model = residual(net, tmp_path / "m.onnx")
    plan = spec(("batch", 8, 16, 16))
    rtx.compile(model, plan, {}, tmp_path, lambda what, done: seen.append(done))
    assert seen == sorted(seen) and seen[0] >= 0.0 and 0.5 < seen[-1] <= 1.0


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_progress_cancels_and_the_next_build_is_sound(
    rtx: TensorRTRTX,
    compiled: Callable[..., Engine],
    net: Any,
    tmp_path: Path,
    error: type[BaseException],
) -> None:
    model, plan = residual(net, tmp_path / "m.onnx"), spec(("batch", 8, 16, 16))

    def stop(what: str, done: float) -> None:
        raise error("enough")

    with pytest.raises(error, match="enough"):
        rtx.compile(model, plan, {}, tmp_path, stop)
    assert not list(tmp_path.glob("*.engine"))
    assert compiled(model, plan, *CONVOLUTIONS).landing.landed == 3


# ── errors ─────────────────────────────────────────────────────────────────────────────────────


def test_garbage_is_refused(compiled: Callable[..., Engine], tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"\x00garbage" * 99)
    with pytest.raises(InputRefused):
        compiled(model, spec((8, 4)))


def single(net: Any, path: Path, op: str, *constants: Any, **attributes: Any) -> Path:
    build = net(carrier="float32")
    names = [build.constant(f"k{i}", c) for i, c in enumerate(constants)]
    y = build.node(op, ["x", *names], "the_node", **attributes)
    return build.write(path, y, ("batch", 4), ("batch", 4))


@pytest.mark.parametrize(
    ("op", "constants", "attributes", "says"),
    [
        ("Strange", (), {"domain": "com.example"}, "no operator Strange"),
        ("Unique", (), {}, "no operator Unique"),
        ("MatMul", (np.ones((4, 4), np.float16),), {}, "type Float .* type Half"),
        ("MatMul", (np.ones((5, 4), np.float32),), {}, "4 .* 5 .* must match"),
    ],
)
def test_a_refused_node_is_named_without_noise(
    compiled: Callable[..., Engine],
    net: Any,
    tmp_path: Path,
    op: str,
    constants: tuple[Any, ...],
    attributes: dict[str, Any],
    says: str,
) -> None:
    model = single(net, tmp_path / "m.onnx", op, *constants, **attributes)
    with pytest.raises(InputRefused, match=says) as caught:
        compiled(model, spec(("batch", 4)))
    assert caught.value.where == f"node 'the_node' ({op})"
    assert "cudaError" not in caught.value.message and "/_src/" not in caught.value.message


def test_unsigned_activations_are_refused(
    compiled: Callable[..., Engine], net: Any, tmp_path: Path
) -> None:
    build = net(carrier="float32", activation="uint8")
    y = build.quantized("x", zero_point=128)
    model = build.write(tmp_path / "m.onnx", y, (8, 4), (8, 4))
    with pytest.raises(InputRefused, match="zero point is not supported"):
        compiled(model, spec((8, 4)))


def test_a_dynamic_input_needs_shapes(
    compiled: Callable[..., Engine], net: Any, tmp_path: Path
) -> None:
    model = single(net, tmp_path / "m.onnx", "Relu")
    with pytest.raises(InputRefused, match="no shapes") as caught:
        compiled(model, replace(spec(("batch", 4)), profile={}))
    assert caught.value.where == "input 'x'"


def test_impossible_shapes_are_refused(
    compiled: Callable[..., Engine], net: Any, tmp_path: Path
) -> None:
    model = single(net, tmp_path / "m.onnx", "Relu")
    for ends in (((4, 4), (2, 4), (8, 4)), ((1, 5), (2, 5), (8, 5))):
        with pytest.raises(InputRefused, match=r"MIN<=OPT<=MAX|has min=5, opt=5, max=5"):
            compiled(model, replace(spec(("batch", 4)), profile={"x": ends}))


def test_sm90_is_a_missing_toolchain(
    compiled: Callable[..., Engine], net: Any, tmp_path: Path
) -> None:
    model = single(net, tmp_path / "m.onnx", "Relu")
    with pytest.raises(ToolchainMissing, match=r"9\.0") as caught:
        compiled(model, spec(("batch", 4), "h100"))
    assert caught.value.where == "h100-sxm"


def test_a_dtype_the_hardware_lacks_is_impossible(
    compiled: Callable[..., Engine], tmp_path: Path
) -> None:
    zero = helper.make_tensor("z", TensorProto.FLOAT8E4M3FN, [], [0.0])
    scale = helper.make_tensor("s", TensorProto.FLOAT, [], [0.1])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["c"], name="q"),
        helper.make_node("DequantizeLinear", ["c", "s", "z"], ["y"], name="dq"),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (8, 4)) for n in "xy"]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], [zero, scale])
    opset = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), tmp_path / "m.onnx")
    with pytest.raises(Impossible, match="fp8"):
        compiled(tmp_path / "m.onnx", spec((8, 4), "a10"))


def test_an_operator_the_hardware_lacks_is_impossible(
    compiled: Callable[..., Engine], net: Any, tmp_path: Path
) -> None:
    model = single(net, tmp_path / "m.onnx", "MatMul", np.ones((4, 4), np.float32))
    with pytest.raises(Impossible, match="FP32 GEMM is not supported") as caught:
        compiled(model, spec(("batch", 4), "t4", "fp32"))
    assert "the_node" in (caught.value.where or "")


def test_a_refused_build_leaves_nothing_to_the_next(
    compiled: Callable[..., Engine], net: Any, tmp_path: Path
) -> None:
    """Without `_settle`, the library compiles the next network for 7.5: no INT8 convolution."""
    refused = single(net, tmp_path / "refused.onnx", "MatMul", np.ones((4, 4), np.float32))
    sound = residual(net, tmp_path / "sound.onnx")
    for _ in range(2):
        with pytest.raises(Impossible):
            compiled(refused, spec(("batch", 4), "t4", "fp32"))
        engine = compiled(sound, spec(("batch", 8, 16, 16)), *CONVOLUTIONS)
        assert engine.landing.by_dtype == {"int8": 3}


def test_too_little_workspace_says_so(
    compiled: Callable[..., Engine], net: Any, tmp_path: Path
) -> None:
    build = net(carrier="float32")
    w = build.constant("w", np.ones((512, 512), np.float32))
    y = build.node("Softmax", [build.node("MatMul", ["x", w], "fc")], "softmax")
    model = build.write(tmp_path / "m.onnx", y, (64, 512), (64, 512))
    with pytest.raises(InputRefused, match="workspace"):
        compiled(model, replace(spec((64, 512)), workspace_bytes=0))


def test_a_graph_without_outputs_is_refused(
    compiled: Callable[..., Engine], tmp_path: Path
) -> None:
    graph = helper.make_graph([], "graph", [], [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(InputRefused, match="no outputs"):
        compiled(tmp_path / "m.onnx", replace(spec(()), profile={}))

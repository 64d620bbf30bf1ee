"""ONNX Runtime on the CPU: checked sessions, and the kernels of a graph."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from optkit.craft.backends.onnxruntime import OnnxRuntime, native_options
from optkit.craft.backends.ort_session import check_feed
from optkit.facts.codec import from_json, to_json
from optkit.facts.engines import Engine
from optkit.facts.errors import InputRefused, ToolchainMissing, WorkerFailed
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import PRECISIONS
from optkit.facts.tensors import AxisRange, TensorInfo
from optkit.ground.devices import cpu, target
from optkit.ground.devices.machine import describe
from optkit.ground.runtimes import SessionOptions
from tests import codes

BATCH = {"batch": AxisRange(1, 8, 32)}


@pytest.fixture
def ort() -> OnnxRuntime:
    pytest.importorskip("onnxruntime", exc_type=ImportError)
    return OnnxRuntime()


@pytest.fixture
def compiled(ort: OnnxRuntime, tmp_path: Path, unwatched: Any) -> Callable[..., Engine]:
    def run(model: Path, shape: tuple[Any, ...], *planned: str) -> Engine:
        inputs = (TensorInfo("x", "float32", shape),)
        plan = ort.spec(inputs, target("cpu"), PRECISIONS["int8"], BATCH)
        out = tmp_path / "out"
        out.mkdir(exist_ok=True)
        return ort.compile(model, plan, dict.fromkeys(planned, PRECISIONS["int8"]), out, unwatched)

    return run


def small(net: Any, path: Path) -> tuple[Path, np.ndarray]:
    """relu(x @ w), and w."""
    build = net(carrier="float32")
    w = build.constant("w", np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32))
    y = build.node("Relu", [build.node("MatMul", ["x", w], "fc")], "relu")
    return build.write(path, y, ("batch", 4), ("batch", 6)), build.constants["w"]


def residual(net: Any, path: Path, outputs: bool = True) -> Path:
    """As `placement` wants it: u8, zero point 0 behind a Relu, quantized sums. `outputs` False:
    the result of the last convolution and the sum stay float."""
    build = net(carrier="float32", activation="uint8")
    x = build.conv(build.quantized("x", zero_point=128), "stem", 8, 16, relu=True)
    shared = build.quantized(x)
    y = build.quantized(build.conv(shared, "c1", 16, 16, relu=True))
    y = build.conv(y, "c2", 16, 16)
    y = build.quantized(y, zero_point=128) if outputs else y
    y = build.node("Relu", [build.node("Add", [y, shared], "add")], "relu")
    y = build.quantized(y) if outputs else y
    return build.write(path, y, ("batch", 8, 16, 16), ("batch", 16, 16, 16))


# ── sessions ───────────────────────────────────────────────────────────────────────────────────


def test_a_session_computes(ort: OnnxRuntime, net: Any, tmp_path: Path) -> None:
    model, w = small(net, tmp_path / "m.onnx")
    x = np.random.default_rng(2).standard_normal((3, 4)).astype(np.float32)
    with ort.session(model) as session:
        assert session.inputs == (TensorInfo("x", "float32", ("batch", 4)),)
        assert session.outputs == (TensorInfo("relu.y", "float32", ("batch", 6)),)
        found = session.run({"x": x})
    np.testing.assert_allclose(found["relu.y"], np.maximum(x @ w, 0), rtol=1e-5, atol=1e-6)


def test_options_reach_the_session(
    ort: OnnxRuntime, net: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime

    model, _ = small(net, tmp_path / "m.onnx")
    with ort.session(model, SessionOptions(threads=1, spinning=False, level="basic")) as session:
        options = session._session.get_session_options()
    assert options.intra_op_num_threads == 1 and options.inter_op_num_threads == 1
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    basic = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert options.graph_optimization_level == basic
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    with ort.session(model) as session:
        assert session._session.get_session_options().intra_op_num_threads == 1


def test_another_provider_is_never_silent(
    ort: OnnxRuntime, net: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime

    model, _ = small(net, tmp_path / "m.onnx")
    monkeypatch.setattr(onnxruntime.InferenceSession, "get_providers", lambda self: ["Other"])
    with pytest.raises(ToolchainMissing, match=r"requested providers are .* but the session has"):
        ort.session(model)


INPUTS = (
    TensorInfo("image", "float32", ("batch", 3, 4)),
    TensorInfo("ids", "int64", ("batch", "length")),
)
GOOD = {"image": np.zeros((2, 3, 4), np.float32), "ids": np.zeros((2, 7), np.int64)}


@pytest.mark.parametrize(
    ("change", "where", "says"),
    [
        ({"ids": None}, "input 'ids'", "does not have"),
        ({"ids": None, "id": GOOD["ids"]}, "input 'ids'", "the feed has 'id'"),
        ({"mask": GOOD["ids"]}, "input 'mask'", "no such input; it has image, ids"),
        ({"image": GOOD["image"].astype(np.float64)}, "input 'image'", "float64, not float32"),
        ({"image": GOOD["image"][0]}, "input 'image'", "shape"),
        ({"image": np.zeros((2, 3, 5), np.float32)}, "input 'image'", "(batch, 3, 4)"),
        ({"ids": np.zeros((3, 7), np.int64)}, "input 'ids'", "batch = 2"),
    ],
)
def test_a_feed_that_does_not_fit_is_refused(change: dict[str, Any], where: str, says: str) -> None:
    feed = {name: array for name, array in (GOOD | change).items() if array is not None}
    with pytest.raises(InputRefused) as caught:
        check_feed(feed, INPUTS)
    assert caught.value.where == where and says in caught.value.message
    assert caught.value.hint


@given(st.integers(0, 5), st.integers(0, 5))
def test_a_feed_that_fits_passes(batch: int, length: int) -> None:
    image, ids = np.zeros((batch, 3, 4), np.float32), np.zeros((batch, length), np.int64)
    check_feed({"ids": ids, "image": image}, INPUTS)


# ── the toolchain ──────────────────────────────────────────────────────────────────────────────


def test_both_wheels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optkit.craft.backends.onnxruntime.installed", lambda name: "1.31.1")
    with pytest.raises(ToolchainMissing, match="onnxruntime and onnxruntime-gpu") as caught:
        OnnxRuntime().check()
    assert "pip uninstall" in (caught.value.hint or "")


def test_a_missing_wheel_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("optkit.craft.backends.ort_session.importlib.import_module", absent)
    with pytest.raises(ToolchainMissing) as caught:
        OnnxRuntime().check()
    assert caught.value.hint == "pip install 'optkit[cpu]'"


def test_it_compiles_for_this_machine_only() -> None:
    assert OnnxRuntime().offline(target("cpu")) is None
    assert OnnxRuntime().offline(target("l4")) is not None


@pytest.mark.parametrize(
    ("machine", "features", "bits"),
    [
        ("x86_64", ("avx2", "fma"), 7),
        ("x86_64", ("avx2", "avx512f"), 7),
        ("x86_64", ("avx2", "avx_vnni"), 8),
        ("x86_64", ("avx2", "avx512f", "avx512_vnni"), 8),
        ("aarch64", ("asimd",), 8),
    ],
)
def test_weights_keep_to_seven_bits_where_pairs_add_in_sixteen(
    machine: str, features: tuple[str, ...], bits: int
) -> None:
    info = replace(cpu(), machine=machine, features=features)
    rules = OnnxRuntime().rules(describe(info), PRECISIONS["int8"])
    assert rules.weight.bits == bits
    pair = 2 * 255 * rules.weight.qmax
    assert (pair < 1 << 15) == (bits == 7)
    assert from_json(PlacementRules, json.loads(json.dumps(to_json(rules)))) == rules
    assert OnnxRuntime().rules(target("l4"), PRECISIONS["int8"]).weight.bits == 8


_AVX2 = ("avx2", "fma", "f16c")
_VNNI = (*_AVX2, "avx512f", "avx512_vnni")


@pytest.mark.parametrize(
    ("machine", "features", "source"),
    [
        ("x86_64", _AVX2, "cpu-avx2"),
        ("x86_64", (*_AVX2, "avx512f"), "cpu-avx2"),
        ("x86_64", _VNNI, "cpu-avx512-vnni"),
        ("x86_64", target("cpu-amx").features, "cpu-amx"),
        ("x86_64", (*_AVX2, "avx_vnni"), "cpu-avx512-vnni, assumed for this CPU"),
        ("x86_64", (), "cpu-avx2, assumed for this CPU"),
        ("aarch64", ("asimd", "asimddp", "i8mm"), "cpu-avx512-vnni, assumed for this CPU"),
    ],
)
def test_the_speeds_of_kernels_are_of_the_instructions(
    machine: str, features: tuple[str, ...], source: str
) -> None:
    here = describe(replace(cpu(), machine=machine, features=features))
    kernels = OnnxRuntime().rules(here, PRECISIONS["int8"]).kernels
    assert kernels is not None and kernels.source == source
    kind = source.partition(",")[0]
    assert kernels.conv.int8_gmacs == target(kind).kernels["conv_int8_gmacs"].value
    assert here.kernels.keys() == target(kind).kernels.keys()
    assert not any(fact.verified for fact in here.kernels.values())


def test_the_speeds_of_a_kind_do_not_depend_on_this_machine() -> None:
    for name in ("cpu-avx2", "cpu-avx512-vnni", "cpu-amx"):
        kernels = OnnxRuntime().rules(target(name), PRECISIONS["int8"]).kernels
        assert kernels is not None and kernels.source == name
        # a large convolution is faster in integers, a depthwise one is not
        assert kernels.conv.saved_ms(10**9, 10**6) > 0 > kernels.depthwise_conv.saved_ms(10**8, 1)
    assert OnnxRuntime().rules(target("l4"), PRECISIONS["int8"]).kernels is None


@pytest.mark.parametrize(
    ("name", "bits"), [("cpu-avx2", 7), ("cpu-avx512-vnni", 8), ("cpu-amx", 8)]
)
@pytest.mark.parametrize("here", ["cpu-avx2", "cpu-avx512-vnni"])
def test_weights_for_a_kind_of_cpu_are_its_own_wherever_they_are_made(
    monkeypatch: pytest.MonkeyPatch, name: str, bits: int, here: str
) -> None:
    machine = replace(cpu(), machine="x86_64", features=target(here).features, kind=here)
    for module in ("optkit.ground.devices.machine", "optkit.craft.backends.onnxruntime"):
        monkeypatch.setattr(f"{module}.cpu", lambda: machine)
    assert OnnxRuntime().rules(target(name), PRECISIONS["int8"]).weight.bits == bits
    reason = OnnxRuntime().offline(target(name))
    assert (reason is None) == (name == here)
    assert reason is None or f"of the kind {here}" in reason


def product(path: Path, rows: np.ndarray, weight: np.ndarray, form: str = "MatMulInteger") -> Path:
    """x @ weight: codes as they stand, or under Q/DQ with scales of 1."""
    constants = {"w": weight}
    if form == "MatMulInteger":
        nodes, kinds = (
            [helper.make_node(form, ["x", "w"], ["y"])],
            (TensorProto.UINT8, TensorProto.INT32),
        )
    else:
        kinds = (TensorProto.FLOAT, TensorProto.FLOAT)
        constants |= {"s": np.float32(1), "z": np.uint8(0), "wz": np.int8(0)}
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["a"]),
            helper.make_node("DequantizeLinear", ["w", "s", "wz"], ["b"]),
            helper.make_node("MatMul", ["a", "b"], ["y"]),
        ]
    made = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", kinds[0], rows.shape)],
        [helper.make_tensor_value_info("y", kinds[1], (rows.shape[0], weight.shape[1]))],
        [
            onnx.numpy_helper.from_array(np.asarray(array), name)
            for name, array in constants.items()
        ],
    )
    opset = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(made, opset_imports=opset, ir_version=10), path)
    return path


@given(st.integers(1, 40), st.integers(0, 2**32))
def test_seven_bits_never_saturate(k: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = random.integers(0, 256, (3, k)).astype(np.uint8)
    weight = random.integers(-63, 64, (k, 5)).astype(np.int8)
    np.testing.assert_array_equal(codes.saturating(rows, weight), codes.exact(rows, weight))
    full = np.full((3, 2 * k), 255, np.uint8), np.full((2 * k, 5), 127, np.int8)
    assert (codes.saturating(*full) == k * 32767).all()


@pytest.mark.parametrize("weight", [-128, 127])
def test_products_of_full_codes_are_summed_as_this_machines_features_say(
    ort: OnnxRuntime, tmp_path: Path, weight: int
) -> None:
    """ONNX Runtime chooses its kernels by CPUID; so does `sums_in_16_bits`."""
    rows = np.full((3, 37), 255, np.uint8)
    rows[1] = np.arange(37) * 6
    full = np.full((37, 5), weight, np.int8)
    full[::3] //= 2
    model = product(tmp_path / "m.onnx", rows, full)
    plain = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    summed = codes.saturating if codes.SATURATES else codes.exact
    np.testing.assert_array_equal(plain.run(None, {"x": rows})[0], summed(rows, full))
    assert (codes.saturating(rows, full) != codes.exact(rows, full)).any()


@pytest.mark.parametrize("level", ["all", "extended", "basic", "none"])
@pytest.mark.parametrize("form", ["MatMulInteger", "Q/DQ"])
def test_sessions_sum_exactly_on_any_machine(
    ort: OnnxRuntime, tmp_path: Path, form: str, level: Any
) -> None:
    """Weights of 8 bits, which saturate in plain ONNX Runtime where VNNI is absent."""
    rows, full = np.full((3, 64), 255, np.uint8), np.full((64, 5), 127, np.int8)
    model = product(tmp_path / "m.onnx", rows, full, form)
    with ort.session(model, SessionOptions(level=level)) as session:
        found = session.run({"x": rows.astype(session.inputs[0].dtype)})["y"]
    np.testing.assert_array_equal(found, codes.exact(rows, full))


@pytest.mark.parametrize(
    ("features", "largest", "form", "wanted"),
    [
        (("avx2",), 127, "MatMulInteger", ("1", "ORT_ENABLE_EXTENDED")),
        (("avx2",), 127, "Q/DQ", ("1", "ORT_ENABLE_BASIC")),
        (("avx2",), 64, "MatMulInteger", (None, "ORT_ENABLE_BASIC")),
        (("avx2", "avx_vnni"), 127, "MatMulInteger", (None, "ORT_ENABLE_BASIC")),
    ],
)
def test_exact_kernels_are_asked_for_where_they_are_needed(
    ort: OnnxRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    features: tuple[str, ...], largest: int, form: str, wanted: tuple[str | None, str],
) -> None:  # fmt: skip
    machine = replace(cpu(), machine="x86_64", features=features)
    monkeypatch.setattr("optkit.craft.backends.onnxruntime.cpu", lambda: machine)
    weight = np.full((64, 5), largest, np.int8)
    model = product(tmp_path / "m.onnx", np.full((3, 64), 255, np.uint8), weight, form)
    options = native_options(model, SessionOptions(spinning=False, level="basic"))
    try:
        entry = options.get_session_config_entry("session.x64quantprecision")
    except RuntimeError:  # it was not set
        entry = None
    assert (entry, options.graph_optimization_level.name) == wanted


# ── what a graph became ────────────────────────────────────────────────────────────────────────


def test_the_engine_is_the_graph(
    ort: OnnxRuntime, compiled: Callable[..., Engine], net: Any, tmp_path: Path
) -> None:
    model, _ = small(net, tmp_path / "m.onnx")
    engine = compiled(model, ("batch", 4))
    file = tmp_path / "out" / engine.file
    assert file.read_bytes() == model.read_bytes() and engine.bytes == file.stat().st_size
    assert engine.batch == 8 and engine.landing.planned == 0
    assert from_json(Engine, json.loads(json.dumps(to_json(engine)))) == engine
    with ort.session(file) as session:
        assert session.inputs[0].name == "x"


def test_bytes_are_counted_at_the_optimum(
    compiled: Callable[..., Engine], net: Any, tmp_path: Path
) -> None:
    engine = compiled(small(net, tmp_path / "m.onnx")[0], ("batch", 4))
    moved = {layer.kind: layer.bytes_moved for layer in engine.layers}
    product = 4 * (8 * 4 + 8 * 6)  # float32: x in, x @ w out
    assert moved == {"MatMul": product, "Relu": 4 * 2 * 8 * 6}
    assert engine.bytes_moved == sum(moved.values())
    assert engine.static_layers == engine.layers
    assert engine.layers[0].constants[0].bytes == 4 * 4 * 6


def test_a_residual_block_lands_whole(
    compiled: Callable[..., Engine], net: Any, tmp_path: Path
) -> None:
    engine = compiled(residual(net, tmp_path / "m.onnx"), ("batch", 8, 16, 16), "stem", "c1", "c2")
    assert (engine.landing.planned, engine.landing.landed) == (3, 3)
    assert engine.landing.by_dtype == {"uint8": 3}
    kinds = [layer.kind for layer in engine.layers]
    assert kinds.count("QLinearConv") == 3 and kinds.count("QLinearAdd") == 1
    assert "Relu" not in kinds


def test_a_convolution_without_a_quantized_output_does_not_land(
    compiled: Callable[..., Engine], net: Any, tmp_path: Path
) -> None:
    """The reason for `quantize_outputs`."""
    model = residual(net, tmp_path / "m.onnx", outputs=False)
    landing = compiled(model, ("batch", 8, 16, 16), "stem", "c1", "c2").landing
    assert [(row.node, row.dtype) for row in landing.rows if not row.landed] == [("c2", "float32")]


@pytest.mark.parametrize("batch", [8, "batch"])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_land_with_a_float_bias_behind(
    compiled: Callable[..., Engine], net: Any, tmp_path: Path, batch: Any, transposed: bool
) -> None:
    """Also with a fixed batch, where MatMulAddFusion would keep them in float; also when the
    optimizer folds a Transpose into the weight, which then loses its name."""
    build = net(carrier="float32", activation="uint8")
    y = "x"
    for name in ("a", "b"):
        w = build.weight(name, (16, 16), 0 if transposed else 1)
        w = build.node("Transpose", [w], f"{name}.t", perm=[1, 0]) if transposed else w
        y = build.node("MatMul", [build.quantized(y, zero_point=128), w], name)
        y = build.node("Add", [y, build.floats(f"{name}.b", (16,))], f"{name}.add")
        y = build.node("Gelu", [y], f"{name}.gelu")
    model = build.write(tmp_path / "m.onnx", y, (batch, 5, 16), (batch, 5, 16))
    engine = compiled(model, (batch, 5, 16), "a", "b")
    assert engine.landing.by_dtype == {"uint8": 2}
    assert {layer.kind for layer in engine.layers if layer.products} == {"MatMulIntegerToFloat"}


def test_float_convolutions_keep_their_nodes(
    compiled: Callable[..., Engine], net: Any, tmp_path: Path
) -> None:
    """Blocked layouts rename nodes and reorder weights; the layer still says what it came from."""
    build = net(carrier="float32")
    x = "x"
    for name in ("a", "b"):
        w = build.floats(f"{name}.w", (16, 16, 3, 3))
        x = build.node("Relu", [build.node("Conv", [x, w], name, pads=[1] * 4)], f"{name}.relu")
    model = build.write(tmp_path / "m.onnx", x, ("batch", 16, 8, 8), ("batch", 16, 8, 8))
    engine = compiled(model, ("batch", 16, 8, 8))
    assert [layer.products for layer in engine.layers if layer.products] == [("a",), ("b",)]
    assert {layer.dtype for layer in engine.layers if layer.products} == {"float32"}


def test_a_product_in_a_loop_hides_no_other(
    compiled: Callable[..., Engine], net: Any, tmp_path: Path
) -> None:
    """Its graph is not the main one; and a shared weight does not tell its nodes apart."""
    build = net(carrier="float32", activation="uint8")
    w = build.weight("w", (4, 4), 1)
    a = build.node("MatMul", [build.quantized("x", zero_point=128), w], "a")
    b = build.node("MatMul", [build.quantized(a, zero_point=128), w], "b")
    model = onnx.load(build.write(tmp_path / "m.onnx", b, (2, 4), (2, 4)))
    floats = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (2, 4)) for n in ("s", "t")]
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["s", "v"], ["t"], name="inner"),
            helper.make_node("Identity", ["c"], ["d"], name="go_on"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            floats[0],
        ],
        [helper.make_tensor_value_info("d", TensorProto.BOOL, []), floats[1]],
    )
    constants = {"v": np.ones((4, 4), np.float32), "turns": np.int64(2)}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()
    )
    loop = helper.make_node("Loop", ["turns", "", "x"], ["looped"], name="loop", body=body)
    model.graph.node.insert(0, loop)
    for node in model.graph.node[1:]:
        node.input[:] = ["looped" if name == "x" else name for name in node.input]
    onnx.save(model, tmp_path / "m.onnx")
    landing = compiled(tmp_path / "m.onnx", (2, 4), "a", "b").landing
    assert (landing.planned, landing.landed) == (2, 2)


def test_external_weights_come_along(
    ort: OnnxRuntime, compiled: Callable[..., Engine], net: Any, tmp_path: Path
) -> None:
    model, w = small(net, tmp_path / "m.onnx")
    folder = tmp_path / "external"
    folder.mkdir()
    onnx.save(
        onnx.load(model), folder / "m.onnx", save_as_external_data=True, size_threshold=0,
        location="m.data",
    )  # fmt: skip
    engine = compiled(folder / "m.onnx", ("batch", 4))
    assert engine.bytes == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    x = np.ones((1, 4), np.float32)
    with ort.session(tmp_path / "out" / engine.file) as session:
        found = session.run({"x": x})["relu.y"]
    np.testing.assert_allclose(found, np.maximum(x @ w, 0), rtol=1e-5, atol=1e-6)


def test_optimization_changes_speed_and_not_results(
    ort: OnnxRuntime, net: Any, tmp_path: Path
) -> None:
    """Integer kernels against Q/DQ as written: roundings apart, the same (40 dB)."""
    model = residual(net, tmp_path / "m.onnx")
    x = np.random.default_rng(3).uniform(-1, 1, (2, 8, 16, 16)).astype(np.float32)
    results = []
    for level in ("all", "none"):
        with ort.session(model, SessionOptions(level=level)) as session:
            results.append(next(iter(session.run({"x": x}).values())))
    noise = np.square(results[0] - results[1]).mean()
    assert noise < np.square(results[1]).mean() * 1e-4


# ── errors ─────────────────────────────────────────────────────────────────────────────────────


def saved(
    path: Path, nodes: list[onnx.NodeProto], ends: dict[str, tuple[Any, ...]], **form: Any
) -> Path:
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in ends.items()]
    constants = [onnx.numpy_helper.from_array(a, n) for n, a in form.pop("constants", {}).items()]
    graph = helper.make_graph(nodes, "graph", infos[:1], infos[1:], constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.example", 1)]
    versions = {"opset_imports": opsets, "ir_version": 10} | form
    path.write_bytes(helper.make_model(graph, **versions).SerializeToString())
    return path


def test_garbage_is_refused(ort: OnnxRuntime, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"garbage")
    with pytest.raises(InputRefused):
        ort.session(tmp_path / "m.onnx")


def test_an_unknown_operator_is_named(ort: OnnxRuntime, tmp_path: Path) -> None:
    node = helper.make_node("Strange", ["x"], ["y"], name="n", domain="com.example")
    with pytest.raises(InputRefused, match="Strange"):
        ort.session(saved(tmp_path / "m.onnx", [node], {"x": (1, 4), "y": (1, 4)}))


def test_a_node_that_does_not_fit_is_named(ort: OnnxRuntime, tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="the_node")
    w = {"w": np.ones((5, 4), np.float32)}
    model = saved(tmp_path / "m.onnx", [node], {"x": (1, 4), "y": (1, 4)}, constants=w)
    with pytest.raises(InputRefused) as caught:
        ort.session(model)
    assert "'the_node'" in (caught.value.where or "")


def test_a_node_that_fails_while_running_is_named(ort: OnnxRuntime, tmp_path: Path) -> None:
    node = helper.make_node("Reshape", ["x", "shape"], ["y"], name="the_node")
    shape = {"shape": np.array([3, 5])}
    model = saved(tmp_path / "m.onnx", [node], {"x": ("n", 4), "y": ("a", "b")}, constants=shape)
    with ort.session(model) as session, pytest.raises(InputRefused) as caught:
        session.run({"x": np.zeros((2, 4), np.float32)})
    assert "'the_node'" in (caught.value.where or "")
    assert "cannot be reshaped" in caught.value.message
    assert "onnxruntime_src" not in caught.value.message


def test_an_index_outside_a_table_comes_with_a_remedy(ort: OnnxRuntime, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["ids"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "ids"], ["y"], name="lookup"),
    ]
    table = {"table": np.ones((5, 2), np.float32)}
    model = saved(tmp_path / "m.onnx", nodes, {"x": ("n",), "y": ("n", 2)}, constants=table)
    with ort.session(model) as session, pytest.raises(InputRefused) as caught:
        session.run({"x": np.array([5], np.float32)})
    assert "'lookup'" in (caught.value.where or "")
    assert "give indices within its range" in str(caught.value.hint)


def test_running_out_of_memory_is_a_verdict(ort: OnnxRuntime, tmp_path: Path) -> None:
    node = helper.make_node("Expand", ["x", "shape"], ["y"], name="e")
    shape = {"shape": np.array([1 << 46])}
    model = saved(tmp_path / "m.onnx", [node], {"x": (1,), "y": ("a",)}, constants=shape)
    with ort.session(model) as session, pytest.raises(WorkerFailed) as caught:
        session.run({"x": np.zeros(1, np.float32)})
    assert caught.value.verdict == "oom"


@pytest.mark.parametrize(
    "form", [{"ir_version": 99}, {"opset_imports": [helper.make_opsetid("", 99)]}]
)
def test_a_graph_from_the_future_wants_a_newer_runtime(
    ort: OnnxRuntime, tmp_path: Path, form: dict[str, Any]
) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="r")
    model = saved(tmp_path / "m.onnx", [node], {"x": (1, 4), "y": (1, 4)}, **form)
    with pytest.raises(ToolchainMissing) as caught:
        ort.session(model)
    assert "newer onnxruntime" in (caught.value.hint or "")


def test_codes_of_4_bits_may_have_zero_points_in_place_of_signed_scales() -> None:
    rules = {name: OnnxRuntime().rules(target("cpu"), one) for name, one in PRECISIONS.items()
             if one.weight_codes_only and "cpu" in one.runs_on}  # fmt: skip
    for name in ("int4", "w4a8"):
        own = rules[name]
        assert own.weight.signed_scale and own.with_zero_points(False) is own
        other = own.with_zero_points(True)
        assert (other.weight.dtype, other.weight.symmetric) == ("uint4", False)
        assert not other.weight.signed_scale
        assert other.with_zero_points(True) is other and other.with_zero_points(False) == own
    for name in ("int8-weight-only", "int2", "nf4"):
        assert rules[name].with_zero_points(True) is rules[name].with_zero_points(False)

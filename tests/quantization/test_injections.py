"""Numbers that no model should hold, put into every tensor of a network: refused, told of by name,
or harmless; and no scale of any graph in any precision is ever other than finite and positive."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import Feed
from optkit.ground import graph
from optkit.ground.runtimes import SessionOptions, backend
from optkit.road.steps import perform
from tests.figures import Figures
from tests.networks import feed, network, sqnr
from tests.quantization.workshop import Chain

LAYERS = 4

# operator → the inputs that are scales
SCALES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"QuantizeLinear": (1,), "DequantizeLinear": (1,), "MatMulIntegerToFloat": (2, 3),
     "MatMulNBits": (2,), "MatMulBnb4": (2,), "TRT_FP4DynamicQuantize": (1,)}
)  # fmt: skip
WAYS = (
    ("cpu", "int8"), ("l4", "int8"), ("l4", "fp8"), ("rtx5090", "nvfp4"), ("cpu", "int4"),
    ("l4", "int4"), ("cpu", "nf4"), ("cpu", "w4a8"), ("cpu", "int8-weight-only"),
    ("l4", "int8-weight-only"),
)  # fmt: skip

STEM = """
  [stem] s = Conv <pads=[1,1,1,1]> (x, w_stem, b_stem)
  [stem_relu] sr = Relu (s)
  [conv1] c1 = Conv <pads=[1,1,1,1]> (sr, w_1, b_1)
  [relu1] r1 = Relu (c1)
  [conv2] c2 = Conv <pads=[1,1,1,1]> (r1, w_2, b_2)
  [add1] a1 = Add (c2, sr)
  [relu2] r2 = Relu (a1)
  [conv3] c3 = Conv <pads=[1,1,1,1], strides=[4,4]> (r2, w_3, b_3)
  [skip] k = Conv <strides=[4,4]> (r2, w_skip, b_skip)
  [sum] a2 = Add (c3, k)
  [flat] f = Reshape (a2, tokens)
  [turn] h0 = Transpose <perm=[0,2,1]> (f)
"""
LAYER = """
  [norm1_@] n1_@ = LayerNormalization (h@, g_1_@, b_1_@)
  [qkv_@] qkv_@v = MatMul (n1_@, w_qkv_@)
  [apart_@] apart_@v = Reshape (qkv_@v, heads)
  [spread_@] t_@ = Transpose <perm=[2,0,3,1,4]> (apart_@v)
  [q_@] q_@v = Gather <axis=0> (t_@, zero)
  [k_@] k_@v = Gather <axis=0> (t_@, one)
  [v_@] v_@v = Gather <axis=0> (t_@, two)
  [kt_@] kt_@v = Transpose <perm=[0,1,3,2]> (k_@v)
  [scores_@] sc_@ = MatMul (q_@v, kt_@v)
  [scaled_@] ss_@ = Mul (sc_@, root)
  [softmax_@] at_@ = Softmax (ss_@)
  [mix_@] m_@ = MatMul (at_@, v_@v)
  [back_@] mt_@ = Transpose <perm=[0,2,1,3]> (m_@)
  [merge_@] mm_@ = Reshape (mt_@, size)
  [out_@] o_@ = MatMul (mm_@, w_o_@)
  [add1_@] ra_@ = Add (h@, o_@)
  [norm2_@] n2_@ = LayerNormalization (ra_@, g_2_@, b_2_@)
  [up_@] u_@ = MatMul (n2_@, w_up_@)
  [upbias_@] ub_@ = Add (u_@, b_up_@)
  [gelu_@] ge_@ = Gelu (ub_@)
  [down_@] d_@ = MatMul (ge_@, w_down_@)
  [add2_@] h# = Add (ra_@, d_@)
"""
PARAMETERS = """float[N,3,12,12] x, float[16,3,3,3] w_stem, float[16] b_stem, float[16,16,3,3] w_1,
  float[16] b_1, float[16,16,3,3] w_2, float[16] b_2, float[32,16,3,3] w_3, float[32] b_3,
  float[32,16,1,1] w_skip, float[32] b_skip, float[32] g_end, float[32] b_end,
  float[10,32] w_head, float[10] b_head"""
OF_LAYER = """, float[32] g_1_@, float[32] b_1_@, float[32,96] w_qkv_@, float[32,32] w_o_@,
  float[32] g_2_@, float[32] b_2_@, float[32,64] w_up_@, float[64] b_up_@, float[64,32] w_down_@"""
CONSTANTS = """int64[3] tokens = {0, 32, 9}, int64[5] heads = {0, 9, 3, 4, 8},
  int64[3] size = {0, 9, 32}, int64 zero = {0}, int64 one = {1}, int64 two = {2},
  float root = {0.35}, int64[1] axis = {1}"""


def each_layer(text: str) -> str:
    return "".join(text.replace("@", str(i)).replace("#", str(i + 1)) for i in range(LAYERS))


TEXT = f"""<ir_version: 10, opset_import: ["" : 21]>
g ({PARAMETERS}{each_layer(OF_LAYER)}) => (float[N,10] y) <{CONSTANTS}> {{{STEM}{each_layer(LAYER)}
  [mean] p = ReduceMean <keepdims=0> (h{LAYERS}, axis)
  [end] e = LayerNormalization (p, g_end, b_end)
  [head] y = Gemm <transB=1> (e, w_head, b_head)
}}"""


def one_number(number: float) -> Callable[[np.ndarray], np.ndarray]:
    def put(w: np.ndarray) -> np.ndarray:
        found = w.copy()
        found.reshape(-1)[w.size // 2] = number
        return found

    return put


REFUSED = {"NaN": np.nan, "Inf": np.inf, "-Inf": -np.inf}
KINDS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = MappingProxyType(
    {
        "1e38": one_number(1e38),
        "-1e38": one_number(-1e38),
        "all zero": np.zeros_like,
        "constant": lambda w: np.full_like(w, 0.0625),  # no sum leaves FP16
        "denormal": lambda w: (w * np.float32(1e-39)).astype(np.float32),
    }
)
DEAD = ("all zero", "constant", "denormal")
TOLD = {"1e38": "reaches ", "-1e38": "reaches ", "all zero": "is constant (0)",
        "constant": "is constant (0.0625)", "denormal": "holds only denormal numbers"}  # fmt: skip


def parameters(model: ir.Model) -> list[str]:
    return [name for name in model.graph.initializers if name[0] in "wbg"]


def injected(change: Callable[[np.ndarray], np.ndarray], *names: str) -> ir.Model:
    model = network(TEXT)
    for name in names:
        value = model.graph.initializers[name]
        assert value.const_value is not None
        value.const_value = ir.tensor(change(value.const_value.numpy()), name=name)
    return model


def scales_of(model: ir.Model) -> Iterator[tuple[str, np.ndarray]]:
    """Every scale that a graph holds, float32, behind the scales of its own if it has two levels.
    Those that a kernel finds while it runs have only the outer one. Of signed ones, which 4-bit
    blocks of ONNX Runtime have, the size."""
    for node in model.graph:
        for index in SCALES.get(node.op_type, ()):
            value = node.inputs[index]
            assert value is not None
            numbers, producer = graph.array(value), value.producer()
            if numbers is None:
                assert producer is not None and producer.op_type == "DequantizeLinear", value
                parts = [graph.array(part) for part in producer.inputs[:2] if part is not None]
                known = [part.astype(np.float32) for part in parts if part is not None]
                assert known, f"{value} is no constant"
                numbers = np.multiply(known[0], known[-1]) if len(known) == 2 else known[0]
            numbers = numbers.astype(np.float32)
            signed = node.op_type == "MatMulNBits" and node.attributes["bits"].as_int() == 4
            yield f"{node.name}: {value.name}", np.abs(numbers) if signed else numbers


def check_scales(folder: Path) -> int:
    """How many scales the graphs in a folder hold; each is finite and positive."""
    found = [pair for file in folder.glob("*.onnx") for pair in scales_of(graph.load(file))]
    for where, scale in found:
        assert np.isfinite(scale).all() and (scale > 0).all(), (where, scale.min(), scale.max())
    return len(found)


def run(path: Path, given: Feed) -> np.ndarray:
    with backend("onnxruntime").session(path, SessionOptions(level="basic", threads=1)) as session:
        return session.run(given)["y"]


def quantized(
    made: Any, where: str, precision: str, **settings: Any
) -> tuple[Path, dict[str, Any]]:
    """The folder with every form of the quantized graph, whose scales are checked."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # of numpy: an overflow
        folder, meta = made.quantize(where, precision, **settings)
    check_scales(folder)
    if where == "cpu":
        folder = made.deployed(folder).parent
        check_scales(folder)
    assert all(np.isfinite(node["weight_scale"]).all() for node in meta["log"]["nodes"].values())
    return folder, meta


def readers(model: ir.Model, name: str) -> list[str]:
    return [str(node.name) for node in model.graph.initializers[name].consumers()]


def check_told(kind: str, name: str, nodes: list[str], meta: dict[str, Any]) -> None:
    """A weight that is quantized is told of by its name; one that is not has the reason."""
    for node in nodes:
        if node in meta["log"]["nodes"]:
            told = [w for w in meta["log"]["warnings"] if f"weight {name!r}" in w]
            assert [TOLD[kind] in w for w in told] == [True], (name, meta["log"]["warnings"])
        else:
            assert meta["assignment"]["reasons"][node]


@pytest.mark.slow
def test_the_network_says_nothing_by_itself(tmp_path: Path) -> None:
    model = network(TEXT)
    made = Chain(tmp_path / "chain", model, [feed(model, 8, seed) for seed in range(4)])
    for where, precision in WAYS:
        folder, meta = quantized(made, where, precision)
        planned = meta["log"]["nodes"]
        assert len(planned) >= 4 * LAYERS and not meta["log"]["warnings"]
        assert check_scales(folder) >= len(planned)


def refused(name: str, kind: str, folder: Path) -> None:
    (folder / "out").mkdir()
    graph.save(injected(one_number(REFUSED[kind]), name), folder / "model.onnx")
    with pytest.raises(InputRefused) as caught:
        perform("adopt", {"model": folder}, {}, folder / "out", lambda *told: None)
    assert name in f"{caught.value.where}"
    assert not list((folder / "out").iterdir())


def harmless(names: list[str], kind: str, folder: Path, ways: Iterable[tuple[str, str]]) -> None:
    """These dead tensors are told of by name if their product is quantized, and nothing is lost;
    dead biases and norms are ordinary."""
    model = injected(KINDS[kind], *names)
    made = Chain(folder / "chain", model, [feed(model, 8, seed) for seed in range(4)])
    given = feed(model, 8, 9)
    reference = run(made.fused / "model.onnx", given)
    # a factor that is moved into a constant weight makes it another
    asis = {"smooth": "off", "equalize": "off"} if kind == "constant" else {}
    for where, precision in ways:
        found, meta = quantized(made, where, precision, **asis)
        for name in names:
            if name.startswith("w_"):
                check_told(kind, name, readers(model, name), meta)
        file = "model.onnx" if where == "cpu" else "simulation.onnx"
        with np.errstate(divide="ignore"):  # nothing is lost where nothing is left
            assert sqnr(reference, run(found / file, given)) > 12, (where, precision)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DEAD)
@pytest.mark.parametrize("half", [0, 1])
def test_many_dead_tensors_are_reported_and_do_no_harm(
    kind: str, half: int, tmp_path: Path,
) -> None:  # fmt: skip
    """Every other tensor of the network at once."""
    harmless(parameters(network(TEXT))[half::2], kind, tmp_path, WAYS[half::2])


def overflowing(name: str, kind: str, folder: Path, way: tuple[str, str]) -> None:
    """One number of 1e38: it, or the first value that it spoils, is told of by name, and what reads
    a spoiled value stays in float."""
    model = injected(KINDS[kind], name)
    made = Chain(folder / "chain", model, [feed(model, 8, seed) for seed in range(2)])
    _, meta = quantized(made, *way)
    if name.startswith("w_"):
        check_told(kind, name, readers(model, name), meta)
    spoiled = {w.split("'")[1] for w in made.calibrated["warnings"] if "has no range" in w}
    own = any(f"weight {name!r}" in w for w in meta["log"]["warnings"])
    assert spoiled or own or name == "b_head", name  # nothing reads what that is added to
    assert not spoiled & meta["log"]["activations"].keys()


def check(name: str, kind: str, folder: Path, way: tuple[str, str]) -> None:
    if kind in REFUSED:
        refused(name, kind, folder)
    elif kind in DEAD:
        harmless([name], kind, folder, [way])
    else:
        overflowing(name, kind, folder, way)


@pytest.mark.slow
def test_each_kind_in_each_tensor(figures: Figures, tmp_path: Path) -> None:
    """Refused by name, told of by name, or without harm."""
    names, kinds = parameters(network(TEXT)), (*REFUSED, "1e38", *DEAD)
    assert (len(names), len(kinds)) == (50, 7)
    every = list(product(names, kinds))
    for number, (name, kind) in list(enumerate(every))[:: figures.times(15, 1)]:
        (folder := tmp_path / str(number)).mkdir()
        check(name, kind, folder, WAYS[number // len(kinds) % len(WAYS)])
        shutil.rmtree(folder)
    figures.tell(
        "a tensor with numbers that no model should hold", len(every),
        "50 weights, biases and norms × NaN, Inf, -Inf, 1e38, all zero, constant, denormal, in 10 "
        "pairs of target and precision: refused or told by name, or no harm; all scales are "
        "finite and above zero",
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_inputs_that_are_no_data_are_reported(kind: str, tmp_path: Path) -> None:
    model = network(TEXT)
    feeds = [{"x": KINDS[kind](feed(model, 8, seed)["x"])} for seed in range(4)]
    made = Chain(tmp_path / "chain", model, feeds)
    mine = [w for w in made.calibrated["warnings"] if w.startswith("tensor 'x'")]
    huge = "1e38" in kind
    assert len(mine) == 1 and ("has no range: " if huge else TOLD[kind]) in mine[0]
    for where in ("cpu", "l4"):
        _, meta = quantized(made, where, "int8")
        if huge and where == "l4":
            assert meta["assignment"]["reasons"]["stem"].startswith(
                "what it reads has no range: x: "
            )

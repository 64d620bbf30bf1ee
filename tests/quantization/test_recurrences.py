"""LSTMs with codes: the operator against numpy, which cells get them, and a build."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import optkit
from optkit.craft.quantization.noisy_cells import CELLS, insert_cells
from optkit.craft.quantization.numerics.output_noise import LEAST_DB
from optkit.craft.quantization.placement.assign import assign
from optkit.craft.quantization.placement.recurrent_cells import UNJUDGED
from optkit.craft.quantization.qdq.coded_recurrences import quantize_recurrences
from optkit.facts.assignment import Scheme
from optkit.facts.errors import InputRefused
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import PRECISIONS, Precision
from optkit.facts.tensors import Feed
from optkit.ground import graph
from optkit.ground.devices import target
from optkit.ground.runtimes import SessionOptions, backend
from optkit.show.report.contract import report_of
from tests.networks import network, sqnr
from tests.quantization.workshop import Chain

INT8, FP32 = PRECISIONS["int8"], PRECISIONS["fp32"]
UNITS = 128


def rules(name: str = "int8", where: str = "cpu") -> PlacementRules:
    own = backend("onnxruntime" if where == "cpu" else "tensorrt-rtx")
    return own.rules(target(where), PRECISIONS[name])


def scheme(name: str = "int8", where: str = "cpu") -> Scheme:
    return Scheme(PRECISIONS[name], "fp32", {PRECISIONS[name]: rules(name, where)})


def stacked(units: int = UNITS, extra: str = "") -> ir.Model:
    """Two cells and a product. `extra`: inputs of the first cell after its two weights."""
    four = 4 * units
    return network(f"""<ir_version: 10, opset_import: ["" : 21]>
      g (float[T,N,16] x, float[1,{four},16] w1, float[1,{four},{units}] w_r1,
         float[1,{four},{units}] w2, float[1,{four},{units}] w_r2, float[{units},8] w_head,
         float[1,{3 * units}] w_peep) => (float[N,8] y) {{
        [first] a = LSTM <hidden_size = {units}> (x, w1, w_r1{extra})
        axis = Constant <value = int64[1] {{1}}> ()
        [flat] b = Squeeze (a, axis)
        [second] c, h = LSTM <hidden_size = {units}> (b, w2, w_r2)
        none = Constant <value = int64[1] {{0}}> ()
        [last] d = Squeeze (h, none)
        [head] y = MatMul (d, w_head)
      }}""")


def run(model: ir.Model, folder: Path, feed: Feed) -> Feed:
    graph.save(model, folder / "model.onnx")
    onnx.checker.check_model(str(folder / "model.onnx"), full_check=True)
    with backend("onnxruntime").session(
        folder / "model.onnx", SessionOptions(1, level="none")
    ) as session:
        return session.run(feed)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def rounded(x: np.ndarray) -> np.ndarray:
    """By the one scale of DynamicQuantizeLinear, whose range includes zero."""
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    scale = np.float32((high - low) / 255) or np.float32(1)
    zero = np.rint(np.float32(-low) / scale)
    return np.asarray((np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale)


def by_numpy(x: np.ndarray, w: np.ndarray, r: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """One direction of an LSTM [T, N, H] of x [T, N, I], as ONNX defines it (gates i, o, f, c),
    whose input and states are rounded to 8 bits."""
    hidden = r.shape[1]
    h = c = np.zeros((x.shape[1], hidden), np.float32)
    inputs = rounded(x) @ w.T + bias[: 4 * hidden] + bias[4 * hidden :]
    outputs = []
    for step in inputs:
        i, o, f, g = np.split(step + rounded(h) @ r.T, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return np.stack(outputs)


@settings(max_examples=20, deadline=None)
@given(
    data=st.data(),
    steps=st.integers(1, 5),
    batch=st.integers(1, 3),
    sizes=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    both=st.booleans(),
)
def test_a_cell_with_codes_computes_what_numpy_does(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, steps: int, batch: int,
    sizes: tuple[int, int], both: bool,
) -> None:  # fmt: skip
    (inputs, units), directions = sizes, 2 if both else 1
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    weights = {
        "w": random.uniform(-1, 1, (directions, 4 * units, inputs)).astype(np.float32),
        "w_r": random.uniform(-1, 1, (directions, 4 * units, units)).astype(np.float32),
        "b": random.uniform(-1, 1, (directions, 8 * units)).astype(np.float32),
    }
    way = "bidirectional" if both else "forward"
    declared = ", ".join(f"float[{','.join(map(str, a.shape))}] {n}" for n, a in weights.items())
    model = network(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[T,N,{inputs}] x, {declared}) => (float[T,{directions},N,{units}] y) {{
          [cell] y = LSTM <hidden_size = {units}, direction = "{way}"> (x, w, w_r, b) }}""",
        **weights,
    )
    fmt = rules().weight
    log = quantize_recurrences(model, {"cell": fmt})
    assert 0 < log["cell"][0] <= log["cell"][1]
    assert {node.op_type for node in model.graph} == {"DynamicQuantizeLSTM"}
    x = random.normal(size=(steps, batch, inputs)).astype(np.float32)
    found = run(model, tmp_path_factory.mktemp("cell"), {"x": x})["y"]
    largest = 2 ** (fmt.bits - 1) - 1
    for way_index in range(directions):
        w, r = (
            np.rint(a[way_index] / (s := np.abs(a[way_index]).max(1, keepdims=True) / largest)) * s
            for a in (weights["w"], weights["w_r"])
        )
        turn = -1 if way_index else 1
        wanted = by_numpy(x[::turn], w, r, weights["b"][way_index])[::turn]
        # an input between two codes may become either of them
        assert np.allclose(found[:, way_index], wanted, atol=0.03)
        assert np.abs(found[:, way_index] - wanted).mean() < 0.004


def test_codes_take_a_quarter_of_the_bytes_and_keep_names(tmp_path: Path) -> None:
    model = stacked()
    before = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value)
    quantize_recurrences(model, {"first": rules().weight, "second": rules().weight})
    after = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value)
    assert after < 0.3 * before
    assert [n.name for n in model.graph if n.op_type == "DynamicQuantizeLSTM"] == [
        "first",
        "second",
    ]
    assert not {"w1", "w_r1", "w2", "w_r2"} & model.graph.initializers.keys()


def test_a_weight_that_is_not_finite_is_named() -> None:
    model = stacked()
    weight = np.array(graph.array(model.graph.initializers["w_r2"]))
    weight[0, 5, 5] = np.nan
    model.graph.initializers["w_r2"].const_value = ir.tensor(weight, name="w_r2")
    with pytest.raises(InputRefused, match="w_r2"):
        quantize_recurrences(model, {"second": rules().weight})


@pytest.mark.parametrize(
    ("model", "overrides", "first"),
    [
        (stacked(), {}, UNJUDGED),
        (stacked(), {"first": INT8}, None),
        (stacked(), {"first": FP32}, "quantizes nothing"),
        (stacked(UNITS // 2), {}, "fewer than 128 hidden units"),
        (stacked(UNITS // 2), {"fi*": INT8}, None),
        (stacked(extra=", , , , , w_peep"), {"first": INT8}, "peepholes"),
    ],
)
def test_which_cells_get_codes(
    model: ir.Model, overrides: dict[str, Precision], first: str | None
) -> None:
    own = scheme()
    found = assign(model, own, overrides=overrides)
    assert found.recurrences == {"first", "second"}
    assert found.nodes["first"] == (INT8 if first is None else FP32)
    assert (first or "") in found.reasons.get("first", "")
    assert set(found.quantized()) == {"head"}


@pytest.mark.parametrize(("name", "where"), [("int4", "cpu"), ("int8", "l4")])
def test_other_backends_and_precisions_do_not_consider_cells(name: str, where: str) -> None:
    found = assign(stacked(), scheme(name, where))
    assert set(found.nodes) == {"head"} and not found.recurrences


@pytest.mark.parametrize("on", [(), (0,), (1,), (0, 1)])
def test_a_switch_gives_its_cell_codes_and_no_other(tmp_path: Path, on: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal((6, 2, 16)).astype(np.float32)
    switched, own = stacked(), scheme()
    found = insert_cells(switched, assign(switched, own), rules().weight)
    assert [cell.name for cell in found] == ["first", "second"]
    assert found[0].weights == 4 * UNITS * (16 + UNITS)
    plain = stacked()
    quantize_recurrences(plain, {found[at].name: rules().weight for at in on})
    feed = {"x": x}
    wanted = run(plain, tmp_path, feed)["y"]
    got = run(switched, tmp_path, {**feed, CELLS: np.isin([0, 1], on)})["y"]
    assert np.array_equal(got, wanted)


def test_a_cell_whose_input_has_few_large_values_stays_in_float(tmp_path: Path) -> None:
    """Its quiet part tells the samples apart, and one scale loses it."""
    random = np.random.default_rng(0)
    quiet = stacked()
    feed = {"x": random.standard_normal((12, 8, 16)).astype(np.float32)}
    chain = Chain(tmp_path / "quiet", quiet, [feed])
    found = chain.noisy_nodes("cpu", "int8")
    assert found["nodes"] == {"first": "int8", "second": "int8"}
    assert "dB at the outputs" in found["reasons"]["first"] and not found.get("warnings")
    loud = stacked()
    w1 = np.array(graph.array(loud.graph.initializers["w1"]))
    w1[..., 0] = 0  # nothing reads the loud input
    loud.graph.initializers["w1"].const_value = ir.tensor(w1, name="w1")
    feed["x"][..., 0] *= 3000
    found = Chain(tmp_path / "loud", loud, [feed]).noisy_nodes("cpu", "int8")
    assert found["nodes"] == {"first": "float", "second": "int8"}
    [note] = found["warnings"]
    assert "'first' is kept in float" in note
    assert "outputs: these" in found["reasons"]["first"]
    named = chain.noisy_nodes("cpu", "int8", nodes={"first": "fp32"})
    assert named["nodes"] == {"second": "int8"}
    _, meta = chain.quantize("cpu", "int8", nodes={"first": "int8", "second": "int8"})
    assert set(meta["log"]["recurrences"]) == {"first", "second"}


def test_batches_are_judged_too(tmp_path: Path) -> None:
    """All samples of a batch share the scale of a cell's input, so a loud one costs the others."""
    four = 4 * UNITS
    model = network(f"""<ir_version: 10, opset_import: ["" : 21]>
      g (float[N,6,16] x, float[1,{four},16] w1, float[1,{four},{UNITS}] w_r1, float[{UNITS},8] w_h)
        => (float[N,8] y) {{
        [turn] t = Transpose <perm = [1, 0, 2]> (x)
        [cell] a, h = LSTM <hidden_size = {UNITS}> (t, w1, w_r1)
        none = Constant <value = int64[1] {{0}}> ()
        [last] d = Squeeze (h, none)
        [head] y = MatMul (d, w_h)
      }}""")
    x = np.random.default_rng(0).standard_normal((32, 6, 16)).astype(np.float32)
    assert Chain(tmp_path / "alike", model, [{"x": x}]).noisy_nodes("cpu", "int8")["nodes"] == {
        "cell": "int8"
    }
    x[::8] *= 3000  # alone each sample has a scale that fits it
    found = Chain(tmp_path / "mixed", model, [{"x": x}]).noisy_nodes("cpu", "int8")
    assert found["nodes"]["cell"] == "float" and "batches of 8" in found["reasons"]["cell"]


class Speaker(nn.Module):
    """A speaker encoder in small."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, UNITS, 2, batch_first=True)
        self.head = nn.Linear(UNITS, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.lstm(x)[0][:, -1])
        return found


@pytest.mark.slow
def test_a_build_quantizes_cells_and_they_land(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 10, 16)
    artifact = optkit.build(
        Speaker().eval(), x, calibration=[x], target="cpu", precision="int8",
        recipe={"name": "speaker", "bench": {"seconds": 0.1, "warmup_seconds": 0.05},
                "quantization": {"nodes": {"*head*": "int8"}}},
        out=tmp_path / "out", workspace=optkit.Workspace(tmp_path / "cache"),
    )  # fmt: skip
    report = report_of(artifact)
    cells = {row.node: row for row in report.quantization if "lstm" in row.node.lower()}
    assert len(cells) == 2, report.quantization
    if all(row.precision == "fp32" for row in cells.values()):  # measured slower on this machine
        assert all("measured" in (row.reason or "") for row in cells.values())
        return
    assert {row.precision for row in cells.values()} == {"int8"}
    landed = {row.node: row.dtype for row in report.landing if row.landed}
    assert {landed[name] for name in cells} == {"int8"}
    kinds = Counter(node.op_type for node in graph.load(artifact.model_path).graph)
    assert kinds["DynamicQuantizeLSTM"] == 2 and not kinds["LSTM"]
    feed = {"x": np.random.default_rng(1).standard_normal((4, 10, 16)).astype(np.float32)}
    found = {}
    for name, place in (("exact", artifact.baseline_path), ("codes", artifact.path)):
        with backend("onnxruntime").session(place / "model.onnx", SessionOptions(1)) as session:
            [found[name]] = session.run(feed).values()
    assert sqnr(found["exact"], found["codes"]) > LEAST_DB - 3

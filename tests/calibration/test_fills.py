"""Fills of masks: which constants reach a value, and how the observers treat them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest

from optkit.craft.calibration import Fills, fills, observe
from optkit.facts.tensors import Feed
from optkit.ground import graph
from optkit.ground.runtimes import Session, backend
from optkit.ground.statistics import Statistics, Tap

MIN = float(np.finfo(np.float32).min)
F, WHOLE, B = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL


def model(
    nodes: list[tuple[str, str, str] | tuple[str, str, str, dict[str, object]]],
    constants: dict[str, object],
) -> graph.Graph:
    """Nodes as (op, "inputs", output[, attributes]); inputs x [batch, 4], m [batch, 4] (int64) and
    b [batch, 4] (bool)."""
    made = [onnx.helper.make_node(n[0], n[1].split(), [n[2]], **(n[3] if len(n) > 3 else {}))
            for n in nodes]  # fmt: skip
    inputs = [onnx.helper.make_tensor_value_info(name, dtype, ["batch", 4])
              for name, dtype in (("x", F), ("m", WHOLE), ("b", B))]  # fmt: skip
    initializers = [
        onnx.numpy_helper.from_array(np.asarray(value, getattr(value, "dtype", np.float32)), name)
        for name, value in constants.items()
    ]
    outputs = [onnx.helper.make_empty_tensor_value_info(n[2]) for n in nodes[-1:]]
    proto = onnx.helper.make_graph(made, "g", inputs, outputs, initializers)
    whole = onnx.helper.make_model(proto, opset_imports=[onnx.helper.make_opsetid("", 21)])
    whole.ir_version = 10
    path = Path(TEMPORARY) / "model.onnx"
    onnx.save(whole, path)
    return graph.infer_shapes(graph.load(path))


TEMPORARY = ""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> None:
    global TEMPORARY
    TEMPORARY = str(tmp_path)


def found(nodes: list, constants: dict[str, object], name: str = "y") -> Fills | None:  # type: ignore[type-arg]
    return fills(model(nodes, constants), [name]).get(name)


MASKED = [
    ("Cast", "m", "f", {"to": F}),
    ("Sub", "one f", "inverse"),
    ("Mul", "inverse fill", "bias"),
    ("Add", "x bias", "y"),
]


def test_where_writes_its_constant() -> None:
    assert found([("Where", "b x fill", "y")], {"fill": -1e9}) == Fills((-1e9,))
    assert found([("Where", "b x fill", "y")], {"fill": -np.inf}) == Fills(infinite=True)
    assert found([("Where", "b x fill", "y")], {"fill": -50.0}) is None  # a number like others


@pytest.mark.parametrize("fill", [-1e4, -1e9, MIN])
def test_an_added_mask_takes_half_of_its_side(fill: float) -> None:
    got = found(MASKED, {"one": 1.0, "fill": fill})
    assert got is not None and got.low == np.float32(fill) / 2 and got.high is None
    x = np.array([3.0, -40.0, fill + 3, fill, -0.0], np.float32)
    assert got.match(x).tolist() == [False, False, True, True, False]


def test_a_sum_of_two_masks_overflows_to_infinity() -> None:
    twice = [*MASKED[:3], ("Where", "b zero fill", "causal"), ("Add", "causal bias", "both"),
             ("Add", "x both", "y")]  # fmt: skip
    got = found(twice, {"one": 1.0, "fill": MIN, "zero": 0.0})
    assert got is not None and got.infinite
    x = np.array([1, MIN, -np.inf], np.float32)
    assert got.match(x).tolist() == [False, True, True]


def test_layout_carries_a_fill_and_computing_ends_it() -> None:
    start = [("Where", "b x fill", "w")]
    constants = {"fill": -1e9, "shape": np.array([-1, 2]), "wide": np.ones((4, 4), np.float32)}
    assert found([*start, ("Reshape", "w shape", "r"), ("Transpose", "r", "y")], constants)
    assert found([*start, ("Softmax", "w", "y")], constants) is None
    assert found([*start, ("MatMul", "w wide", "y")], constants) is None


def test_a_large_factor_of_data_is_no_fill() -> None:
    assert found([("Mul", "x big", "y")], {"big": 1e5}) is None
    assert found([("Mul", "x big", "s"), ("Add", "s x", "y")], {"big": 1e5}) is None


def test_large_numbers_among_many_are_data() -> None:
    table = np.linspace(0, 1e6, 400, dtype=np.float32).reshape(100, 4)
    nodes = [("Slice", "table from to", "s"), ("Add", "x s", "y")]
    assert found(nodes, {"table": table, "from": np.array([0]), "to": np.array([1])}) is None


def test_a_causal_mask_given_as_a_constant() -> None:
    causal = np.triu(np.full((4, 4), MIN, np.float32), 1)
    nodes = [("Slice", "mask from to", "s"), ("Add", "x s", "y")]
    got = found(nodes, {"mask": causal, "from": np.array([0]), "to": np.array([1])})
    assert got is not None and got.low == np.float32(MIN) / 2 and got.infinite


def run(built: graph.Graph, x: np.ndarray, names: list[str], axis: int | None = -1) -> Statistics:
    keep = np.arange(x.size).reshape(x.shape) % 3 > 0
    path = Path(TEMPORARY) / "tapped.onnx"
    graph.save(graph.expose(built, names), path)
    feed: Feed = {"x": x, "m": keep.astype(np.int64), "b": keep}
    with backend("onnxruntime").session(path) as session:
        taps = [Tap(name, axis, rows=axis is not None) for name in names]
        needed = {info.name: feed[info.name] for info in session.inputs}
        return observe(
            session, [needed], taps, memory_bytes=1 << 24, progress=lambda *told: None,
            fills=fills(built, names),
        )  # fmt: skip


@pytest.mark.parametrize("fill", [-1e4, MIN, -np.inf])
def test_ranges_of_masked_values_are_those_of_the_data(fill: float) -> None:
    x = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
    kept = np.arange(256).reshape(64, 4) % 3 > 0
    built = model([("Where", "b x fill", "y")], {"fill": fill})
    value = run(built, x, ["y"]).value("y")
    assert value.unbounded is None and value.excluded == (~kept).sum()
    assert (value.low, value.high) == (x[kept].min(), x[kept].max())
    assert value.count == kept.sum()
    assert value.rows is not None and value.rows.data.max() == value.high  # fills are zeros there


def test_a_value_of_fills_alone_has_no_range() -> None:
    built = model([("Where", "b fill fill", "y")], {"fill": -1e9})
    value = run(built, np.ones((8, 4), np.float32), ["y"]).value("y")
    assert value.unbounded == "nothing but fills of a mask" and value.excluded == 32


@pytest.mark.parametrize(
    ("injected", "told"),
    [
        (np.nan, "has no range: NaN in sample 21"),
        (np.inf, "has no range: Inf in sample 21"),
        (-np.inf, "has no range: -Inf in sample 21"),
        (1e38, "has no range: 1e+38, beyond what FP16 can scale, in sample 21"),
        ("zero", "is constant (0)"),
        ("constant", "is constant (0.5)"),
        ("denormal", "holds only denormal numbers"),
    ],
)
def test_every_spoiled_value_of_fifty_is_reported_by_name(injected: float | str, told: str) -> None:
    """Every other of fifty values is spoiled, as an overflow or a dead layer inside would do it."""
    nodes: list[tuple[str, str, str]] = []
    for i in range(50):
        nodes.append(("Mul", f"x factor{i}", f"v{i}"))
    nodes.append(("Sum", " ".join(f"v{i}" for i in range(50)), "total"))
    built = model(nodes, {f"factor{i}": 0.5 + i / 50 for i in range(50)})  # type: ignore[arg-type]
    names = [f"v{i}" for i in range(50)]
    bad = set(names[::2])
    x = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
    path = Path(TEMPORARY) / "tapped.onnx"
    graph.save(graph.expose(built, names), path)
    with backend("onnxruntime").session(path) as session:
        statistics = observe(
            Spoiling(session, bad, x[21], injected),
            [{"x": x[i : i + 8]} for i in range(0, 64, 8)],
            [Tap(name, -1, rows=True, moments=True) for name in names],
            memory_bytes=1 << 26,
            progress=lambda *told: None,
            fills=fills(built, names),
        )
    warnings = statistics.warnings()
    for name in names:
        mine = [w for w in warnings if f"{name!r}" in w]
        assert [told in w for w in mine] == [True] * (name in bad), (name, mine)
        value = statistics.value(name)
        if name not in bad or not told.startswith("has no range"):
            assert value.unbounded is None and np.isfinite([value.low, value.high]).all()


class Spoiling:
    """A session whose values `bad` hold `injected` in the sample `victim`, or, for a word, are that
    everywhere."""

    def __init__(
        self, session: Session, bad: set[str], victim: np.ndarray, injected: float | str
    ) -> None:
        self._session, self._bad, self._victim = session, bad, victim
        self._injected = injected
        self.inputs = tuple(info for info in session.inputs if info.name == "x")
        self.outputs = session.outputs

    def run(self, feed: Feed) -> Feed:
        others = {"m": np.ones(feed["x"].shape, np.int64), "b": np.ones(feed["x"].shape, bool)}
        outputs = self._session.run(
            {info.name: (feed | others)[info.name] for info in self._session.inputs}
        )
        row = np.flatnonzero((feed["x"] == self._victim).all(axis=1))
        for name in self._bad:
            value = outputs[name] = outputs[name].copy()
            if isinstance(self._injected, float):
                value[row, 2] = self._injected
            elif self._injected == "denormal":
                value *= np.float32(1e-40)
            else:
                value[...] = {"zero": 0.0, "constant": 0.5}[self._injected]
        return outputs

    def close(self) -> None: ...

    def __enter__(self) -> Spoiling:
        return self

    def __exit__(self, *exc: object) -> None: ...

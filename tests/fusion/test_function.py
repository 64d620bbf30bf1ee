"""A function of one number becomes its operator, however it is written; another function stays."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.craft.fusion import fuse
from optkit.craft.fusion.ort import to_ort
from tests.fusion.conftest import Fuse, run
from tests.fusion.expressions import Expression, e, where, written

Form = Callable[[Expression], Expression]

_C = sqrt(2 / pi)

STANDARD: dict[str, tuple[str, Form]] = {
    "1 / (1 + exp(-x))": ("Sigmoid", lambda x: 1 / (1 + e(-x))),
    "exp(x) / (1 + exp(x))": ("Sigmoid", lambda x: e(x) / (1 + e(x))),
    "one minus it": ("Sigmoid", lambda x: 1 - 1 / (e(x) + 1)),
    "sinh over cosh": ("Tanh", lambda x: (e(x) - e(-x)) / (e(x) + e(-x))),
    "2 sigmoid(2x) - 1": ("Tanh", lambda x: 2 * (2 * x).op("Sigmoid") - 1),
    "max(x, 0)": ("Relu", lambda x: x.op("Max", 0.0)),
    "where(x > 0, x, 0)": ("Relu", lambda x: where(x.op("Greater", 0.0), x, 0.0)),
    "(x + |x|) / 2": ("Relu", lambda x: (x + x.op("Abs")) / 2),
    "max(x, x / 10)": ("LeakyRelu", lambda x: x.op("Max", x * 0.1)),
    "where(x > 0, x, x / 10)": ("LeakyRelu", lambda x: where(x.op("Greater", 0.0), x, x * 0.1)),
    "clip(x / 6 + 1/2, 0, 1)": ("HardSigmoid", lambda x: (x / 6 + 0.5).op("Clip", 0.0, 1.0)),
    "x clip(x + 3, 0, 6) / 6": ("HardSwish", lambda x: x * (x + 3).op("Clip", 0.0, 6.0) / 6),
    "x min(max(x + 3, 0), 6) / 6": (
        "HardSwish", lambda x: x * (x + 3).op("Max", 0.0).op("Min", 6.0) / 6,
    ),
}  # fmt: skip
ORT: dict[str, tuple[str, Form]] = {
    "x / (1 + exp(-1.702 x))": ("QuickGelu", lambda x: x / (1 + e(-1.702 * x))),
    "x exp(x) / (1 + exp(x))": ("QuickGelu", lambda x: x * e(x) / (1 + e(x))),
    "erf": ("Gelu", lambda x: x * (0.5 + 0.5 * (x * 0.70710678).op("Erf"))),
    "cube by products": (
        "Gelu", lambda x: 0.5 * x * (1 + (_C * (x + 0.044715 * (x * x * x))).op("Tanh")),
    ),
    "cube factored": (
        "Gelu", lambda x: 0.5 * x * (1 + (_C * x * (1 + 0.044715 * x * x)).op("Tanh")),
    ),
    "tanh by exp": (
        "Gelu", lambda x: x * (1 - 1 / (e(2 * _C * (x + 0.044715 * x.op("Pow", 3.0))) + 1)),
    ),
    "a sigmoid": (
        "Gelu", lambda x: x * (2 * _C * (x + 0.044715 * (x * x * x))).op("Sigmoid"),
    ),
}  # fmt: skip
OTHERS: dict[str, Form] = {
    "other exponent": lambda x: x / (1 + e(-1.0 * x * x)),
    "sigmoid that is not whole": lambda x: 1 / (1.001 + e(-x)),
    "hard swish with another bend": lambda x: x * (x + 3).op("Clip", 0.0, 5.9) / 6,
    "tanh gelu with another weight": lambda x: (
        0.5 * x * (1 + (_C * (x + 0.0449 * (x * x * x))).op("Tanh"))
    ),
    "relu with a step": lambda x: where(x.op("Greater", 0.01), x, 0.0),
    "a narrow band": lambda x: where(
        x.op("Greater", 2.345), where(x.op("Less", 2.3451), 5.0, 1 / (1 + e(-x))), 1 / (1 + e(-x))
    ),
    "a hole by a square": lambda x: where(
        ((x - 2.345) * (x - 2.345)).op("Less", 1e-8), 5.0, 1 / (1 + e(-x))
    ),
    "sigmoid and a little": lambda x: 1 / (1 + e(-x)) + 1e-6,
    "a hole": lambda x: where((x - 2.345).op("Abs").op("Less", 1e-4), 5.0, 1 / (1 + e(-x))),
}
ALMOST: dict[str, Form] = {
    "clip(x, 0, 100)": lambda x: x.op("Clip", 0.0, 100.0),
    "min(max(x, 0), 1e6)": lambda x: x.op("Max", 0.0).op("Min", 1e6),
    "max(x, 1e-6)": lambda x: x.op("Max", 1e-6),
    "max(x, 1e-30)": lambda x: x.op("Max", 1e-30),
    "relu and a little": lambda x: x.op("Max", 0.0) + 1e-6,
    "gelu up to 100": lambda x: (
        0.5 * x.op("Min", 100.0) * (1 + (x.op("Min", 100.0) * sqrt(0.5)).op("Erf"))
    ),
    "a bend of the second and the third": lambda x: (
        x.op("Clip", 0.0, 3e9) + x.op("Max", 0.0) - x.op("Min", 5e9, 2e9).op("Max", 0.0)
    ),
}  # fmt: skip
"""Functions that are another one at almost all numbers, or but for a little."""


@pytest.mark.parametrize("case", STANDARD)
def test_it_is_one_operator(fused: Fuse, case: str) -> None:
    op, form = STANDARD[case]
    after, log = fused(written(form))
    assert [node.op_type for node in after.graph if node.op_type != "Identity"] == [op]
    assert log.counts["one_function"] >= 1


@pytest.mark.parametrize("case", ORT)
def test_onnx_runtime_has_one_operator(case: str) -> None:
    op, form = ORT[case]
    before = written(form)
    after = before.clone()
    fuse(after)
    to_ort(after)
    assert [node.op_type for node in after.graph if node.op_type != "Identity"] == [op]
    x = np.linspace(-9, 9, 5 * 6 * 7, dtype=np.float32).reshape(5, 6, 7)
    (expected,), (found,) = (run(model, {"x": x}) for model in (before, after))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("case", OTHERS)
def test_a_function_without_an_operator_stays(fused: Fuse, case: str) -> None:
    form = OTHERS[case]
    after, log = fused(written(form))
    to_ort(after)
    made = [entry.node for entry in log.entries if entry.rule == "one_function"]
    assert after.graph[-1].name not in made
    written_as = {op for op, _ in (*STANDARD.values(), *ORT.values())} - {"Tanh", "Sigmoid"}
    assert not written_as & {node.op_type for node in after.graph}


@pytest.mark.parametrize("case", ALMOST)
def test_a_function_that_is_almost_another_computes_what_it_did(case: str) -> None:
    before = written(ALMOST[case])
    after = before.clone()
    fuse(after)
    to_ort(after)
    far = np.geomspace(1e-3, 1e11, 105, dtype=np.float32)
    x = np.concatenate([far, -far]).reshape(5, 6, 7)
    (expected,), (found,) = (run(model, {"x": x}) for model in (before, after))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=0)


def test_the_operator_is_right_where_a_part_of_it_overflows() -> None:
    model = written(lambda x: e(x) / (1 + e(x)))
    x = np.full((5, 6, 7), 100, np.float32)
    assert np.isnan(run(model, {"x": x})[0]).all()
    fuse(model)
    assert (run(model, {"x": x})[0] == 1).all()


def test_a_part_that_others_read_stays_for_them(fused: Fuse) -> None:
    model = written(lambda x: 1 / (1 + e(-x)), also="Exp")
    after, _ = fused(model)
    assert sorted(n.op_type for n in after.graph if n.op_type != "Identity") == [
        "Exp", "Neg", "Sigmoid",
    ]  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.sampled_from(["Exp", "Neg", "Add", "Mul", "Div", "Tanh", "Sigmoid", "Erf", "Max"]),
        min_size=1, max_size=7,
    ),
    st.lists(st.sampled_from([-2.0, -1.0, 0.1, 0.5, 1.0, 2.0]), min_size=7, max_size=7),
    st.lists(st.booleans(), min_size=7, max_size=7),
)  # fmt: skip
def test_any_composition_computes_the_same(
    ops: list[str], numbers: list[float], of_x: list[bool]
) -> None:
    def form(x: Expression) -> Expression:
        y = x
        for op, number, again in zip(ops, numbers, of_x, strict=False):
            binary = op in ("Add", "Mul", "Div", "Max")
            y = y.op(op, x if again else number) if binary else y.op(op)
        return y

    before = written(form)
    after = before.clone()
    fuse(after)
    to_ort(after)
    x = np.linspace(-4, 4, 5 * 6 * 7, dtype=np.float32).reshape(5, 6, 7)
    (expected,), (found,) = (run(model, {"x": x}) for model in (before, after))
    sound = np.isfinite(expected) & (np.abs(expected) < 1e6)
    np.testing.assert_allclose(found[sound], expected[sound], rtol=1e-4, atol=1e-5)


def test_half_precision_stays_as_it_is() -> None:
    model = written(lambda x: 1 / (1 + e(-x)), dtype=ir.DataType.DOUBLE)
    fuse(model)
    assert "Sigmoid" not in [node.op_type for node in model.graph]

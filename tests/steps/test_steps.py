"""The steps' own part: what is compared after a rewrite, and at which sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from optkit.facts.errors import InputRefused, OptkitError
from optkit.ground import graph
from optkit.ground.execute.task import Order, Task
from optkit.road.steps import perform
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.step_table import STEPS
from optkit.road.worker import _answer

HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'


def quiet(what: str, fraction: float) -> None: ...


def run(
    tmp_path: Path,
    text: str,
    axes: dict[str, Any] | None = None,
    more: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The fuse step over a graph given as text."""
    for name in ("source", "out"):
        (tmp_path / name).mkdir(exist_ok=True)
    model = graph.upgrade(ir.from_onnx_text(HEADER + text))
    graph.save(model, tmp_path / "source" / GRAPH)
    inputs = [
        {"name": i.name, "dtype": i.dtype, "shape": list(i.shape), "range": None}
        for i in graph.inputs(model)
    ]
    params = {"inputs": inputs, "axes": axes or {}, **(more or {})}
    return perform("fuse", {"graph": tmp_path / "source"}, params, tmp_path / "out", quiet)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_stands_in_the_module_of_its_name(name: str) -> None:
    step = STEPS[name]
    assert (step.name, step.__module__) == (name, f"optkit.road.steps.{name}")


def test_nan_agrees_with_nan(tmp_path: Path) -> None:
    """Random inputs are not what a logarithm was made for."""
    meta = run(
        tmp_path,
        "g (float[N,8] x) => (float[N,8] y) { i = Identity (x) l = Log (i) y = Add (l, x) }",
    )
    assert meta["max_error"] == 0.0 and meta["log"]["counts"] == {"remove_noop": 1}


def test_an_axis_without_a_range_gets_a_size_that_runs(tmp_path: Path) -> None:
    text = """g (float[N,1,H,W] x) => (float[N,1,A,B] y)
        <float[1,1,5,5] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 1.0, 2.0, 3.0, 4.0, 5.0,
        6.0, 7.0, 8.0, 9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0}> { y = Conv (x, w) }"""
    assert list(run(tmp_path, text)["inputs"][0][2]) == ["N", 1, "H", "W"]
    with pytest.raises(InputRefused, match="random inputs") as caught:
        run(tmp_path, text, {name: {"opt": 3, "min": 3, "max": 3} for name in "NHW"})
    assert "axes" in (caught.value.hint or "")


def test_a_half_model_is_compared_with_its_own_widening(tmp_path: Path) -> None:
    meta = run(
        tmp_path,
        """g (float16[N,4] x, float16[N,4] z) => (float16[N,4] y) {
        s = Softmax (x) i = Identity (s) y = Mul (i, z) }""",
    )
    assert meta["log"]["counts"] == {"remove_noop": 1, "widen": 1}
    assert meta["inputs"][0][1] == "float16" and meta["max_error"] < 1e-4


def test_an_explicit_rounding_is_compared_with_the_model_as_given(tmp_path: Path) -> None:
    meta = run(
        tmp_path,
        """g (float[N,4] x) => (float[N,4] y) {
        h = Cast<to = 16> (x) i = Identity (h) y = Cast<to = 1> (i) }""",
    )
    assert meta["log"]["counts"] == {"remove_noop": 1} and meta["max_error"] == 0.0
    assert not meta.get("warnings")


@pytest.mark.parametrize(("factor", "told"), [(0.5, False), (65000.0, True)])
def test_a_half_model_that_overflows_is_reported_to(
    tmp_path: Path, factor: float, told: bool
) -> None:
    bits = int(np.array(factor, np.float16).view(np.uint16))
    meta = run(
        tmp_path,
        f"""g (float16[N,8] x) => (float16[N,8] y) <float16 c = {{{bits}}}> {{
        a = Mul (x, c) b = Transpose<perm = [1, 0]> (a) d = Transpose<perm = [1, 0]> (b)
        y = Div (d, c) }}""",
    )
    warnings = meta.get("warnings", [])
    assert bool(warnings) == told and all("half" in text for text in warnings)


def test_a_fusion_that_changes_the_result_is_a_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from optkit.craft import fusion

    def wrong(model: ir.Model) -> fusion.FusionLog:
        model.graph.initializers["c"].const_value = ir.tensor(np.float32([1.001]), name="c")
        return fusion.FusionLog((), 1, 1)

    monkeypatch.setattr(fusion, "fuse", wrong)
    with pytest.raises(OptkitError, match="changed the result") as caught:
        run(tmp_path, "g (float[N,8] x) => (float[N,8] y) <float[1] c = {1.0}> { y = Mul (x, c) }")
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("right", [True, False])
def test_a_network_that_amplifies_roundings_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: bool
) -> None:
    """sin(d) of d about 10,000 has that many times its relative error. More is still a bug."""
    from optkit.craft import fusion

    def rewritten(model: ir.Model) -> fusion.FusionLog:
        number = 1 + 2e-7 if right else 1.001
        model.graph.initializers["c"].const_value = ir.tensor(np.float32([number]), name="c")
        return fusion.FusionLog((), 1, 1)

    monkeypatch.setattr(fusion, "fuse", rewritten)
    text = """g (float[N,8] x) => (float[N,8] y) <float[1] c = {1.0}, float k = {100.0}> {
        s = Sigmoid (x) a = Mul (s, c) b = Mul (a, k) d = Mul (b, b) z = Sin (d) y = Mul (z, s) }"""
    if right:
        assert run(tmp_path, text)["max_error"] > 1e-4
        return
    with pytest.raises(OptkitError, match="changed the result"):
        run(tmp_path, text)


@pytest.mark.parametrize("right", [True, False])
def test_a_model_that_rounds_to_half_precision_may_change_by_a_unit_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: bool
) -> None:
    """A change of 1e-3 moves some values to the next number of BF16, which is up to 4e-3 away."""
    from optkit.craft import fusion

    def rewritten(model: ir.Model) -> fusion.FusionLog:
        number = 1.001 if right else 1.05
        model.graph.initializers["c"].const_value = ir.tensor(np.float32([number]), name="c")
        return fusion.FusionLog((), 1, 1)

    monkeypatch.setattr(fusion, "fuse", rewritten)
    text = """g (float[N,64] x) => (float[N,64] y) <float[1] c = {1.0}> {
        a = Mul (x, c) b = Cast<to = 16> (a) y = Cast<to = 1> (b) }"""
    if right:
        assert run(tmp_path, text)["max_error"] > 1e-3
        return
    with pytest.raises(OptkitError, match="changed the result"):
        run(tmp_path, text)


def test_what_was_not_compared_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is run, and the step says why."""

    def opened(*args: object, **more: object) -> None:
        pytest.fail("a session was opened")

    monkeypatch.setattr("optkit.road.steps.bodies.comparison.cpu", opened)
    text = "g (float[N,8] x) => (float[N,8] y) { i = Identity (x) y = Relu (i) }"
    meta = run(tmp_path, text, more={"compare": False, "uncompared": "needs 75 GiB"})
    assert meta["max_error"] is None and meta["warnings"] == ["needs 75 GiB"]
    assert meta["log"]["counts"] == {"remove_noop": 1}


def test_a_norm_behind_a_rounding_is_compared(tmp_path: Path) -> None:
    """ONNX Runtime's optimizer takes the Cast into the norm, and then refuses the types."""
    meta = run(
        tmp_path,
        """g (float[N,2] x) => (float[N,2] y) <int64[1] last = {-1}, float two = {2.0},
        float e = {0.1}, float[2] g = {1.0, 2.0}> { h = Cast<to = 10> (x) f = Cast<to = 1> (h)
        m = ReduceMean (f, last) c = Sub (f, m) s = Pow (c, two) v = ReduceMean (s, last)
        a = Add (v, e) r = Sqrt (a) n = Div (c, r) p = Mul (n, g) y = Add (p, g) }""",
    )
    assert meta["max_error"] < 1e-4


def test_a_model_of_integers_alone_is_cast(tmp_path: Path) -> None:
    """There is nothing to measure, and a session without outputs does not run."""
    run(tmp_path, "g (int64[N,4] x) => (int64[N,4] y) { y = Add (x, x) }")
    params = {"carrier": "fp16", "batch": 1, "what": "calibration samples"}
    (tmp_path / "cast").mkdir()
    inputs = {"graph": tmp_path / "out", "samples": tmp_path}
    meta = perform("cast", inputs, params, tmp_path / "cast", quiet)
    assert meta["log"]["half_nodes"] == 0


def test_an_error_holds_no_path_of_the_store(tmp_path: Path) -> None:
    """What a step of optkit's own reads lies in the store, under a name that says nothing."""
    graph.save(
        ir.from_onnx_text(HEADER + "g (float[2] x) => (float[2] y) { y = Abs (x) }"),
        tmp_path / GRAPH,
    )
    params = {"inputs": [], "axes": {}}
    out = tmp_path / "out"
    out.mkdir()
    task = Task("fuse", {"graph": str(tmp_path)}, params, str(out), stays=True)
    error = _answer(Order(task, tmp_path / "result")).error
    assert error and error["message"] and str(tmp_path) not in str(error)
    task = replace(task, inputs={"graph": str(tmp_path / "none")})
    error = _answer(Order(task, tmp_path / "result")).error
    assert error and error["where"] == GRAPH


@pytest.mark.parametrize("dtype", ["bfloat16", "int4", "uint4", "float8e4m3fn", "string"])
def test_inputs_that_are_no_numpy_arrays_are_refused_by_name(dtype: str, tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match=rf"type tensor\({dtype}\) is not supported") as caught:
        run(tmp_path, f"g ({dtype}[N,4] x) => (float[N,4] y) {{ y = Cast<to = 1> (x) }}")
    assert caught.value.where == "value 'x'" and "cast it in the model" in str(caught.value.hint)

"""Products in few bits of one input become one product, or stay with a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optkit.craft.fusion.ort import to_ort
from optkit.facts.precisions import PRECISIONS
from optkit.ground import graph

RNG = np.random.default_rng(5)
BLOCK = 16


def stored(name: str, n: int, k: int, *, unsigned: bool, flat: bool = False) -> dict[str, Any]:
    """Random codes in blocks of 16, their scales and zero points."""
    blocks = -(-k // BLOCK)
    scales = RNG.random((n, blocks)).astype(np.float32) / 8
    found = {
        f"b{name}": RNG.integers(0, 256, (n, blocks, BLOCK // 2)).astype(np.uint8),
        f"s{name}": scales.reshape(-1) if flat else scales,
    }
    if unsigned:
        found[f"z{name}"] = RNG.integers(0, 256, (n, -(-blocks // 2))).astype(np.uint8)
    return found


def product(name: str, n: int, k: int, *, unsigned: bool, level: int = 0, source: str = "x") -> str:
    attributes = f"K = {k}, N = {n}, bits = 4, block_size = {BLOCK}, accuracy_level = {level}"
    zero = f", z{name}" if unsigned else ""
    inputs = f"{source}, b{name}, s{name}{zero}"
    return f"y{name} = com.microsoft.MatMulNBits<{attributes}>({inputs}) "


IMPORTS = {"": 21, "com.microsoft": 1}


def outputs(**sizes: int) -> str:
    return ", ".join(f"float[b, s, {n}] y{name}" for name, n in sizes.items())


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 40), min_size=2, max_size=4),
    k=st.sampled_from([16, 24, 48]),
    unsigned=st.booleans(),
    flat=st.booleans(),
    level=st.sampled_from([0, 4]),
)
def test_they_become_one_that_computes_the_same(
    build: Callable[..., ir.Model],
    as_ort: Callable[..., Any],
    sizes: list[int],
    k: int,
    unsigned: bool,
    flat: bool,
    level: int,
) -> None:
    names = "abcd"[: len(sizes)]
    body, constants = "", {}
    for name, n in zip(names, sizes, strict=True):
        body += product(name, n, k, unsigned=unsigned, level=level)
        constants |= stored(name, n, k, unsigned=unsigned, flat=flat)
    given = dict(zip(names, sizes, strict=True))
    model = build(f"float[b, s, {k}] x", outputs(**given), body, IMPORTS, **constants)
    x = RNG.standard_normal((2, 3, k)).astype(np.float32)
    after, log = as_ort(model, {"x": x})
    assert Counter(n.op_type for n in after.graph) == {"MatMulNBits": 1, "Split": 1}
    assert log.counts["together"] == 1


def test_it_bears_the_names_of_those_it_stands_for(build: Callable[..., ir.Model]) -> None:
    constants = {**stored("a", 8, 16, unsigned=False), **stored("b", 4, 16, unsigned=False)}
    body = product("a", 8, 16, unsigned=False) + product("b", 4, 16, unsigned=False)
    model = build("float[b, s, 16] x", outputs(a=8, b=4), body, IMPORTS, **constants)
    for node, name in zip(model.graph, ("q_proj", "k_proj"), strict=True):
        node.name = name
    to_ort(model)
    assert graph.names_in(str(model.graph[0].name)) == ["q_proj", "k_proj"]
    assert graph.names_in("alone") == ["alone"]


def test_what_differs_stays_apart(
    build: Callable[..., ir.Model], as_ort: Callable[..., Any]
) -> None:
    """In its input, its kind of codes, or how exactly it multiplies."""
    constants = {
        **stored("a", 8, 16, unsigned=False),
        **stored("b", 8, 16, unsigned=True),
        **stored("c", 8, 16, unsigned=False),
        **stored("d", 8, 16, unsigned=False),
    }
    body = (
        product("a", 8, 16, unsigned=False)
        + product("b", 8, 16, unsigned=True)
        + product("c", 8, 16, unsigned=False, level=4)
        + product("d", 8, 16, unsigned=False, source="x2")
    )
    inputs = "float[b, s, 16] x, float[b, s, 16] x2"
    model = build(inputs, outputs(a=8, b=8, c=8, d=8), body, IMPORTS, **constants)
    x = RNG.standard_normal((1, 2, 16)).astype(np.float32)
    after, _ = as_ort(model, {"x": x, "x2": x + 1})
    assert Counter(n.op_type for n in after.graph) == {"MatMulNBits": 4}


def test_a_shared_weight_is_not_copied(
    build: Callable[..., ir.Model], as_ort: Callable[..., Any]
) -> None:
    constants = stored("a", 8, 16, unsigned=False)
    one = product("a", 8, 16, unsigned=False)
    body = one + one.replace("ya =", "yb =")
    model = build("float[b, s, 16] x", outputs(a=8, b=8), body, IMPORTS, **constants)
    x = RNG.standard_normal((1, 2, 16)).astype(np.float32)
    _, log = as_ort(model, {"x": x})
    reasons = [entry.reason for entry in log.entries if entry.rule == "together"]
    assert reasons == ["its weights are shared, or no constants"] * 2


def test_each_of_them_counts_as_landed(build: Callable[..., ir.Model], tmp_path: Path) -> None:
    from optkit.craft.backends.onnxruntime import OnnxRuntime
    from optkit.facts.tensors import AxisRange
    from optkit.ground.devices import target

    constants = {**stored("a", 32, 64, unsigned=True), **stored("b", 16, 64, unsigned=True)}
    body = product("a", 32, 64, unsigned=True) + product("b", 16, 64, unsigned=True)
    model = build("float[b, s, 64] x", outputs(a=32, b=16), body, IMPORTS, **constants)
    for node, name in zip(model.graph, ("q_proj", "k_proj"), strict=True):
        node.name = name
    to_ort(model)
    graph.save(model, tmp_path / "model.onnx")
    backend, axes = OnnxRuntime(), dict.fromkeys("bs", AxisRange(1, 2, 4))
    with backend.session(tmp_path / "model.onnx") as session:
        spec = backend.spec(session.inputs, target("cpu"), PRECISIONS["int4"], axes)
    (tmp_path / "out").mkdir()
    planned = dict.fromkeys(("q_proj", "k_proj"), PRECISIONS["int4"])
    engine = backend.compile(
        tmp_path / "model.onnx", spec, planned, tmp_path / "out", lambda what, fraction: None
    )
    assert (engine.landing.planned, engine.landing.landed) == (2, 2)
    assert {row.node for row in engine.landing.rows} == planned.keys()
    assert [layer.products for layer in engine.layers if layer.products] == [("q_proj", "k_proj")]

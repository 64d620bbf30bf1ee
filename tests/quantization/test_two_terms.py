"""Activations of which one term leaves too little: from the samples to the quantized graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optkit.craft.backends import onnxruntime
from optkit.craft.backends.kernel_speeds import kernel_speeds
from optkit.craft.quantization.rounding.solver_inputs import damping as damping_of
from optkit.facts.placement import ProductForm, ProductSpeeds
from optkit.ground import graph
from optkit.ground.devices import target
from optkit.ground.runtimes import SessionOptions, simulator
from tests.networks import network, sqnr
from tests.quantization.workshop import Chain

TEXT = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,32] x, float[32,64] w_up, float[64,32] w_down) => (float[N,32] y) {
      [up] u = MatMul (x, w_up)
      half = Constant <value = float {0.5}> ()
      [erf] e = Erf (u)
      [act] a = Mul (e, u)
      [down] d = MatMul (a, w_down)
      [sum] y = Add (x, d)
    }"""


def rows(seed: int, spike: float) -> np.ndarray:
    """Few rows are large. Their values are far beyond all others, and in every channel."""
    x = np.random.default_rng(seed).standard_normal((256, 32)).astype(np.float32)
    x[::64] *= spike
    return x


@pytest.fixture(scope="module", params=[60.0, 1.0], ids=["spikes", "none"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("two-terms") / "chain"
    feeds = [{"x": rows(seed, request.param)} for seed in range(2)]
    return request.param > 1, Chain(folder, network(TEXT), feeds)


def decibels(chain: Chain, folder: Path) -> float:
    """Of the rows without a spike."""
    given = {"x": rows(9, 1.0)[1:64]}
    results = []
    for file in (chain.fused / "model.onnx", folder / "model.onnx"):
        with simulator().session(file, SessionOptions(1, level="none")) as session:
            results.append(session.run(given)["y"])
    return sqnr(*results)


def terms(meta: dict[str, Any]) -> dict[str, int]:
    activations = meta["log"]["activations"]
    return {name: activations[node["activation"]]["terms"]
            for name, node in meta["log"]["nodes"].items()}  # fmt: skip


def test_a_cpu_runs_noisy_products_twice_and_says_so(made: tuple[bool, Chain]) -> None:
    spikes, chain = made
    one, plain = chain.quantize("cpu", "int8", two_term=())
    own, meta = chain.quantize("cpu", "int8")
    assert set(terms(plain).values()) == {1} and not plain["warnings"]
    if not spikes:
        assert terms(meta) == terms(plain) and not meta["warnings"]
        return
    assert terms(meta)["down"] == 2
    [note] = meta["warnings"]
    assert "twice" in note and "28 dB" in note and "two_term=[]" in note
    assert decibels(chain, own) > decibels(chain, one) + 6


def test_the_second_term_holds_what_rounding_to_the_first_leaves(made: tuple[bool, Chain]) -> None:
    """Half a step to each side: its scale is that of a range as wide as one step of the first."""
    spikes, chain = made
    if not spikes:
        pytest.skip("no product runs twice")
    own, _ = chain.quantize("cpu", "int8", two_term=("down",))
    model = graph.load(own / "model.onnx")
    scales = {
        str(value.name): float(value.const_value.numpy())
        for value in model.graph.initializers.values()
        if value.const_value is not None and value.const_value.size == 1
    }
    assert scales["a_rest_scale"] == pytest.approx(scales["a_scale"] / 255, rel=1e-5)


@pytest.mark.parametrize(
    ("k", "rows", "damping"), [(100, 50, 0.04), (100, 1000, 0.01), (9, 2, 0.05)]
)
def test_gptq_is_damped_by_the_columns_for_each_row(k: int, rows: int, damping: float) -> None:
    """0.02 · K / rows, from 0.01 to 0.05: few rows show little of many columns."""
    assert damping_of(k, rows) == pytest.approx(damping)


def test_a_gpu_runs_no_product_twice(made: tuple[bool, Chain]) -> None:
    _, meta = made[1].quantize("l4", "int8")
    assert set(terms(meta).values()) == {1} and not meta["warnings"]


def test_what_gets_two_terms_is_not_smoothed(made: tuple[bool, Chain]) -> None:
    """Factors would make its weights harder to quantize."""
    spikes, chain = made
    folder, meta = chain.quantize("cpu", "int8")
    names = {str(node.name) for node in graph.load(folder / "model.onnx").graph}
    doubled = [name for name, count in terms(meta).items() if count == 2]
    assert bool(doubled) == spikes
    activations = {meta["log"]["nodes"][name]["activation"] for name in doubled}
    assert not {name for name in activations if "rescaled" in name}
    assert not [name for name in names if name.startswith("Mul_a_rescaled")] or not spikes


FASTEST: dict[ProductForm, ProductSpeeds] = {
    "two terms": ProductSpeeds(1.0, 100.0, 1.0, 0.0, 0.0, 0.0),
    "int8-weight-only": ProductSpeeds(1.0, 1.0, 100.0, 0.0, 0.0, 0.0),
    "float": ProductSpeeds(100.0, 1.0, 1.0, 0.0, 0.0, 0.0),
}


@pytest.mark.parametrize("form", FASTEST)
def test_their_form_is_the_fastest_of_the_cpu_unless_the_recipe_says_int8(
    made: tuple[bool, Chain], form: ProductForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    spikes, chain = made
    own = replace(kernel_speeds(target("cpu-amx")), product=FASTEST[form])
    monkeypatch.setattr(onnxruntime, "kernel_speeds", lambda _: own)
    found = chain.noisy_nodes("cpu", "int8")
    noisy = [name for name, why in found.get("reasons", {}).items() if "28 dB" in why]
    assert ("down" in noisy) == spikes
    if spikes:
        assert found["nodes"]["down"] == form
        assert found["reasons"]["down"].startswith(f"{form}, because one scale leaves less than")
        asked = chain.noisy_nodes("cpu", "int8", nodes={"d*": "int8"})
        assert asked["nodes"]["down"] == "two terms"
        assert asked["reasons"]["down"].endswith("the recipe gives it int8")

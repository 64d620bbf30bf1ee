"""The experts of a mixture: the plan, statistics of the tokens that each one got, and rounding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from optkit.craft import calibration
from optkit.craft.fusion import fuse
from optkit.craft.quantization.placement.assign import assign
from optkit.craft.quantization.placement.expert_formats import expert_block, expert_formats
from optkit.craft.quantization.qdq.coded_experts import few_tokens, quantize_experts
from optkit.craft.quantization.qdq.insertion import taps
from optkit.craft.quantization.rounding.expert_rounding import FEWEST_TOKENS, ExpertRounding
from optkit.facts.assignment import Scheme
from optkit.facts.precisions import PRECISIONS, NumberFormat
from optkit.ground import graph, runtimes
from optkit.ground.devices import target
from optkit.ground.recipe import Quantization
from optkit.ground.runtimes import SessionOptions
from optkit.ground.statistics import Statistics, load, merge, of_expert, save
from tests.mixtures import Form, mixture, weights

INT4 = PRECISIONS["int4"]
FORM = Form(k=2)
EXPERTS, HIDDEN, INNER = 4, 32, 64


def rules(name: str) -> Scheme:
    own = runtimes.backend("onnxruntime").rules(target("cpu"), PRECISIONS[name])
    return Scheme(PRECISIONS[name], "fp32", {PRECISIONS[name]: own})


def model_of(router: float = 1.0) -> ir.Model:
    w = weights(EXPERTS, HIDDEN, INNER)
    w.router[0] = w.router[0] * 0 - router  # with inputs above zero nearly no token chooses it
    model = mixture(w, FORM)
    fuse(model)
    return model


def inputs(seed: int, tokens: int = 24) -> np.ndarray:
    rng = np.random.default_rng(seed)
    drawn: np.ndarray = np.abs(rng.normal(size=(tokens, HIDDEN))).astype(np.float32)
    return drawn


def observed(model: ir.Model, rows: list[np.ndarray], folder: Path) -> Statistics:
    scheme = rules("int4")
    wanted = taps(model, assign(model, scheme), scheme.rules, moments=True)
    names = list(dict.fromkeys(name for tap in wanted for name in tap.outputs))
    graph.save(graph.expose(model, names, alone=True), folder / "tapped.onnx")
    with runtimes.backend("onnxruntime").session(
        folder / "tapped.onnx", SessionOptions(1)
    ) as session:
        return calibration.observe(
            session, [{"x": x} for x in rows], wanted, memory_bytes=1 << 30,
            progress=lambda what, share: None,
        )  # fmt: skip


def chosen(model: ir.Model, x: np.ndarray) -> np.ndarray:
    """The experts of each token, by numpy."""
    w = weights(EXPERTS, HIDDEN, INNER)
    w.router[0] = w.router[0] * 0 - 1.0
    order: np.ndarray = np.argsort(-(x @ w.router.T), axis=1, kind="stable")[:, : FORM.k]
    return order


@pytest.mark.parametrize(
    ("precision", "landed"),
    [("int4", "int4"), ("w4a8", "w4a8"), ("int8-weight-only", "int8-weight-only"),
     ("int8", "int8-weight-only")],
)  # fmt: skip
def test_experts_are_planned(precision: str, landed: str) -> None:
    model, scheme = model_of(), rules(precision)
    planned = assign(model, scheme)
    assert len(planned.experts) == 2
    assert {str(planned.nodes[name]) for name in planned.experts} == {landed}
    assert not planned.experts & planned.quantized().keys()
    bits = {each.format.bits for each in expert_formats(planned, scheme.rules).values()}
    assert bits == {4 if landed in ("int4", "w4a8") else 8}


def test_what_stays_in_float_says_why() -> None:
    model = model_of()
    name = next(str(node.name) for node in model.graph if graph.stack_of(node))
    kept = assign(model, rules("int4"), overrides={name: PRECISIONS["fp32"]})
    assert kept.reasons[name] == "fp32 quantizes nothing"
    assert name not in expert_formats(kept, rules("int4").rules)
    none = assign(model, rules("int2"))
    assert none.reasons[name] == "the matrices of experts have no int2 kernel in this backend"
    odd = mixture(weights(2, 8, 20), Form(k=1))
    reasons = assign(odd, rules("int4")).reasons.values()
    assert "no block size fits: none divides its 20 summed channels" in reasons


def test_block_sizes_are_powers_of_two() -> None:
    stacks = [graph.stack_of(node) for node in mixture(weights(2, 48, 64)).graph]
    sizes = {
        stack.sizes[2]: expert_block(stack, NumberFormat("int4", "block", True, block_size=32), 128)
        for stack in stacks if stack is not None
    }  # fmt: skip
    assert sizes == {48: 16, 64: 64}


def test_each_expert_is_observed_apart(tmp_path: Path) -> None:
    model, rows = model_of(), [inputs(seed) for seed in range(3)]
    statistics = observed(model, rows, tmp_path)
    stack = next(stack for node in model.graph if (stack := graph.stack_of(node)))
    x = np.concatenate(rows)
    experts = chosen(model, x)
    for expert in range(EXPERTS):
        own = x[(experts == expert).any(axis=1)].astype(np.float64)
        moments = statistics.values[of_expert(str(stack.rows.name), expert)].moments
        assert (0 if moments is None else moments.count) == len(own)
        if moments is not None:
            np.testing.assert_allclose(moments.matrix(), own.T @ own / len(own), rtol=1e-4)
    save(statistics, tmp_path / "statistics")
    again = merge(load(tmp_path / "statistics"), observed(model, [inputs(9)], tmp_path))
    counts = ExpertRounding(Quantization(), again).tokens(str(stack.rows.name), EXPERTS)
    assert sum(counts) == FORM.k * 4 * 24


def test_an_expert_without_tokens_is_rounded_by_its_weights(tmp_path: Path) -> None:
    model, scheme = model_of(), rules("int4")
    statistics = observed(model, [inputs(seed) for seed in range(8)], tmp_path)
    formats = expert_formats(assign(model, scheme), scheme.rules)
    known, blind = model.clone(), model.clone()
    rounding = ExpertRounding(Quantization(), statistics)
    coded = quantize_experts(known, formats, rounding)
    quantize_experts(blind, formats, ExpertRounding(Quantization()))
    (up, _) = coded.values()
    few = {expert for expert, count in enumerate(up.tokens) if count < FEWEST_TOKENS}
    assert up.tokens[0] == 0 and 0 < len(few) < EXPERTS and up.solved == EXPERTS - len(few)
    pairs = [
        (graph.array(value), graph.array(blind.graph.initializers[name]))
        for name, value in known.graph.initializers.items() if name.endswith("_quantized")
    ]  # fmt: skip
    for with_data, without in pairs:
        assert with_data is not None and without is not None
        same = {each for each in range(EXPERTS) if np.array_equal(with_data[each], without[each])}
        assert same == few
    (warning,) = few_tokens(coded)[:1]
    assert f"{len(few)} of {EXPERTS} experts" in warning and "expert 0: 0" in warning
    assert not few_tokens({"a": replace(up, tokens=())})


def test_gptq_of_an_expert_loses_less_of_its_tokens(tmp_path: Path) -> None:
    model, scheme = model_of(), rules("int4")
    mixed = np.random.default_rng(5).normal(size=(HIDDEN, HIDDEN)).astype(np.float32) / 4
    rows = [np.abs(inputs(seed, 64) @ mixed) for seed in range(8)]
    statistics = observed(model, rows, tmp_path)
    stack = next(stack for node in model.graph if (stack := graph.stack_of(node)))
    name = str(stack.rows.name)
    fmt = replace(scheme.rules[INT4].experts, block_size=32)  # type: ignore[type-var]
    stored = graph.array(stack.stored)
    assert stored is not None
    tokens = ExpertRounding(Quantization(), statistics).tokens(name, EXPERTS)
    expert = int(np.argmax(tokens))
    second = statistics.values[of_expert(name, expert)].moments
    assert second is not None
    lost = []
    for given in (statistics, None):
        weight = stored[expert].T
        found = ExpertRounding(Quantization(), given).codes(name, expert, weight, fmt)
        error = weight - found.dequantize()
        lost.append(float(np.einsum("kn,kl,ln->", error, second.matrix(), error)))
    assert lost[0] < 0.8 * lost[1]

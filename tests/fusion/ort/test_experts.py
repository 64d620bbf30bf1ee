"""Mixtures of experts: ONNX Runtime's operators against numpy, and against the lookups of each
token's matrices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from optkit.craft.fusion import fuse
from optkit.craft.fusion.ort import to_ort
from optkit.craft.quantization.placement.expert_formats import ExpertFormat
from optkit.craft.quantization.qdq.coded_experts import quantize_experts
from optkit.craft.quantization.rounding.expert_rounding import ExpertRounding
from optkit.craft.quantization.rounding.rtn import round_to_nearest
from optkit.craft.sources import torch_module
from optkit.facts.precisions import NumberFormat
from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo
from optkit.ground import graph
from optkit.ground.recipe import Quantization
from optkit.ground.runtimes import backend
from tests.mixtures import Form, Weights, mixture, reference, weights

FOUR = NumberFormat("int4", "block", symmetric=True, block_size=32, signed_scale=True)
EIGHT = NumberFormat("int8", "block", symmetric=True, block_size=64)

FORMS = [
    Form(),
    Form(k=1, normalized=False),
    Form(k=3, normalized=False),
    Form(interleaved=True, turned=True, alpha=1.702, beta=1.0, most=0.6),
]


def run(model: ir.Model, x: np.ndarray, *, plain: bool = False) -> np.ndarray:
    levels, options = onnxruntime.GraphOptimizationLevel, onnxruntime.SessionOptions()
    options.graph_optimization_level = levels.ORT_DISABLE_ALL if plain else levels.ORT_ENABLE_ALL
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    result: np.ndarray = session.run(None, {"x": x})[0]
    return result


def rows(tokens: int, hidden: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(tokens, hidden)).astype(np.float32)


def fused(w: Weights, form: Form) -> ir.Model:
    model = mixture(w, form)
    fuse(model)
    return model


def coded(model: ir.Model, fmt: NumberFormat, place: Path, accuracy: int = 0) -> ir.Model:
    """The model with its experts in codes, saved and read again."""
    names = [str(node.name) for node in model.graph if graph.stack_of(node) is not None]
    formats = dict.fromkeys(names, ExpertFormat(fmt, accuracy))
    assert len(quantize_experts(model, formats, ExpertRounding(Quantization()))) == 2
    graph.save(model, place / "coded.onnx")
    graph.check(place / "coded.onnx")
    return graph.load(place / "coded.onnx")


def rounded(w: Weights, fmt: NumberFormat) -> Weights:
    """The weights that the codes stand for, by another path: codes of each matrix on its own."""

    def of(stack: np.ndarray) -> np.ndarray:
        size = 32 if stack.shape[2] % 64 else min(fmt.block_size or 0, 64)
        own = replace(fmt, block_size=size)
        each = [round_to_nearest(m.T, own, np.float32, search="mse").dequantize().T for m in stack]
        return np.stack(each)

    return replace(w, up=of(w.up), down=of(w.down))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("biased", [False, True])
def test_floats_become_one_operator(form: Form, biased: bool) -> None:
    w = weights(5, 32, 64, biased=biased)
    model = fused(w, form)
    log = to_ort(model)
    assert log.counts["experts"] == 1
    kinds = {node.op_type for node in model.graph}
    assert "MoE" in kinds and not {"GatherND", "Sigmoid", "QuickGelu"} & kinds
    for tokens in (1, 2, 33):
        x = rows(tokens, 32)
        np.testing.assert_allclose(run(model, x), reference(w, form, x), atol=2e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fmt", [FOUR, EIGHT], ids=["4 bits", "8 bits"])
def test_codes_become_one_operator(form: Form, fmt: NumberFormat, tmp_path: Path) -> None:
    w = weights(5, 64, 96, biased=True)
    looked_up = coded(fused(w, form), fmt, tmp_path)
    model = looked_up.clone()
    assert to_ort(model).counts["experts"] == 1
    node = next(node for node in model.graph if node.op_type == "QMoE")
    assert graph.names_in(str(node.name)) == [
        str(each.name) for each in fused(w, form).graph if graph.stack_of(each)
    ]
    exact = fmt is FOUR  # with 8 bits the kernel rounds activations
    for tokens in (1, 2, 40):
        x = rows(tokens, 64)
        expected = reference(rounded(w, fmt), form, x)
        np.testing.assert_allclose(run(looked_up, x, plain=True), expected, atol=2e-5)
        found = run(model, x)
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert error < (1e-5 if exact else 0.03)


def test_activations_are_rounded_where_the_plan_says_so(tmp_path: Path) -> None:
    w = weights(4, 64, 64)
    model = coded(fused(w, Form()), FOUR, tmp_path, accuracy=4)
    to_ort(model)
    node = next(node for node in model.graph if node.op_type == "QMoE")
    assert node.attributes.get_int("accuracy_level", 0) == 4
    x = rows(9, 64)
    expected = reference(rounded(w, FOUR), Form(), x)
    error = np.linalg.norm(run(model, x) - expected) / np.linalg.norm(expected)
    assert error < 0.03


@settings(max_examples=15, deadline=None)
@given(
    experts=st.integers(2, 9), k=st.integers(1, 3), tokens=st.integers(0, 20),
    hidden=st.sampled_from([8, 32, 48]), inner=st.sampled_from([8, 16, 40]),
    normalized=st.booleans(), interleaved=st.booleans(), turned=st.booleans(),
    biased=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_any_mixture(
    experts: int, k: int, tokens: int, hidden: int, inner: int, normalized: bool,
    interleaved: bool, turned: bool, biased: bool, seed: int,
) -> None:  # fmt: skip
    form = Form(min(k, experts), interleaved, turned, normalized)
    w = weights(experts, hidden, inner, biased=biased, seed=seed)
    model, x = fused(w, form), rows(tokens, hidden, seed)
    expected = run(model, x, plain=True)
    assert to_ort(model).counts["experts"] == 1
    np.testing.assert_allclose(run(model, x), expected, atol=2e-5)
    np.testing.assert_allclose(expected, reference(w, form, x), atol=2e-5)


def test_ties_go_to_the_experts_that_the_model_chooses() -> None:
    w, form = weights(6, 32, 32), Form(k=2)
    x = np.concatenate([np.zeros((3, 32), np.float32), rows(2, 32)])  # equal scores, then others
    w.router[1] = w.router[4] = w.router[2]  # three equal rows: one of them is left out
    biased = weights(6, 32, 32, biased=True)
    w = Weights(w.router, w.up, w.down, biased.up_bias, biased.down_bias)  # zeros differ by expert
    model = fused(w, form)
    to_ort(model)
    np.testing.assert_allclose(run(model, x), reference(w, form, x), atol=2e-5)


def test_an_expert_without_tokens_and_a_weight_of_zero() -> None:
    w, form = weights(4, 32, 32), Form(k=3, normalized=False)
    w.router[:2] *= 200  # the other two have weights that underflow
    model, x = fused(w, form), rows(6, 32)
    to_ort(model)
    np.testing.assert_allclose(run(model, x), reference(w, form, x), atol=2e-5)


def declined(model: ir.Model) -> list[str]:
    log = to_ort(model)
    assert "experts" not in log.counts
    return [str(entry.reason) for entry in log.entries if entry.rule == "experts"]


def replaced(model: ir.Model, op: str, new: str) -> ir.Model:
    node = next(node for node in model.graph if node.op_type == op)
    node.op_type = new
    return model


def test_another_activation_is_declined() -> None:
    model = replaced(mixture(weights(4, 32, 32)), "Sigmoid", "Tanh")
    fuse(model)
    before, x = run(model, rows(5, 32), plain=True), rows(5, 32)
    assert declined(model) == ["what is between its two products is no SwiGLU"]
    np.testing.assert_allclose(run(model, x), before, atol=2e-5)


def test_weights_that_may_be_negative_are_declined() -> None:
    model = replaced(mixture(weights(4, 32, 32), Form(normalized=False)), "Softmax", "Erf")
    next(node for node in model.graph if node.op_type == "Erf").attributes.clear()
    fuse(model)
    assert declined(model) == ["a weight of its experts may be negative"]


def test_products_of_different_codes_are_declined(tmp_path: Path) -> None:
    model = fused(weights(4, 32, 32), Form())
    names = [str(node.name) for node in model.graph if graph.stack_of(node) is not None]
    formats = {names[0]: ExpertFormat(FOUR, 0), names[1]: ExpertFormat(EIGHT, 0)}
    quantize_experts(model, formats, ExpertRounding(Quantization()))
    graph.save(model, tmp_path / "m.onnx")
    model = graph.load(tmp_path / "m.onnx")
    x = rows(5, 32)
    expected = run(model, x, plain=True)
    assert declined(model) == ["its products are stored in 4 bits and 8 bits"]
    np.testing.assert_allclose(run(model, x), expected, atol=2e-5)


def test_experts_that_no_topk_chooses_are_declined() -> None:
    model = mixture(weights(4, 32, 32))
    owner = model.graph
    topk = next(node for node in owner if node.op_type == "TopK")
    chosen = topk.outputs[1]
    zero = graph.add_constant(owner, "nothing", np.zeros(1, np.int64))
    readers = list(chosen.uses())
    same = ir.node("Mul", [chosen, zero], name="same")
    same.outputs[0].type, same.outputs[0].shape = chosen.type, chosen.shape
    owner.insert_after(topk, same)
    for use in readers:
        use.node.replace_input_with(use.idx, same.outputs[0])
    fuse(model)
    assert declined(model) == ["its experts are not those of a TopK, so one may be chosen twice"]


def block(family: str) -> nn.Module:
    """The mixture of one layer, with small random weights."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
             "num_experts_per_tok": 2, "vocab_size": 32}  # fmt: skip
    torch.manual_seed(0)
    match family:
        case "mixtral":
            model: Any = hf.MixtralModel(
                hf.MixtralConfig(num_local_experts=4, intermediate_size=64, **sizes)
            )
        case "gpt-oss":
            model = hf.GptOssModel(
                hf.GptOssConfig(num_local_experts=4, intermediate_size=64, head_dim=8, **sizes)
            )
        case _:
            model = hf.DeepseekV3Model(
                hf.DeepseekV3Config(
                    n_routed_experts=8, n_group=2, topk_group=1, moe_intermediate_size=32,
                    intermediate_size=64, first_k_dense_replace=0, kv_lora_rank=8, q_lora_rank=8,
                    qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, **sizes,
                )
            )  # fmt: skip
    model.set_experts_implementation("batched_mm")  # as optkit's export of a whole model does

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = model.layers[0].mlp

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result = self.mlp(x)
            first: torch.Tensor = result[0] if isinstance(result, tuple) else result
            return first

    return First().eval()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mixtral", "gpt-oss", "deepseek"])
def test_mixtures_of_transformers(family: str, tmp_path: Path) -> None:
    module = block(family)
    torch_module.export(
        module, [InputSpec(TensorInfo("x", "float32", ("batch", "tokens", 32)), (-1.0, 1.0))],
        {"batch": AxisRange(1, 2, 4), "tokens": AxisRange(1, 5, 64)}, tmp_path / "m.onnx",
        session=backend("onnxruntime").session, progress=lambda what, share: None,
    )  # fmt: skip
    model = graph.load(tmp_path / "m.onnx")
    fuse(model)
    assert to_ort(model).counts["experts"] == 1
    x = np.random.default_rng(1).normal(size=(3, 7, 32)).astype(np.float32)
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(run(model, x), expected, atol=2e-5)

"""All rules together: on graphs that hypothesis makes up, and on what torch really exports."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from optkit.craft.fusion import RULES, fuse
from optkit.ground import graph

STEPS = (
    "conv", "depthwise", "deconv", "norm", "scale", "scalar", "shift", "divide", "relu", "identity",
    "cast", "dropout", "transposes", "reshapes", "residual", "output", "shared",
)  # fmt: skip


class Builder:
    """A random image network, step by step; every step keeps [n, channels, 4, 5]."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self.outputs: list[str] = []
        self.value, self.channels = "x", 4
        self.earlier: list[tuple[str, int]] = []
        self.weight: tuple[str, int, int] | None = None

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def random(self, *shape: int) -> str:
        return self.constant(self.rng.standard_normal(shape).astype(np.float32))

    def positive(self, *shape: int) -> str:
        return self.constant((self.rng.random(shape) + 0.5).astype(np.float32))

    def add(self, op: str, *inputs: str, **attributes: Any) -> None:
        out = f"v{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op, [self.value, *inputs], [out], f"n_{out}", **attributes)
        )
        self.value = out

    def step(self, kind: str) -> None:
        c = self.channels
        self.earlier.append((self.value, c))
        if kind == "conv":
            new = int(self.rng.integers(1, 4)) * 2
            weight = self.random(new, c, 1, 1)
            self.weight = (weight, new, c)
            bias = [self.random(new)] if self.rng.random() < 0.5 else []
            self.add("Conv", weight, *bias)
            self.channels = new
        elif kind == "shared" and self.weight is not None and self.weight[2] == c:
            self.add("Conv", self.weight[0])
            self.channels = self.weight[1]
        elif kind == "depthwise":
            self.add("Conv", self.random(c, 1, 3, 3), group=c, pads=[1] * 4)
        elif kind == "deconv":
            self.add("ConvTranspose", self.random(c, c // 2, 3, 3), group=2, pads=[1] * 4)
        elif kind == "norm":
            gamma, beta, mean = (self.random(c) for _ in range(3))
            self.add("BatchNormalization", gamma, beta, mean, self.positive(c))
        elif kind == "scale":
            self.add("Mul", self.random(1, c, 1, 1))
        elif kind == "scalar":
            self.add("Mul", self.random())
        elif kind == "shift":
            self.add(str(self.rng.choice(["Add", "Sub"])), self.random(c, 1, 1))
        elif kind == "divide":
            self.add("Div", self.positive(c, 1, 1))
        elif kind == "relu":
            self.add("Relu")
        elif kind in ("identity", "dropout"):
            self.add(kind.capitalize())
        elif kind == "cast":
            self.add("Cast", to=TensorProto.FLOAT)
        elif kind == "transposes":
            perm = self.rng.permutation(4)
            self.add("Transpose", perm=perm.tolist())
            self.add("Transpose", perm=np.argsort(perm).tolist())
        elif kind == "reshapes":
            self.add("Reshape", self.constant(np.array([-1, c, 20])))
            self.add("Reshape", self.constant(np.array([-1, c, 4, 5])))
        elif kind == "residual":
            same = [value for value, width in self.earlier if width == c]
            self.add("Add", same[int(self.rng.integers(len(same)))])
        elif kind == "output" and self.value != "x" and self.value not in self.outputs:
            self.outputs.append(self.value)

    def build(self) -> ir.Model:
        self.add("Sigmoid")
        self.outputs.append(self.value)
        proto = helper.make_graph(
            self.nodes, "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 4, 5])],
            [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in self.outputs],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )  # fmt: skip
        model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 21)])
        model.ir_version = 10
        return graph.infer_shapes(ir.from_proto(model))


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(st.sampled_from(STEPS), min_size=1, max_size=14), seed=st.integers(0, 99))
def test_fusion_keeps_the_function_of_any_graph(fused, steps: list[str], seed: int) -> None:
    builder = Builder(seed)
    for step in steps:
        builder.step(step)
    model = builder.build()
    weighted = {n.name for n in model.graph if n.op_type in graph.WEIGHTED}
    after, log = fused(model, tolerance=2e-3, n=2)  # unnormalised chains: values reach 1e3
    assert weighted == {n.name for n in after.graph if n.op_type in graph.WEIGHTED}
    noted = [(e.rule, e.node) for e in log.entries if e.outcome == "declined"]
    assert len(noted) == len(set(noted))


def test_rules_are_named_once_and_the_log_is_plain_json() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    builder = Builder(0)
    for step in ("conv", "norm", "output", "norm", "identity"):
        builder.step(step)
    log = fuse(builder.build())
    told = json.loads(json.dumps(log.to_json()))
    assert told["counts"] == {"fold_batchnorm": 1, "remove_noop": 1, "remove_unused": 4}
    assert {"rule": "fold_batchnorm", "node": "n_v1", "outcome": "applied",
            "reason": "BatchNormalization into n_v0"} in told["entries"]  # fmt: skip
    assert [e["outcome"] for e in told["entries"]].count("declined") == 1


def test_fusion_is_deterministic() -> None:
    def once() -> bytes:
        builder = Builder(5)
        for step in STEPS * 2:
            builder.step(step)
        model = builder.build()
        fuse(model)
        return ir.to_proto(model).SerializeToString(deterministic=True)

    assert once() == once()


# what torch exports


@pytest.fixture(scope="module")
def torch() -> Any:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    return pytest.importorskip("torch")


def exported(torch: Any, module: Any, shape: tuple[int, ...], optimize: bool) -> ir.Model:
    program = torch.onnx.export(
        module.eval(), (torch.randn(shape),), dynamo=True, optimize=optimize, opset_version=21,
        dynamic_shapes=({0: "batch"},), verbose=False, input_names=["image"],
    )  # fmt: skip
    return ir.from_proto(program.model_proto)


def residual_cnn(torch: Any) -> Any:
    nn = torch.nn
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.a = nn.Conv2d(width, width, 3, padding=1, bias=False)
            self.b = nn.Conv2d(width, width, 3, padding=1, bias=False)
            self.na, self.nb = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

        def forward(self, x: Any) -> Any:
            return torch.relu(x + self.nb(self.b(torch.relu(self.na(self.a(x))))))

    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), Block(8), Block(8),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8, 6),
        nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4),
    )  # fmt: skip
    for norm in net.modules():
        if isinstance(norm, nn.BatchNorm2d | nn.BatchNorm1d):
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.3, 2.0)
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias)
    return net


def encoder(torch: Any) -> Any:
    nn = torch.nn
    torch.manual_seed(0)

    class Encoder(nn.Module):
        def __init__(self, width: int = 16, heads: int = 2) -> None:
            super().__init__()
            self.patch = nn.Conv2d(1, width, 2, stride=2)
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.heads = heads

        def forward(self, image: Any) -> Any:
            x = self.patch(image).flatten(2).transpose(1, 2)
            b, n, d = x.shape
            parts = self.qkv(self.first(x)).reshape(b, n, 3, self.heads, d // self.heads)
            q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
            y = nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + self.out(y.transpose(1, 2).reshape(b, n, d))
            return x + self.down(nn.functional.gelu(self.up(self.second(x))))

    return Encoder()


@pytest.mark.parametrize("optimize", [False, True])
def test_a_residual_cnn_is_left_with_convolutions(fused, torch: Any, optimize: bool) -> None:
    model = exported(torch, residual_cnn(torch), (2, 3, 16, 16), optimize)
    after, log = fused(model, batch=3)
    ops = [n.op_type for n in after.graph]
    assert "BatchNormalization" not in ops
    assert (ops.count("Conv"), ops.count("Gemm"), ops.count("Add")) == (5, 2, 2)
    assert len(ops) <= 17
    if not optimize:
        assert log.counts["fold_batchnorm"] == 6
    assert not [e for e in log.entries if e.outcome == "declined"]
    assert graph.summary(after).macs_unknown == 0


@pytest.mark.parametrize("optimize", [False, True])
def test_a_transformer_block_keeps_its_products(fused, torch: Any, optimize: bool) -> None:
    model = exported(torch, encoder(torch), (2, 1, 8, 8), optimize)
    after, _ = fused(model, batch=3)
    ops = [n.op_type for n in after.graph]
    assert ops.count("MatMul") == 6
    assert "CastLike" not in ops and "Sqrt" not in ops
    weighted = [n for n in after.graph if graph.constant_weight(n) is not None]
    assert len(weighted) == 5  # patch, qkv, out, up, down: each with its weight stored ready to use
    assert all(n.inputs[1].is_initializer() for n in weighted)
    key = next(n for n in after.graph if n.op_type == "Softmax").inputs[0].producer().inputs[1]
    while key.producer().op_type == "Mul":
        key = key.producer().inputs[0]
    assert list(key.producer().attributes["perm"].as_ints()) == [0, 1, 3, 2]

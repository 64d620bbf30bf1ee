"""A decoder with random FP16 weights in the shapes of a 7B Llama, written without being in memory.

    python experiments/large/decoder.py big.onnx                     13.5 GB: 32 layers, hidden 4096
    python experiments/large/decoder.py small.onnx --layers 5        2.5 GB

tokens [batch, sequence] → embedding → layers × (RMSNorm, attention with RoPE and a causal mask,
RMSNorm, SwiGLU) → RMSNorm → logits [batch, sequence, vocabulary]. Plain ONNX at opset 21 as
exporters write it: weights [in, out] for MatMul, norms computed in FP32. Weights are normal with
deviation 1/sqrt(in), so that activations stay in range; the same seed gives the same bytes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from optkit.ground import graph

_ROWS = 1024  # of a weight, made at a time
_HALF, _FLOAT, _INT64 = ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.INT64


@dataclass(frozen=True)
class Shape:
    """Sizes of the decoder. The defaults are Llama 7B's."""

    hidden: int = 4096
    ffn: int = 11008
    layers: int = 32
    heads: int = 32
    vocabulary: int = 32000
    positions: int = 2048
    seed: int = 0

    @property
    def head(self) -> int:
        return self.hidden // self.heads


class Network:
    """The graph under construction: one method per operator that is needed."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.nodes: list[ir.Node] = []
        self.constants: dict[str, ir.Value] = {}

    def op(
        self, op: str, *inputs: ir.Value | None, name: str, **attributes: int | list[int]
    ) -> ir.Value:
        node = ir.node(op, list(inputs), attributes, name=name)
        node.outputs[0].name = f"{name}_out"
        self.nodes.append(node)
        return node.outputs[0]

    def constant(self, name: str, numbers: np.ndarray) -> ir.Value:
        return self._keep(ir.Tensor(numbers, name=name))

    def weight(self, name: str, rows: int, columns: int) -> ir.Value:
        """float16 [rows, columns], made when the file is written."""
        seed = [self.shape.seed, len(self.constants)]

        def numbers() -> Iterator[tuple[np.ndarray]]:
            generator = np.random.default_rng(seed)
            for start in range(0, rows, _ROWS):
                size = (min(_ROWS, rows - start), columns)
                block = generator.standard_normal(size, np.float32)
                block *= rows**-0.5
                yield (block.astype(np.float16),)

        form = graph.TensorForm(name, _HALF, (rows, columns))
        return self._keep(graph.computed([form], numbers)[0])

    def _keep(self, tensor: ir.TensorProtocol) -> ir.Value:
        value = ir.Value(
            name=tensor.name,
            shape=ir.Shape(tensor.shape.numpy()),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        return self.constants.setdefault(str(tensor.name), value)

    def ints(self, *numbers: int) -> ir.Value:
        return self.constant(f"ints_{numbers}", np.array(numbers, np.int64))

    def norm(self, x: ir.Value, name: str) -> ir.Value:
        """x / sqrt(mean(x²) + ε) · gain, computed in FP32."""
        wide = self.op("Cast", x, name=f"{name}/Cast", to=_FLOAT.value)
        two = self.constant("two", np.array(2, np.float32))
        epsilon = self.constant("epsilon", np.array(1e-5, np.float32))
        square = self.op("Pow", wide, two, name=f"{name}/Pow")
        mean = self.op("ReduceMean", square, self.ints(-1), name=f"{name}/ReduceMean")
        root = self.op(
            "Sqrt", self.op("Add", mean, epsilon, name=f"{name}/Add"), name=f"{name}/Sqrt"
        )
        unit = self.op("Div", wide, root, name=f"{name}/Div")
        half = self.op("Cast", unit, name=f"{name}/Cast_1", to=_HALF.value)
        gain = self.constant(f"{name}.weight", np.ones(self.shape.hidden, np.float16))
        return self.op("Mul", half, gain, name=f"{name}/Mul")

    def linear(self, x: ir.Value, name: str, rows: int, columns: int) -> ir.Value:
        weight = self.weight(f"{name}.weight", rows, columns)
        return self.op("MatMul", x, weight, name=f"{name}/MatMul")

    def rotate(self, x: ir.Value, cos: ir.Value, sin: ir.Value, name: str) -> ir.Value:
        """RoPE: x · cos + (-x₂, x₁) · sin, x₁ and x₂ the halves of each head."""
        half = self.shape.head // 2
        last, end = self.ints(-1), self.ints(2**62)
        first = self.op("Slice", x, self.ints(0), self.ints(half), last, name=f"{name}/Slice")
        second = self.op("Slice", x, self.ints(half), end, last, name=f"{name}/Slice_1")
        turned = self.op(
            "Concat", self.op("Neg", second, name=f"{name}/Neg"), first,
            name=f"{name}/Concat", axis=-1,
        )  # fmt: skip
        a = self.op("Mul", x, cos, name=f"{name}/Mul")
        return self.op(
            "Add", a, self.op("Mul", turned, sin, name=f"{name}/Mul_1"), name=f"{name}/Add"
        )

    def attention(
        self, x: ir.Value, cos: ir.Value, sin: ir.Value, mask: ir.Value, name: str
    ) -> ir.Value:
        hidden, heads, head = self.shape.hidden, self.shape.heads, self.shape.head
        parts = []
        for part in ("q", "k", "v"):
            y = self.linear(x, f"{name}.{part}", hidden, hidden)
            y = self.op("Reshape", y, self.ints(0, 0, heads, head), name=f"{name}.{part}/Reshape")
            y = self.op("Transpose", y, name=f"{name}.{part}/Transpose", perm=[0, 2, 1, 3])
            parts.append(y if part == "v" else self.rotate(y, cos, sin, f"{name}.{part}.rotate"))
        q, k, v = parts
        turned = self.op("Transpose", k, name=f"{name}/Transpose", perm=[0, 1, 3, 2])
        scores = self.op("MatMul", q, turned, name=f"{name}/scores")
        scale = self.constant("head_scale", np.array(head**-0.5, np.float16))
        scores = self.op("Mul", scores, scale, name=f"{name}/Mul")
        scores = self.op("Add", scores, mask, name=f"{name}/Add")
        share = self.op("Softmax", scores, name=f"{name}/Softmax", axis=-1)
        y = self.op("MatMul", share, v, name=f"{name}/mix")
        y = self.op("Transpose", y, name=f"{name}/Transpose_1", perm=[0, 2, 1, 3])
        y = self.op("Reshape", y, self.ints(0, 0, hidden), name=f"{name}/Reshape")
        return self.linear(y, f"{name}.o", hidden, hidden)

    def feed_forward(self, x: ir.Value, name: str) -> ir.Value:
        hidden, ffn = self.shape.hidden, self.shape.ffn
        gate = self.linear(x, f"{name}.gate", hidden, ffn)
        gate = self.op(
            "Mul", gate, self.op("Sigmoid", gate, name=f"{name}/Sigmoid"), name=f"{name}/Mul"
        )
        up = self.linear(x, f"{name}.up", hidden, ffn)
        y = self.op("Mul", gate, up, name=f"{name}/Mul_1")
        return self.linear(y, f"{name}.down", ffn, hidden)


def decoder(shape: Shape) -> ir.Model:
    """The whole graph; its weights are computed while it is saved."""
    net = Network(shape)
    dims = [ir.SymbolicDim("batch"), ir.SymbolicDim("sequence")]
    tokens = ir.Value(name="tokens", shape=ir.Shape(dims), type=ir.TensorType(_INT64))
    x = net.op("Gather", net.weight("embedding", shape.vocabulary, shape.hidden), tokens,
               name="embedding/Gather")  # fmt: skip
    length = net.op("Shape", tokens, name="Shape", start=1, end=2)
    cos, sin = (
        net.op("Slice", net.constant(f"rope.{what}", table), net.ints(0), length, net.ints(0),
               name=f"rope.{what}/Slice")
        for what, table in rope(shape).items()
    )  # fmt: skip
    mask = causal_mask(net, length)
    for index in range(shape.layers):
        name = f"layers.{index}"
        y = net.attention(
            net.norm(x, f"{name}.attention_norm"), cos, sin, mask, f"{name}.attention"
        )
        x = net.op("Add", x, y, name=f"{name}/Add")
        y = net.feed_forward(net.norm(x, f"{name}.ffn_norm"), f"{name}.ffn")
        x = net.op("Add", x, y, name=f"{name}/Add_1")
    logits = net.linear(net.norm(x, "norm"), "head", shape.hidden, shape.vocabulary)
    logits.name, logits.type = "logits", ir.TensorType(_HALF)
    logits.shape = ir.Shape([*dims, shape.vocabulary])
    main = ir.Graph(
        [tokens], [logits], nodes=net.nodes, initializers=list(net.constants.values()),
        opset_imports={"": 21}, name="decoder",
    )  # fmt: skip
    return graph.infer_shapes(ir.Model(main, ir_version=10))


def rope(shape: Shape) -> dict[str, np.ndarray]:
    """cos and sin of position · 10000^(-2i/d), [positions, d]."""
    frequencies = 10000.0 ** (-np.arange(0, shape.head, 2) / shape.head)
    angles = np.arange(shape.positions)[:, None] * np.concatenate([frequencies, frequencies])
    return {"cos": np.cos(angles).astype(np.float16), "sin": np.sin(angles).astype(np.float16)}


def causal_mask(net: Network, length: ir.Value) -> ir.Value:
    """[sequence, sequence]: 0 where a position may look, the lowest half where it may not."""
    zero, one = net.constant("zero", np.array(0, np.int64)), net.constant("one", np.array(1))
    size = net.op("Squeeze", length, net.ints(0), name="mask/Squeeze")
    positions = net.op("Range", zero, size, one, name="mask/Range")
    later = net.op(
        "Less", net.op("Unsqueeze", positions, net.ints(1), name="mask/Unsqueeze"), positions,
        name="mask/Less",
    )  # fmt: skip
    low = net.constant("mask.low", np.array(-65504, np.float16))
    return net.op("Where", later, low, net.constant("mask.open", np.array(0, np.float16)),
                  name="mask/Where")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="the model; its weights go beside it")
    for name, value in vars(Shape()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    given = vars(parser.parse_args())
    out = given.pop("out")
    started = time.monotonic()
    out.parent.mkdir(parents=True, exist_ok=True)
    graph.save(decoder(Shape(**given)), out)
    size = sum(path.stat().st_size for path in out.parent.glob(f"{out.name}*"))
    print(f"{out}: {size / 1e9:.2f} GB in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()

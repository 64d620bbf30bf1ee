"""A decoder small enough to be computed by hand, as a graph and as an artifact."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

from optkit.ground import artifact
from optkit.ground.artifact import Artifact, EngineFile, Manifest
from optkit.ground.runtimes import Recurrent, SessionOptions, backend

WIDTH, VOCABULARY, POSITIONS = 8, 12, 40


@dataclass(frozen=True)
class Network:
    """logits of a token = tanh(Σ over real tokens up to it of (embedding + position)) · head"""

    embeddings: np.ndarray  # [12, 8]
    positions: np.ndarray  # [40, 8]
    head: np.ndarray  # [8, 12]

    @classmethod
    def random(cls, seed: int) -> Network:
        rng = np.random.default_rng(seed)
        sizes = ((VOCABULARY, WIDTH), (POSITIONS, WIDTH), (WIDTH, VOCABULARY))
        return cls(*(rng.standard_normal(size).astype(np.float32) / 2 for size in sizes))

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        summed = self.embeddings[list(tokens)].sum(0) + self.positions[: len(tokens)].sum(0)
        found: np.ndarray = np.tanh(summed) @ self.head
        return found

    def continued(self, tokens: Sequence[int], count: int) -> list[int]:
        """Greedy, without a cache or a batch."""
        found = list(tokens)
        for _ in range(count):
            found.append(int(self.logits(found).argmax()))
        return found[len(tokens) :]


@pytest.fixture
def network() -> Network:
    return Network.random(0)


@pytest.fixture
def session(network: Network, tmp_path: Path) -> Recurrent:
    write(network, tmp_path / "decoder.onnx")
    return backend("onnxruntime").session(tmp_path / "decoder.onnx", SessionOptions(threads=1))


@pytest.fixture
def made(network: Network, tmp_path: Path) -> Callable[..., Artifact]:
    """An artifact with these files beside its graph; by default a decoder that can write."""

    def make(
        files: dict[str, bytes] | None = None, *, masked: bool = True, **config: object
    ) -> Artifact:
        write(network, tmp_path / "model.onnx", masked=masked)
        config = {"max_position_embeddings": POSITIONS, **config}
        files = files if files is not None else {
            "tokenizer.json": words().to_str().encode(),
            "config.json": json.dumps(config).encode(),
        }  # fmt: skip
        return write_artifact(tmp_path / "model.onnx", files, tmp_path)

    return make


def write_artifact(model: Path, files: dict[str, bytes], out: Path) -> Artifact:
    with backend("onnxruntime").session(model) as loaded:
        manifest = Manifest(
            name="decoder", target="cpu", precision="fp32", digest="0" * 64, recipe={},
            inputs=loaded.inputs, outputs=loaded.outputs, versions={}, result={},
            engine=EngineFile("onnxruntime", "model.onnx"),
        )  # fmt: skip
    return artifact.write(out, manifest, {"model.onnx": model, **files})


def words() -> Tokenizer:
    """Tokens "w0" to "w11", apart by spaces."""
    tokenizer = Tokenizer(models.WordLevel({f"w{at}": at for at in range(VOCABULARY)}, "w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def write(network: Network, path: Path, *, masked: bool = True) -> None:
    caches = ("key", "value")
    nodes = [
        helper.make_node("Gather", ["embeddings", "input_ids"], ["e"]),
        helper.make_node("Gather", ["positions", "position_ids"], ["p"]),
        helper.make_node("Add", ["e", "p"], ["x"]),
        helper.make_node("Unsqueeze", ["x", "one"], ["new.key"]),
        helper.make_node("Unsqueeze", ["e", "one"], ["new.value"]),
        *(
            helper.make_node(
                "Concat", [f"past_key_values.0.{c}", f"new.{c}"], [f"present.0.{c}"], axis=2
            )
            for c in caches
        ),
        *(
            (
                helper.make_node("Cast", ["attention_mask"], ["m"], to=TensorProto.FLOAT),
                helper.make_node("Unsqueeze", ["m", "outer"], ["mask"]),
                helper.make_node("Mul", ["present.0.key", "mask"], ["k"]),
            )
            if masked
            else (helper.make_node("Identity", ["present.0.key"], ["k"]),)
        ),
        helper.make_node("Mul", ["present.0.value", "zero"], ["v"]),
        helper.make_node("Add", ["k", "v"], ["kv"]),
        helper.make_node("Squeeze", ["kv", "one"], ["rows"]),
        helper.make_node("CumSum", ["rows", "along"], ["sums"]),
        helper.make_node("Shape", ["input_ids"], ["length"], start=1, end=2),
        helper.make_node("Neg", ["length"], ["first"]),
        helper.make_node("Slice", ["sums", "first", "end", "one"], ["s"]),
        helper.make_node("Tanh", ["s"], ["t"]),
        helper.make_node("MatMul", ["t", "head"], ["logits"]),
    ]
    integers = {"one": [1], "outer": [1, 3], "along": 1, "end": [POSITIONS]}
    constants = {
        **{name: np.array(value) for name, value in integers.items()},
        "zero": np.float32(0),
        **vars(network),
    }
    tokens, total = ["batch", "sequence"], "past_sequence + sequence"
    value = helper.make_tensor_value_info
    integer, real = TensorProto.INT64, TensorProto.FLOAT
    past, present = (["batch", 1, length, WIDTH] for length in ("past_sequence", total))
    inputs = [
        value("input_ids", integer, tokens),
        *([value("attention_mask", integer, ["batch", total])] if masked else []),
        value("position_ids", integer, tokens),
        *(value(f"past_key_values.0.{c}", real, past) for c in caches),
    ]
    outputs = [
        value("logits", real, [*tokens, network.head.shape[1]]),
        *(value(f"present.0.{c}", real, present) for c in caches),
    ]
    held = [numpy_helper.from_array(np.asarray(c), name) for name, c in constants.items()]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, path)

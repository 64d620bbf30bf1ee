"""An encoder-decoder small enough to be computed by hand, of text or of sound, as an artifact."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from optkit.ground import artifact
from optkit.ground.artifact import Artifact, EngineFile, Manifest
from optkit.ground.runtimes import backend
from tests.generation.conftest import VOCABULARY, WIDTH, words

BINS, FRAMES = 20, 100
INTEGER, REAL = TensorProto.INT64, TensorProto.FLOAT
node, value = helper.make_node, helper.make_tensor_value_info


@dataclass(frozen=True)
class Pair:
    """logits of the last token = tanh(Σ targets + (1 + n / 10) Σ sources) · head, over n encoded
    positions: embedded tokens, or projected frames."""

    sources: np.ndarray  # [12, 8], or [20, 8] for the bins of a frame
    targets: np.ndarray  # [12, 8]
    head: np.ndarray  # [8, 12]

    @classmethod
    def random(cls, seed: int, rows: int = VOCABULARY) -> Pair:
        rng = np.random.default_rng(seed)
        sizes = ((rows, WIDTH), (VOCABULARY, WIDTH), (WIDTH, VOCABULARY))
        return cls(*(rng.standard_normal(size).astype(np.float32) / 2 for size in sizes))

    def logits(self, encoded: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
        """`encoded`: [positions, 8]."""
        summed = encoded.sum(0) * (1 + len(encoded) / 10) + self.targets[list(tokens)].sum(0)
        found: np.ndarray = np.tanh(summed) @ self.head
        return found

    def written(
        self, encoded: np.ndarray, start: Sequence[int], count: int, never: Sequence[int] = ()
    ) -> list[int]:
        """Greedy, without a cache or a batch."""
        found = list(start)
        for _ in range(count):
            logits = self.logits(encoded, found)
            logits[list(never)] = -np.inf
            found.append(int(logits.argmax()))
        return found[len(start) :]


def make(
    pair: Pair, out: Path, *, sound: bool = False, masked: bool = True, **config: Any
) -> Artifact:
    """The artifact of both graphs; `config` is its generation_config.json."""
    files = {
        "tokenizer.json": words().to_str().encode(),
        "config.json": json.dumps({"max_target_positions": 20}).encode(),
        "generation_config.json": json.dumps(config).encode(),
    }
    if sound:
        from transformers import WhisperFeatureExtractor

        WhisperFeatureExtractor(feature_size=BINS, chunk_length=1).save_pretrained(out)
        files["preprocessor_config.json"] = (out / "preprocessor_config.json").read_bytes()
    parts = {"encoder": _encoder(pair, sound, masked), "decoder": _decoder(pair, sound)}
    whole: dict[str, Path | bytes] = {}
    digests = {}
    for name, model in parts.items():
        onnx.save(model, out / f"{name}.onnx")
        with backend("onnxruntime").session(out / f"{name}.onnx") as loaded:
            infos = loaded.inputs, loaded.outputs
        manifest = Manifest(
            name=name, target="cpu", precision="fp32", digest="0" * 64, recipe={},
            inputs=infos[0], outputs=infos[1], versions={}, result={},
            engine=EngineFile("onnxruntime", "model.onnx"),
        )  # fmt: skip
        part = artifact.write(
            out / "parts", manifest, {"model.onnx": out / f"{name}.onnx", **files}
        )
        listed = (*part.manifest.files, artifact.MANIFEST)
        whole |= {f"{name}/{file}": part.path / file for file in listed}
        digests[name] = part.digest
    manifest = Manifest(
        name="pair", target="cpu", precision="fp32", digest="0" * 64, recipe={}, inputs=(),
        outputs=(), versions={}, result={}, parts=digests,
    )  # fmt: skip
    return artifact.write(out, manifest, whole)


def _encoder(pair: Pair, sound: bool, masked: bool) -> onnx.ModelProto:
    """key: each position; value: the sum of all real ones, at every position."""
    encoded = FRAMES if sound else "encoder_sequence"
    if sound:
        inputs = [value("input_features", REAL, ["batch", BINS, FRAMES])]
        nodes = [
            node("Transpose", ["input_features"], ["t"], perm=[0, 2, 1]),
            node("MatMul", ["t", "sources"], ["e"]),
            node("Identity", ["e"], ["real"]),
        ]
    else:
        names = ["input_ids", *(["attention_mask"] if masked else [])]
        inputs = [value(name, INTEGER, ["batch", encoded]) for name in names]
        nodes = [node("Gather", ["sources", "input_ids"], ["e"])]
        nodes += [node("Cast", ["attention_mask"], ["m"], to=REAL),
                  node("Unsqueeze", ["m", "last"], ["mask"]),
                  node("Mul", ["e", "mask"], ["real"])] if masked else [
                  node("Identity", ["e"], ["real"])]  # fmt: skip
    nodes += [
        node("ReduceSum", ["real", "one"], ["summed"]),
        node("Mul", ["e", "zero"], ["nothing"]),
        node("Add", ["nothing", "summed"], ["v"]),
        node("Unsqueeze", ["e", "one"], ["present.0.encoder.key"]),
        node("Unsqueeze", ["v", "one"], ["present.0.encoder.value"]),
    ]
    outputs = [value(f"present.0.encoder.{c}", REAL, ["batch", 1, encoded, WIDTH])
               for c in ("key", "value")]  # fmt: skip
    constants = {"sources": pair.sources, "one": np.array([1]), "last": np.array([2]),
                 "zero": np.float32(0)}  # fmt: skip
    return _model("encoder", nodes, inputs, outputs, constants)


def _decoder(pair: Pair, sound: bool) -> onnx.ModelProto:
    encoded = FRAMES if sound else "encoder_sequence"
    caches = ("key", "value")
    hidden = [] if sound else [
        node("Cast", ["encoder_attention_mask"], ["m"], to=REAL),
        node("Unsqueeze", ["m", "outer"], ["mask"]),
    ]  # fmt: skip
    masks = ["Identity"] if sound else ["Mul"]
    extra = [] if sound else ["mask"]
    nodes = [
        *hidden,
        *(node(masks[0], [f"past_key_values.0.encoder.{c}", *extra], [f"c.{c}"]) for c in caches),
        node("Mul", ["c.value", "tenth"], ["small"]),
        node("Add", ["c.key", "small"], ["crossed"]),
        node("ReduceSum", ["crossed", "inner"], ["source"], keepdims=0),
        node("Gather", ["targets", "input_ids"], ["t"]),
        node("Unsqueeze", ["t", "one"], ["new"]),
        *(
            node("Concat", [f"past_key_values.0.decoder.{c}", "new"], [f"present.0.decoder.{c}"],
                 axis=2)
            for c in caches
        ),
        node("Add", ["present.0.decoder.key", "present.0.decoder.value"], ["both"]),
        node("Mul", ["both", "half"], ["past"]),
        node("ReduceSum", ["past", "inner"], ["target"], keepdims=0),
        node("Add", ["source", "target"], ["s"]),
        node("Tanh", ["s"], ["h"]),
        node("MatMul", ["h", "head"], ["l"]),
        node("Unsqueeze", ["l", "one"], ["row"]),
        node("Shape", ["input_ids"], ["length"], start=1, end=2),
        node("Concat", ["one", "length", "one"], ["wanted"], axis=0),
        node("Expand", ["row", "wanted"], ["logits"]),
    ]  # fmt: skip
    tokens = ["batch", "sequence"]
    shapes = {"encoder": ["batch", 1, encoded, WIDTH],
              "decoder": ["batch", 1, "past_sequence", WIDTH]}  # fmt: skip
    inputs = [
        value("input_ids", INTEGER, tokens),
        *([] if sound else [value("encoder_attention_mask", INTEGER, ["batch", encoded])]),
        *(value(f"past_key_values.0.{kind}.{c}", REAL, shape)
          for kind, shape in shapes.items() for c in caches),
    ]  # fmt: skip
    longer = ["batch", 1, "past_sequence + sequence", WIDTH]
    outputs = [value("logits", REAL, [*tokens, VOCABULARY]),
               *(value(f"present.0.decoder.{c}", REAL, longer) for c in caches)]  # fmt: skip
    constants = {
        "targets": pair.targets, "head": pair.head, "one": np.array([1]), "outer": np.array([1, 3]),
        "inner": np.array([1, 2]), "tenth": np.float32(0.1), "half": np.float32(0.5),
    }  # fmt: skip
    return _model("decoder", nodes, inputs, outputs, constants)


def _model(name: str, nodes: Any, inputs: Any, outputs: Any, constants: Any) -> onnx.ModelProto:
    held = [numpy_helper.from_array(np.asarray(c), which) for which, c in constants.items()]
    graph = helper.make_graph(nodes, name, inputs, outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

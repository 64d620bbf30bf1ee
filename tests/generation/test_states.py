"""A decoder whose past is one state of fixed shape: its text, and what it cannot do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from optkit.facts.errors import UsageError
from optkit.ground.decoder import Decoder
from optkit.ground.runtimes import SessionOptions, backend
from optkit.satellites.generation import Speculation, generate
from optkit.satellites.generation.decoding import Ending, decode
from optkit.satellites.generation.sampling import greedy
from tests.generation.conftest import VOCABULARY, WIDTH, Network, words, write_artifact

PROMPTS = [[1, 2, 3], [5], [7, 7, 1, 4, 9]]


@pytest.fixture
def graph(network: Network, tmp_path: Path) -> Path:
    """logits of a token = tanh(Σ of the embeddings up to it) · head; the state is the sum."""
    nodes = [
        helper.make_node("Gather", ["embeddings", "input_ids"], ["e"]),
        helper.make_node("Cast", ["attention_mask"], ["m"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["m", "two"], ["real"]),
        helper.make_node("Mul", ["e", "real"], ["x"]),
        helper.make_node("CumSum", ["x", "along"], ["sums"]),
        helper.make_node("Add", ["sums", "past_recurrent.0"], ["s"]),
        helper.make_node("Slice", ["s", "minus", "last", "one"], ["present_recurrent.0"]),
        helper.make_node("Tanh", ["s"], ["t"]),
        helper.make_node("MatMul", ["t", "head"], ["logits"]),
    ]
    constants = {"one": [1], "two": [2], "along": 1, "last": [99], "minus": [-1],
                 "embeddings": network.embeddings, "head": network.head}  # fmt: skip
    value, state = helper.make_tensor_value_info, ["batch", 1, WIDTH]
    made = helper.make_graph(
        nodes, "states",
        [value("input_ids", TensorProto.INT64, ["batch", "sequence"]),
         value("attention_mask", TensorProto.INT64, ["batch", "sequence"]),
         value("past_recurrent.0", TensorProto.FLOAT, state)],
        [value("logits", TensorProto.FLOAT, ["batch", "sequence", VOCABULARY]),
         value("present_recurrent.0", TensorProto.FLOAT, state)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )  # fmt: skip
    opset = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(made, opset_imports=opset, ir_version=10), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def continued(network: Network, tokens: Sequence[int], count: int) -> list[int]:
    found = list(tokens)
    for _ in range(count):
        logits = np.tanh(network.embeddings[found].sum(0)) @ network.head
        found.append(int(logits.argmax()))
    return found[len(tokens) :]


def test_each_row_of_a_padded_batch_is_what_it_is_alone(graph: Path, network: Network) -> None:
    wanted = [continued(network, prompt, 8) for prompt in PROMPTS]
    with backend("onnxruntime").session(graph, SessionOptions(threads=1)) as session:
        decoder = Decoder.of(session.inputs, session.outputs)
        assert decoder is not None and not decoder.cache and len(decoder.states) == 1
        ending = Ending(frozenset(), 8, pad=3)
        made = decode(session, decoder, PROMPTS, ending, greedy, lambda row, token: None)
    assert made.tokens == wanted


def test_a_state_cannot_take_a_draft_back(graph: Path) -> None:
    files = {"tokenizer.json": words().to_str().encode(), "config.json": b"{}"}
    artifact = write_artifact(graph, files, graph.parent / "artifact")
    assert len(generate(artifact, ["w1 w2"], max_new_tokens=3).texts[0].tokens) == 3
    with pytest.raises(UsageError, match="cannot forget a token"):
        generate(artifact, ["w1 w2"], max_new_tokens=3, speculation=Speculation())

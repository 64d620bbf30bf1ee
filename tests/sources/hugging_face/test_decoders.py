"""One graph for prefill and decode: what it says of the next token is what the model says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import Feed, TensorInfo
from optkit.ground import graph
from optkit.ground.data import sequences
from optkit.ground.decoder import Decoder
from optkit.ground.runtimes import Session, backend
from tests.matrix import families
from tests.matrix.families.sizes import VOCAB
from tests.sources.hugging_face.conftest import DECODERS, export

STATEFUL = ("lfm2", "qwen3-next")  # decoders that keep states of fixed shape
EVERY = [pytest.param(name, marks=pytest.mark.slow) for name in (*DECODERS, *STATEFUL)]

Folders = Callable[[str], Path]


@pytest.fixture(scope="module", params=EVERY)
def decoder(
    request: pytest.FixtureRequest, folders: Folders, tmp_path_factory: pytest.TempPathFactory
) -> tuple[torch.nn.Module, Path]:
    """A model of transformers, untouched, and the graph that its folder became."""
    out = tmp_path_factory.mktemp(request.param) / "model.onnx"
    export(folders(request.param), out)
    return hf.AutoModelForCausalLM.from_pretrained(folders(request.param)).eval(), out


def test_places_of_padding_are_not_compared(folders: Folders, tmp_path: Path) -> None:
    """Tokens on the left that the mask hides see nothing: what attention gives for them differs
    between kernels, and nobody reads it."""
    log = export(folders("llama"), tmp_path / "model.onnx")
    notes = [note for check in log.checks for note in check.notes]
    assert notes and all("only at tokens that a mask hides" in note for note in notes)
    assert not log.warnings


def fed(runner: Session, ids: np.ndarray, mask: np.ndarray, past: Feed) -> Feed:
    """One run of the graph; without a past, on an empty one."""
    given = {"input_ids": ids, "attention_mask": mask, **past}
    inputs: dict[str, TensorInfo] = {info.name: info for info in runner.inputs}
    return runner.run(sequences.completed(given, inputs, ["past_sequence"]))


def described(runner: Session) -> Decoder:
    found = Decoder.of(runner.inputs, runner.outputs)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("batch", "past", "new", "padding"),
    [(2, 5, 3, 2), (1, 9, 1, 0), (3, 0, 7, 3), (3, 8, 1, 4), (2, 1, 4, 1)],
)
def test_logits_are_those_of_the_whole_text_at_once(
    decoder: tuple[torch.nn.Module, Path], batch: int, past: int, new: int, padding: int
) -> None:
    model, path = decoder
    random = np.random.default_rng(past)
    ids = random.integers(3, VOCAB, (batch, past + new))
    mask = np.ones_like(ids)
    for row in range(batch):
        mask[row, : padding * row // max(batch - 1, 1)] = 0
    whole = torch.from_numpy(mask)
    positions = (whole.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        expected = model(
            input_ids=torch.from_numpy(ids), attention_mask=whole, position_ids=positions
        ).logits.numpy()[:, past:]
    with backend("onnxruntime").session(path) as runner:
        cache: Feed = {}
        if past:
            first = fed(runner, ids[:, :past], mask[:, :past], {})
            carried = described(runner).carried
            cache = {into: first[out] for out, into in carried.items()}
        found = fed(runner, ids[:, past:], mask, cache)
    real = mask[:, past:] == 1
    np.testing.assert_allclose(
        found["logits"][real], expected[real], atol=1e-4 * np.abs(expected).max()
    )
    grown = [name for name in found if name.startswith("present.")]
    assert grown and all(found[name].shape[2] == past + new for name in grown)


def test_names_and_axes_are_those_that_runtimes_expect(
    decoder: tuple[torch.nn.Module, Path],
) -> None:
    model = graph.load(decoder[1])
    inputs = {spec.name: spec for spec in graph.inputs(model)}
    outputs = {spec.name: spec for spec in graph.outputs(model)}
    whole = "past_sequence + sequence"
    assert list(inputs)[:3] == ["input_ids", "attention_mask", "position_ids"]
    assert inputs["input_ids"].shape == inputs["position_ids"].shape == ("batch", "sequence")
    assert inputs["attention_mask"].shape == ("batch", whole)
    assert outputs["logits"].shape == ("batch", "sequence", VOCAB)
    found = Decoder.of(inputs.values(), outputs.values())
    assert found is not None and len(found.carried) + 1 == len(outputs)
    for info in found.cache:
        batch, heads, past, size = info.shape
        assert (batch, past) == ("batch", "past_sequence")
        assert outputs[info.name.replace("past_key_values", "present")].shape == (
            "batch", heads, whole, size,
        )  # fmt: skip
    for info in found.states:
        assert outputs[info.name.replace("past", "present")].shape == info.shape
        assert info.shape[0] == "batch" and all(isinstance(size, int) for size in info.shape[1:])


@pytest.mark.slow
def test_nodes_and_weights_bear_the_names_of_the_checkpoint(
    folders: Folders, tmp_path: Path
) -> None:
    export(folders("llama"), tmp_path / "model.onnx")
    model = graph.load(tmp_path / "model.onnx")
    names = {node.name for node in model.graph}
    assert {"model.layers.1.self_attn.q_proj/MatMul", "lm_head/MatMul"} <= names
    assert {"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
            "lm_head.weight"} <= set(model.graph.initializers)  # fmt: skip


@pytest.mark.slow
def test_the_axes_leave_room_for_past_and_new_tokens(folders: Folders, tmp_path: Path) -> None:
    log = export(folders("llama"), tmp_path / "model.onnx")
    assert log.task == "text-generation"
    assert log.axes["past_sequence"].min == 0
    assert log.axes["sequence"].opt == 1
    assert log.axes["sequence"].max + log.axes["past_sequence"].max <= 64
    assert {0, log.axes["past_sequence"].max} <= {one.sizes["past_sequence"] for one in log.checks}


def test_states_that_the_cache_of_transformers_does_not_keep_are_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    config = hf.RecurrentGemmaConfig(num_hidden_layers=3, vocab_size=VOCAB, **sizes)
    folder = families.saved(lambda: hf.RecurrentGemmaForCausalLM(config), tmp_path / "model")
    with pytest.raises(InputRefused, match="RecurrentGemmaForCausalLM has no cache") as caught:
        export(folder, tmp_path / "model.onnx")
    assert caught.value.exit_code == 5 and "fixed number of tokens" in str(caught.value.hint)

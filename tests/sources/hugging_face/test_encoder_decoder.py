"""Encoder and decoder as two graphs compute what the model itself does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from optkit.craft.sources.hugging_face import encoder_decoder, export
from optkit.facts.errors import InputRefused, UsageError
from optkit.facts.request import Request
from optkit.ground.runtimes import backend
from optkit.ground.workspace import Workspace
from optkit.road import jobs
from optkit.verbs import api


def t5() -> Any:
    return T5ForConditionalGeneration(
        T5Config(vocab_size=96, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                 decoder_start_token_id=0, eos_token_id=None, pad_token_id=0)
    )  # fmt: skip


def bart() -> Any:
    return BartForConditionalGeneration(
        BartConfig(vocab_size=96, d_model=32, encoder_layers=2, decoder_layers=2,
                   encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
                   decoder_ffn_dim=64, max_position_embeddings=64, eos_token_id=None,
                   forced_eos_token_id=None, decoder_start_token_id=2)
    )  # fmt: skip


def whisper() -> Any:
    return WhisperForConditionalGeneration(
        WhisperConfig(vocab_size=96, d_model=32, encoder_layers=2, decoder_layers=2,
                      encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
                      decoder_ffn_dim=64, max_source_positions=50, max_target_positions=64,
                      num_mel_bins=20, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                      decoder_start_token_id=3, suppress_tokens=None, begin_suppress_tokens=None)
    )  # fmt: skip


def saved(make: Any, folder: Path) -> Any:
    torch.manual_seed(0)
    model = make().eval()
    model.save_pretrained(folder)
    return model


def exported(folder: Path, part: str, tmp_path: Path) -> Any:
    """A session of the part."""
    out = tmp_path / f"{part}.onnx"
    runs = backend("onnxruntime").session
    log = export(
        folder, [], {}, out, task=None, part=part, trusted=False, session=runs,
        progress=lambda what, share: None,
    )  # fmt: skip
    tried = [one.sizes for one in (*log.checks, *log.left_out)]
    assert len(log.checks) > len(log.axes)
    for name, axis in log.axes.items():
        assert {axis.min, axis.max} <= {sizes[name] for sizes in tried}
    return runs(out)


def logits(encoder: Any, decoder: Any, given: dict[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
    """[batch, tokens, vocab] from the two graphs: a prefill, then one token at a time."""
    crossed = {name.replace("present", "past_key_values"): value
               for name, value in encoder.run(given).items()}  # fmt: skip
    mask = {"encoder_attention_mask": given["attention_mask"]} if "attention_mask" in given else {}
    past = {
        info.name: np.zeros((len(ids), info.shape[1], 0, info.shape[3]), np.float32)
        for info in decoder.inputs
        if ".decoder." in info.name
    }
    made = []
    for step in np.split(ids, range(5, ids.shape[1]), axis=1):
        found = decoder.run({"input_ids": step, **mask, **crossed, **past})
        made.append(found.pop("logits"))
        past = {name.replace("present", "past_key_values"): v for name, v in found.items()}
    return np.concatenate(made, axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("make", [t5, bart, whisper])
def test_both_graphs_together_compute_what_transformers_does(make: Any, tmp_path: Path) -> None:
    model = saved(make, tmp_path / "model")
    numbers = np.random.default_rng(0)
    if make is whisper:
        given = {"input_features": numbers.normal(size=(2, 20, 100)).astype(np.float32)}
    else:
        given = {
            "input_ids": numbers.integers(3, 96, (2, 7)),
            "attention_mask": np.ones((2, 7), int),
        }
        given["attention_mask"][0, 4:] = 0
    ids = numbers.integers(3, 96, (2, 9))
    tensors = {name: torch.from_numpy(array) for name, array in given.items()}
    with torch.no_grad():  # without any cache
        wanted = model(**tensors, decoder_input_ids=torch.from_numpy(ids)).logits.numpy()
    encoder, decoder = (exported(tmp_path / "model", p, tmp_path) for p in ("encoder", "decoder"))
    with encoder, decoder:
        found = logits(encoder, decoder, given, ids)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())
    assert np.abs(wanted[0] - wanted[1]).max() > 0.1 * np.abs(wanted).max()


@pytest.mark.slow
def test_a_build_makes_one_artifact_of_both(tmp_path: Path) -> None:
    saved(t5, tmp_path / "model")
    how = {
        "target": "cpu",
        "precision": "int8-weight-only",
        "workspace": Workspace(tmp_path / "store"),
    }
    recipe = {"name": "pair", "bench": {"seconds": 0.1, "warmup_seconds": 0, "batches": [1]}}
    model = str(tmp_path / "model")
    lines = api.rehearse(recipe=jobs.resolve(Request(model, recipe)), **how).steps
    assert {"export encoder", "export decoder"} <= {line.label for line in lines}
    with pytest.raises(UsageError, match="encoder and decoder"):
        api.build(model, recipe=recipe, evaluate=lambda session: [1.0], **how)
    artifact = api.build(model, recipe=recipe, out=tmp_path / "out", **how)
    artifact.verify()
    assert set(artifact.parts) == {"encoder", "decoder"}
    assert artifact.manifest.parts == {n: part.digest for n, part in artifact.parts.items()}
    for name, part in artifact.parts.items():
        assert part.result == artifact.result["parts"][name]
        assert part.result["artifact"] == str(artifact.path / name)
        part.verify()
        with part.session() as session:
            assert {info.name for info in session.inputs} == {i.name for i in part.manifest.inputs}
    each = [part.result["size"]["bytes"] for part in artifact.parts.values()]
    assert artifact.result["size"]["bytes"] == sum(each)
    with pytest.raises(UsageError, match="consists of encoder and decoder"):
        artifact.session()
    found = api.inspect(artifact.path, workspace=how["workspace"])
    assert found.graph is None and set(found.parts or {}) == {"encoder", "decoder"}


def test_a_model_of_two_graphs_wants_a_part_and_another_has_none(tmp_path: Path) -> None:
    saved(t5, tmp_path / "pair")
    BertForMaskedLM(
        BertConfig(vocab_size=96, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
                   intermediate_size=64)
    ).save_pretrained(tmp_path / "one")  # fmt: skip
    for folder, part, told in (("pair", None, "two graphs"), ("one", "decoder", "no parts")):
        with pytest.raises(InputRefused, match=told):
            export(
                tmp_path / folder, [], {}, tmp_path / "out.onnx", task=None, part=part,
                trusted=False, session=backend("onnxruntime").session,
                progress=lambda what, share: None,
            )  # fmt: skip


def test_an_encoder_of_unknown_inputs_is_refused(tmp_path: Path) -> None:
    model = saved(whisper, tmp_path / "model")
    model.main_input_name = "pixel_values"
    with pytest.raises(InputRefused, match="neither tokens, nor mel bins, nor waves"):
        encoder_decoder.describe(model, "encoder")

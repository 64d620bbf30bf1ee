"""An encoder in blocks computes what transformers computes, at every length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

from optkit.craft.sources.hugging_face import block_attention
from optkit.ground.data.synthetic import random_feed
from optkit.ground.runtimes import backend
from tests.matrix.families import saved
from tests.sources.hugging_face.conftest import export

KINDS = ("local", "transient-global")


def _config(kind: str) -> hf.LongT5Config:
    return hf.LongT5Config(
        vocab_size=60, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=1, num_heads=4,
        local_radius=7, global_block_size=4, encoder_attention_type=kind, decoder_start_token_id=0,
    )  # fmt: skip


def _encoded(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        states: torch.Tensor = model.get_encoder()(ids, attention_mask=mask).last_hidden_state
    return states


@pytest.mark.parametrize("kind", KINDS)
def test_padding_inside_changes_no_token(kind: str) -> None:
    torch.manual_seed(0)
    own = hf.LongT5EncoderModel(_config(kind)).eval()
    padded = hf.LongT5EncoderModel(_config(kind)).eval()
    padded.load_state_dict(own.state_dict())
    block_attention.pad_inside(padded)
    for length in (*range(1, 34), 63, 64, 65):
        ids = torch.randint(1, 60, (3, length))
        mask = (torch.arange(length) < torch.tensor([[length], [max(1, length // 2)], [1]])).long()
        real = mask.bool()
        expected, found = (_encoded(model, ids, mask)[real] for model in (own, padded))
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4, msg=f"{kind} {length}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_graph_takes_any_length(kind: str, tmp_path: Path) -> None:
    folder = saved(lambda: hf.LongT5EncoderModel(_config(kind)), tmp_path / "model")
    log = export(folder, tmp_path / "model.onnx")
    model = hf.LongT5EncoderModel.from_pretrained(folder).eval()
    with backend("onnxruntime").session(tmp_path / "model.onnx") as session:
        for length in (1, 7, 8, 9, 16, 40, 111):
            feed = random_feed(log.specs, {"batch": 2, "sequence": length}, length)
            feed["attention_mask"][:] = np.arange(length) < np.array([[length], [length // 2 + 1]])
            (found,) = session.run(feed).values()
            ids, mask = (torch.from_numpy(feed[n]) for n in ("input_ids", "attention_mask"))
            real = feed["attention_mask"].astype(bool)
            expected = _encoded(model, ids, mask).numpy()
            np.testing.assert_allclose(found[real], expected[real], atol=1e-4)

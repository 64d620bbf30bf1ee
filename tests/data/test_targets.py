"""What the decoder of an encoder-decoder reads is the target, shifted as transformers shifts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer, BartConfig, T5Config
from transformers import BartForConditionalGeneration as Bart
from transformers import T5ForConditionalGeneration as T5

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import TensorInfo
from optkit.ground.data import text

TOKENS = ("batch", "encoder_sequence")
INPUTS = {
    "input_ids": TensorInfo("input_ids", "int64", TOKENS),
    "attention_mask": TensorInfo("attention_mask", "int64", TOKENS),
    "decoder_input_ids": TensorInfo("decoder_input_ids", "int64", ("batch", "sequence")),
}
ROWS = [{"article": f"the model {'reads ' * (i % 5)}a text", "summary": f"text {'a ' * (i % 3)}"}
        for i in range(11)]  # fmt: skip
SMALL = {"d_model": 16, "vocab_size": 320, "pad_token_id": 0}


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def t5(start: int | None) -> Any:
    config = T5Config(d_kv=8, d_ff=16, num_layers=1, num_heads=2, **SMALL)
    config.decoder_start_token_id = start
    return T5(config)


def bart(start: int | None) -> Any:
    return Bart(
        BartConfig(encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=16,
                   decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=16,
                   decoder_start_token_id=start, **SMALL)
    )  # fmt: skip


@pytest.mark.parametrize("make", [t5, bart])
@pytest.mark.parametrize("start", [0, 2])
def test_targets_are_shifted_as_transformers_does(
    make: Any, start: int, pairs: Path, folder: Path, tmp_path: Path
) -> None:
    model = make(start)
    model.config.save_pretrained(tmp_path / "model")
    spoken = AutoTokenizer.from_pretrained(folder, padding_side="right")
    feeds = list(
        text.samples(pairs, field="article", target="summary", tokenizer=folder,
                     model=str(tmp_path / "model"), inputs=INPUTS)
    )  # fmt: skip
    assert [len(feed["input_ids"]) for feed in feeds] == [8, 3]
    for place, feed in enumerate(feeds):
        summaries = [row["summary"] for row in ROWS[8 * place : 8 * place + 8]]
        labels = spoken(summaries, padding="longest", truncation=True, return_tensors="pt")
        wanted = model.prepare_decoder_input_ids_from_labels(labels["input_ids"])
        np.testing.assert_array_equal(feed["decoder_input_ids"], wanted)
        assert feed.keys() == INPUTS.keys()


def test_the_padding_token_starts_where_the_model_names_none(pairs: Path, folder: Path) -> None:
    read = {"field": "article", "target": "summary", "tokenizer": folder}
    for inputs in (INPUTS, None):
        for feed in text.samples(pairs, inputs=inputs, **read):  # type: ignore[arg-type]
            assert (feed["decoder_input_ids"][:, 0] == 0).all()  # <pad>
            assert (feed["decoder_input_ids"][:, 1] == 2).all()  # <s>, which this template puts


def test_nothing_to_start_with_is_refused(pairs: Path, bare: Path, tmp_path: Path) -> None:
    read = {"field": "article", "target": "summary", "tokenizer": bare, "inputs": INPUTS}
    with pytest.raises(InputRefused, match="start token is not known") as caught:
        next(text.samples(pairs, **read))  # type: ignore[arg-type]
    assert "decoder_start_token_id" in (caught.value.hint or "")
    (tmp_path / "config.json").write_text('{"decoder_start_token_id": 7}')
    feed = next(text.samples(pairs, model=str(tmp_path), **read))  # type: ignore[arg-type]
    assert (feed["decoder_input_ids"][:, 0] == 7).all()


def test_a_decoder_of_fixed_length_and_dtype_gets_it(pairs: Path, folder: Path) -> None:
    fixed = {**INPUTS, "decoder_input_ids": TensorInfo("decoder_input_ids", "int32", ("batch", 4))}
    feeds = list(
        text.samples(pairs, field="article", target="summary", tokenizer=folder, inputs=fixed)
    )
    ids = np.concatenate([feed["decoder_input_ids"] for feed in feeds])
    assert ids.shape == (11, 4) and ids.dtype == np.int32 and (ids[:, :2] == [0, 2]).all()


def test_a_target_that_is_missing_is_reported(pairs: Path, folder: Path) -> None:
    def failing(**args: Any) -> InputRefused:
        with pytest.raises(InputRefused) as caught:
            next(text.samples(pairs, field="article", tokenizer=folder, **args))
        return caught.value

    told = failing(inputs=INPUTS)
    assert "takes decoder_input_ids" in told.message and "args.target" in (told.hint or "")
    told = failing(inputs=INPUTS, target="sumary")
    assert told.where == f"{pairs}:1" and told.hint == "did you mean 'summary'?"
    encoder = {name: INPUTS[name] for name in ("input_ids", "attention_mask")}
    assert "takes no decoder_input_ids" in failing(inputs=encoder, target="summary").message
    told = failing(inputs=INPUTS, target="summary", pack=True, length=8)
    assert "cannot be packed" in told.message


def test_a_column_of_parquet_that_is_not_there_is_reported(tmp_path: Path, folder: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "pairs.parquet"
    parquet.write_table(arrow.Table.from_pylist(ROWS), path)
    read = {"field": "article", "tokenizer": folder, "inputs": INPUTS}
    with pytest.raises(InputRefused, match="no column 'title'"):
        next(text.samples(path, target="title", **read))  # type: ignore[arg-type]
    assert "decoder_input_ids" in next(text.samples(path, target="summary", **read))  # type: ignore[arg-type]

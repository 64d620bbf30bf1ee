"""Tokenizers that are trained in the tests, as a folder of transformers and as a bare
tokenizer.json."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

CORPUS = [
    "the model reads a text and predicts the next token",
    "a quantized model is smaller, and most of the time nearly as good",
    "pictures are decoded, resized and normalized before the model sees them",
    "def samples(path):\n    yield from rows(path)\n",
    "ÄÖÜ, naïve café, 東京",
]


@pytest.fixture(scope="session")
def bpe() -> Tokenizer:
    """Byte-level BPE with </s> (id 1) and a template for pairs."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<pad>", "</s>", "<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1",
        special_tokens=[("<s>", 2), ("</s>", 1)],
    )  # fmt: skip
    return made


@pytest.fixture(scope="session")
def folder(bpe: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As save_pretrained writes it; pads on the left."""
    from transformers import PreTrainedTokenizerFast

    path = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="</s>", pad_token="<pad>", padding_side="left",
        model_max_length=24,
    ).save_pretrained(path)  # fmt: skip
    return path


@pytest.fixture(scope="session")
def bare(bpe: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bare") / "tokenizer.json"
    bpe.save(str(path))
    return path

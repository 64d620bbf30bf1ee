"""A text that is encoded in parts has the ids of the whole."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from optkit.ground.data import streaming, tokens

WORDS = [
    "the ",
    "model",
    " reads",
    "\n",
    "  ",
    "a text,",
    "naïve",
    "東京",
    "12345",
    "\t",
    "x",
    ". ",
]
LIMITS = {"vocab_size": 120, "show_progress": False, "special_tokens": ["<unk>"]}


def prose(seed: int, count: int = 1500) -> str:
    return "".join(np.random.default_rng(seed).choice(WORDS, count))


def byte_level() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return trained(made, trainers.BpeTrainer(**LIMITS))


def word_pieces() -> Tokenizer:
    """As BERT's: words that were normalized."""
    made = Tokenizer(models.WordPiece(unk_token="<unk>"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return trained(made, trainers.WordPieceTrainer(**LIMITS))


def whole_text() -> Tokenizer:
    """As Llama 2's: the text is one word, a space set in front of it."""
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return trained(made, trainers.BpeTrainer(**LIMITS, max_token_length=8))


def likeliest() -> Tokenizer:
    """As T5's."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return trained(made, trainers.UnigramTrainer(**LIMITS, unk_token="<unk>"))


def trained(made: Tokenizer, trainer: Any) -> Tokenizer:
    made.train_from_iterator([prose(seed, 300) for seed in range(4)], trainer)
    return made


@pytest.mark.parametrize("make", [byte_level, word_pieces, whole_text, likeliest])
def test_parts_have_the_ids_of_the_whole(make: Any, tmp_path: Path) -> None:
    make().save(str(tmp_path / "tokenizer.json"))
    spoken = tokens.load(tmp_path / "tokenizer.json", None)
    for seed in range(6):
        text = prose(seed + 9)
        (whole,) = spoken.encode([text], special=False)
        for size in (701, 1200, 4000):
            parts = [text[start : start + size] for start in range(0, len(text), size)]
            found = list(streaming.encoded(parts, spoken, overlap=200))
            assert list(chain.from_iterable(found)) == whole.ids
            assert len(found) == len(parts)  # each was told as soon as it could be


def test_parts_that_nothing_joins_are_encoded_together(bare: Path) -> None:
    """A run of one letter, whose tokens depend on where it starts."""
    spoken = tokens.load(bare, None)
    for text in ("e" * 3000, ""):
        (whole,) = spoken.encode([text], special=False)
        parts = [text[start : start + 500] for start in range(0, len(text), 500)]
        found = streaming.encoded(parts, spoken, overlap=20)
        assert list(chain.from_iterable(found)) == whole.ids

"""tokenizer.json as llama.cpp's tokenizer: what is recognized, and what is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from optkit.facts.errors import InputRefused, UsageError
from tests.generation import families

gguf = pytest.importorskip("gguf")

SPACE = "▁"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["▁", "a", "b", "c", "ab", "▁a", "abc", "▁ab", "bc"]  # in the order of their scores
METASPACE = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}
PREPENDED = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": SPACE},
        {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
    ],
}


def pieces(**changes: Any) -> dict[str, Any]:
    """A converted SentencePiece tokenizer: every pair that makes a token, by the token's score."""
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *WORDS]
    merges = [
        [word[:at], word[at:]]
        for word in WORDS
        for at in range(1, len(word))
        if word[:at] in WORDS and word[at:] in WORDS
    ]
    model = {"type": "BPE", "vocab": {token: at for at, token in enumerate(tokens)},
             "merges": merges, "byte_fallback": True, "unk_token": "<unk>"}  # fmt: skip
    added = [{"id": at, "content": tokens[at], "special": True} for at in range(3)]
    whole = {"model": model, "added_tokens": added, "normalizer": None, "pre_tokenizer": METASPACE}
    model |= changes.pop("model", {})
    return {**whole, **changes}


def read(tokenizer: dict[str, Any], folder: Path) -> Any:
    from optkit.road.packaging.gguf import vocabulary

    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return vocabulary.read(folder, 280)


@pytest.mark.parametrize(
    ("changes", "space"),
    [
        ({}, True),
        ({"pre_tokenizer": {**METASPACE, "prepend_scheme": "never"}}, False),
        ({"normalizer": PREPENDED, "pre_tokenizer": None}, True),
    ],
)
def test_the_place_of_its_pairs_is_the_score_of_a_token(
    changes: dict[str, Any], space: bool, tmp_path: Path
) -> None:
    found = read(pieces(**changes), tmp_path)
    score = dict(zip(found.tokens, found.scores, strict=True))
    longer = [word for word in WORDS if len(word) > 1]
    assert [score[word] for word in longer] == [-1, -2, -3, -4, -5] and score["a"] == 0
    assert found.words is None and found.space is space
    kinds = dict(zip(found.tokens, (kind.name for kind in found.types), strict=True))
    assert kinds["<unk>"] == "UNKNOWN" and kinds["</s>"] == "CONTROL" and kinds["abc"] == "NORMAL"
    assert kinds["<0x0A>"] == "BYTE" and kinds["[PAD279]"] == "UNUSED"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"merges": [["a", "b"]]}}, "its merges lack"),
        ({"model": {"vocab": {"a": 0}}}, "no tokens for all bytes"),
        ({"pre_tokenizer": {**METASPACE, "split": True}}, "another way than SentencePiece"),
        ({"normalizer": {"type": "NFKC"}}, "another way than SentencePiece"),
        ({"model": {"type": "Unigram"}}, "model.type"),
    ],
)
def test_what_scores_cannot_say_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        read(pieces(**changes), tmp_path)


def test_tokens_whose_pairs_are_mixed_have_the_same_score(tmp_path: Path) -> None:
    runs = ["▁▁", "▁▁▁", "▁▁▁▁"]
    tokenizer = pieces()
    tokenizer["model"]["vocab"] |= {run: 270 + at for at, run in enumerate(runs)}
    tokenizer["model"]["merges"] += [["▁▁", "▁▁"], ["▁▁", "▁"], ["▁", "▁▁▁"], ["▁▁▁", "▁"],
                                     ["▁", "▁▁"], ["▁", "▁"]]  # fmt: skip
    found = read(tokenizer, tmp_path)
    score = dict(zip(found.tokens, found.scores, strict=True))
    assert [score[run] for run in runs] == [-7, -6, -6] and score["bc"] == -5


def message(number: int, content: bytes) -> bytes:
    """A field of a protobuf message with fewer than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def model_file(scores: dict[str, float], kind: int = 2) -> bytes:
    rows = (
        message(1, message(1, piece.encode()) + b"\x15" + struct.pack("<f", score))
        for piece, score in scores.items()
    )
    return b"".join(rows) + message(2, bytes([3 << 3, kind]))


def test_scores_are_those_of_tokenizer_model(tmp_path: Path) -> None:
    tokenizer = pieces()
    scores = {token: -0.5 * at for token, at in tokenizer["model"]["vocab"].items()}
    (tmp_path / "tokenizer.model").write_bytes(model_file(scores))
    found = read(tokenizer, tmp_path)
    score = dict(zip(found.tokens, found.scores, strict=True))
    assert all(score[word] == scores[word] for word in WORDS) and score["</s>"] == 0


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (model_file({"a": 0.0}), InputRefused, "belong to different tokenizers"),
        (model_file({"a": 0.0}, kind=1), UsageError, "not byte-pair encoding"),
        (b"\xff\xff", InputRefused, "not the file of a SentencePiece tokenizer"),
    ],
)
def test_another_tokenizer_model_is_refused(
    content: bytes, error: type[Exception], message: str, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(error, match=message):
        read(pieces(), tmp_path)


def test_words_are_recognized_by_how_they_are_cut(tmp_path: Path) -> None:
    families.tokenizer(families.PROMPTS).save_pretrained(tmp_path)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    with pytest.raises(InputRefused, match="has no row in the embedding, which has 280"):
        read(tokenizer, tmp_path)
    tokenizer["model"] |= {"vocab": {"a": 0}, "merges": []}
    assert read(tokenizer, tmp_path).words == "gpt-2"
    tokenizer["pre_tokenizer"] |= {"add_prefix_space": True}
    with pytest.raises(UsageError, match="cuts texts into words in another way"):
        read(tokenizer, tmp_path)


def test_a_model_without_tokenizer_json_is_refused(tmp_path: Path) -> None:
    from optkit.road.packaging.gguf import vocabulary

    with pytest.raises(UsageError, match=r"no tokenizer\.json") as refused:
        vocabulary.read(tmp_path, 8)
    assert "save_pretrained" in str(refused.value.hint)

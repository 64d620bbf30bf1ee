from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import TensorInfo
from optkit.ground.data import labelled, language, rows, text
from optkit.ground.data.classes import class_number, model_classes
from optkit.ground.data.packing import IGNORED
from optkit.ground.data.tokens import load

SEQUENCE = ("batch", "sequence")
IDS = {name: TensorInfo(name, "int64", SEQUENCE) for name in ("input_ids", "attention_mask")}
LINES = [f"line {i} of the text, {'more ' * (i % 4)}and its end" for i in range(19)]


def jsonl(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return jsonl(tmp_path / "corpus.jsonl", [{"text": line} for line in LINES])


def test_packed_samples_are_the_naive_concatenation(
    corpus: Path, folder: Path, bpe: Tokenizer
) -> None:
    stream: list[int] = []
    for index, line in enumerate(LINES):
        stream += [1] * bool(index) + bpe.encode(line, add_special_tokens=False).ids
    feeds = list(text.samples(corpus, length=16, pack=True, tokenizer=folder, inputs=IDS))
    blocks = np.concatenate([feed["input_ids"] for feed in feeds])
    assert blocks.tolist() == [stream[i : i + 16] for i in range(0, len(stream) - 15, 16)]
    assert all(feed["attention_mask"].all() for feed in feeds)


def test_a_packed_text_file_is_one_text(tmp_path: Path, folder: Path, bpe: Tokenizer) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(LINES))
    (first, *_) = text.samples(path, length=32, pack=True, tokenizer=folder, inputs=IDS)
    ids = bpe.encode("\n".join(LINES), add_special_tokens=False).ids
    assert first["input_ids"].ravel().tolist() == ids[: first["input_ids"].size]


def test_padded_samples_are_what_transformers_gives(corpus: Path, folder: Path) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    feeds = list(text.samples(corpus, tokenizer=folder, inputs=IDS))
    assert [len(feed["input_ids"]) for feed in feeds] == [8, 8, 3]
    for index, feed in enumerate(feeds):
        wanted = theirs(
            LINES[8 * index : 8 * index + 8],
            padding="longest",
            truncation=True,
            return_tensors="np",
        )
        for name, array in feed.items():
            np.testing.assert_array_equal(array, wanted[name])
    (right, *_) = text.samples(
        corpus, length=40, padding_side="right", tokenizer=folder, inputs=IDS
    )
    assert right["input_ids"].shape == (8, 40) and right["attention_mask"][:, 0].all()


def test_pairs_have_segments(tmp_path: Path, folder: Path, bpe: Tokenizer) -> None:
    path = jsonl(tmp_path / "pairs.jsonl", [{"a": "the model", "b": "a text"}])
    inputs = {**IDS, "token_type_ids": TensorInfo("token_type_ids", "int64", SEQUENCE)}
    (feed,) = text.samples(path, field=["a", "b"], tokenizer=folder, inputs=inputs)
    wanted = bpe.encode("the model", "a text")
    assert feed["input_ids"].tolist() == [wanted.ids]
    assert feed["token_type_ids"].tolist() == [wanted.type_ids]


def test_a_fixed_model_gives_length_and_batch(corpus: Path, folder: Path) -> None:
    fixed = {"input_ids": TensorInfo("input_ids", "int32", (4, 12))}
    feeds = list(text.samples(corpus, tokenizer=folder, inputs=fixed))
    assert [feed["input_ids"].shape for feed in feeds] == [(4, 12)] * 4 + [(3, 12)]
    assert all(feed["input_ids"].dtype == np.int32 for feed in feeds)


def test_a_bare_tokenizer_says_which_token_ends_a_text(corpus: Path, bare: Path) -> None:
    with pytest.raises(InputRefused, match="names no end-of-sequence token") as caught:
        next(text.samples(corpus, length=8, pack=True, tokenizer=bare))
    assert "args.eos" in (caught.value.hint or "") and caught.value.where == str(bare)
    with pytest.raises(InputRefused, match="has no token '<end>'"):
        next(text.samples(corpus, length=8, pack=True, eos="<end>", tokenizer=bare))
    feed = next(text.samples(corpus, length=64, pack=True, eos="</s>", tokenizer=bare.parent))
    assert 1 in feed["input_ids"]


def test_what_says_no_tokenizer_is_refused(corpus: Path, tmp_path: Path) -> None:
    for model in (None, str(tmp_path)):
        with pytest.raises(InputRefused, match="the model has no tokenizer") as caught:
            next(text.samples(corpus, model=model))
        assert "args: {tokenizer: FOLDER}" in str(caught.value.hint)
    with pytest.raises(InputRefused, match="no tokenizer"):
        next(text.samples(corpus, tokenizer=tmp_path))
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{}")
    with pytest.raises(InputRefused, match="cannot be read"):
        load(broken, None)
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(InputRefused, match="cannot be read"):
        load(tmp_path, None)


def test_packing_needs_a_length(corpus: Path, folder: Path) -> None:
    with pytest.raises(InputRefused, match="packing needs a length"):
        next(text.samples(corpus, pack=True, tokenizer=folder))
    with pytest.raises(InputRefused, match="not a number of tokens"):
        next(text.samples(corpus, length="128", tokenizer=folder))  # type: ignore[arg-type]


def test_pairs_follow_each_other_with_their_score_and_span(tmp_path: Path, folder: Path) -> None:
    records = [
        {"s": "the model", "t": "a text and more", "gold": 2.5},
        {"s": "x", "t": "y", "gold": 1},
    ]
    path = jsonl(tmp_path / "sts.jsonl", records)
    ((feed, labels),) = text.pairs(
        path, ["s", "t"], "gold", length=12, tokenizer=folder, inputs=IDS
    )
    assert labels[:, 0].tolist() == [2.5, 2.5, 1, 1]
    for row, (_, start, stop) in enumerate(labels.astype(int)):
        assert feed["attention_mask"][row].tolist() == [int(start <= i < stop) for i in range(12)]
    jsonl(path, [{"s": "a", "t": "b", "gold": "much"}])
    with pytest.raises(InputRefused, match="'much' is not a number"):
        list(text.pairs(path, ["s", "t"], "gold", tokenizer=folder))


def test_tags_stand_at_the_first_token_of_their_word(tmp_path: Path, folder: Path) -> None:
    from transformers import AutoTokenizer

    records = [{"tokens": ["Zanzibar", "is", "normalized"], "tags": ["LOC", "O", "O"]},
               {"tokens": ["a"], "tags": ["O"]}]  # fmt: skip
    path = jsonl(tmp_path / "ner.jsonl", records)
    made = text.tagged(path, classes=["O", "LOC"], length=20, tokenizer=folder, inputs=IDS)
    ((feed, labels),) = made
    theirs = AutoTokenizer.from_pretrained(folder)(
        [one["tokens"] for one in records],
        is_split_into_words=True,
        padding="max_length",
        max_length=20,
    )
    for row, one in enumerate(records):
        words = theirs.word_ids(row)
        wanted = [
            IGNORED if word is None or word in words[:i] else ["O", "LOC"].index(one["tags"][word])
            for i, word in enumerate(words)
        ]
        assert (
            labels[row].tolist() == wanted
            and feed["input_ids"][row].tolist() == theirs["input_ids"][row]
        )
    jsonl(path, [{"tokens": ["a", "b"], "tags": ["O"]}])
    with pytest.raises(InputRefused, match="1 tags for 2 words") as caught:
        list(text.tagged(path, tokenizer=folder))
    assert caught.value.where == f"{path}:1"


def test_labels_are_numbers_or_known_classes(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("text,label\na,1\nb,good\n")
    read = {"field": "text", "label": "label", "length": 8, "padding_side": None, "model": None}
    with pytest.raises(InputRefused, match="the label 'good' is not the number") as caught:
        list(text.labelled(path, classes=None, tokenizer=folder, inputs=IDS, **read))
    assert caught.value.where == f"{path}:3" and "args.classes" in (caught.value.hint or "")
    classes = ["bad", "good"]
    ((feed, labels),) = text.labelled(path, classes=classes, tokenizer=folder, inputs=IDS, **read)
    assert labels.tolist() == [1, 1] and feed["input_ids"].shape == (2, 8)


@pytest.mark.parametrize(
    ("label", "classes", "wanted"),
    [
        ("5", ["1", "2", "3", "4", "5"], 4),  # a name, though of digits
        (5, [1, 2, 3, 4, 5], 4),
        ("1.0", None, 1),
        (2, ["a", "b", "c"], 2),
        (-100, ["a"], -100),
    ],
)
def test_the_class_of_a_label(label: Any, classes: Any, wanted: int) -> None:
    assert class_number(label, classes, "data.csv:2") == wanted


@pytest.mark.parametrize("label", [1.5, -1, float("inf"), float("nan"), "-1", None, [1]])
@pytest.mark.parametrize("classes", [None, ["a", "b"]])
def test_a_label_that_is_no_class_is_refused(label: Any, classes: list[str] | None) -> None:
    with pytest.raises(InputRefused, match=r"the label .* is not ") as caught:
        class_number(label, classes, "data.csv:2")
    assert caught.value.where == "data.csv:2"
    with pytest.raises(InputRefused, match="the label 2 is not a known class"):
        class_number(2, ["a", "b"], "data.csv:2")


@pytest.mark.parametrize(
    ("stored", "names"),
    [
        ({"1": "good", "0": "bad"}, ["bad", "good"]),
        ({"0": "0", "1": "1"}, ["0", "1"]),
        ({"0": "1", "1": "2"}, []),  # is a label 1 the first or the second?
        ({"0": "bad", "2": "good"}, []),
        (["bad", "good"], []),
    ],
)
def test_the_classes_that_a_model_names(stored: Any, names: list[str], tmp_path: Path) -> None:
    assert model_classes(tmp_path) == model_classes(None) == []
    (tmp_path / "config.json").write_text(json.dumps({"id2label": stored}))
    assert model_classes(str(tmp_path)) == names


@pytest.mark.parametrize("packed", [True, False])
def test_a_long_text_is_read_as_its_tokens_are_wanted(
    packed: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_PART", 1 << 14)
    path = tmp_path / "long.txt"
    path.write_bytes(b"\n".join(line.encode() for line in LINES * 120) + b"\n\xff")

    def feeds() -> Iterator[Any]:
        if packed:
            return text.samples(path, length=64, pack=True, tokenizer=folder, inputs=IDS)
        return (one for one, _ in language.windows(path, length=64, tokenizer=folder, inputs=IDS))

    assert next(feeds())["input_ids"].shape == (8, 64)
    with pytest.raises(InputRefused, match="not UTF-8") as caught:
        for _ in feeds():
            pass
    assert caught.value.where == f"{path}:{len(LINES) * 120 + 1}"


def test_labels_are_the_models_own_classes(folder: Path, tmp_path: Path) -> None:
    rows = [{"text": "the model", "label": "good", "tokens": ["a", "text"], "tags": ["good", 0]}]
    path = jsonl(tmp_path / "data.jsonl", rows)
    model = Path(shutil.copytree(folder, tmp_path / "model"))
    (model / "config.json").write_text('{"id2label": {"0": "bad", "1": "good"}}')
    ((_, labels),) = labelled.samples(path, model=str(model), inputs=IDS)
    assert labels.tolist() == [1]
    ((_, tags),) = text.tagged(path, model=str(model), inputs=IDS)
    assert tags[tags != IGNORED].tolist() == [1, 0]
    ((_, labels),) = labelled.samples(path, classes=["good"], model=str(model), inputs=IDS)
    assert labels.tolist() == [0]


def test_windows_of_a_file(tmp_path: Path, folder: Path, bpe: Tokenizer) -> None:
    path = tmp_path / "held.txt"
    path.write_text("\n".join(LINES))
    ids = bpe.encode("\n".join(LINES), add_special_tokens=False).ids
    batches = list(language.windows(path, length=16, tokenizer=folder, inputs=IDS))
    rows = np.concatenate([feed["input_ids"] for feed, _ in batches])
    labels = np.concatenate([labels for _, labels in batches])
    assert (labels != IGNORED).sum() == len(ids) - 1
    assert rows[1, :16].tolist() == ids[8:24] and labels[1, 7:15].tolist() == ids[16:24]
    with pytest.raises(InputRefused, match="a stride of 17"):
        next(language.windows(path, length=16, stride=17, tokenizer=folder))
    path.write_text("")
    with pytest.raises(InputRefused, match="only 0 tokens"):
        next(language.windows(path, length=16, tokenizer=folder))


@pytest.mark.parametrize("side", ["left", "right"])
def test_an_answer_is_what_is_scored(
    tmp_path: Path, folder: Path, bpe: Tokenizer, side: Any
) -> None:
    path = jsonl(tmp_path / "qa.jsonl", [{"prompt": "the model", "answer": " reads a text"}])
    ((feed, labels),) = language.answers(
        path, length=20, padding_side=side, tokenizer=folder, inputs=IDS
    )
    answer = bpe.encode(" reads a text", add_special_tokens=False).ids
    (places,) = np.nonzero(labels[0] != IGNORED)
    assert labels[0, places].tolist() == answer
    assert feed["input_ids"][0, places + 1].tolist() == answer  # each predicted one earlier
    with pytest.raises(InputRefused, match="tokens") as caught:
        next(language.answers(path, length=5, tokenizer=folder, inputs=IDS))
    assert caught.value.where == f"{path}:1"

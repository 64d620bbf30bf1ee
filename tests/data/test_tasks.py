"""The tasks that optkit ships: from their data to their figure, compared with an independent
reference."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import f1_score
from tokenizers import Tokenizer

from optkit.craft.benchmarking.accuracy import EvaluationTask
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Score
from optkit.facts.tensors import Feed, TensorInfo
from optkit.ground import places, user_code
from optkit.ground.data.packing import IGNORED
from tests.scoring import score

IDS = {n: TensorInfo(n, "int64", ("batch", "sequence")) for n in ("input_ids", "attention_mask")}
TABLE = np.random.default_rng(6).standard_normal((320, 16))  # a vector per token


class Model:
    """A session that is a function of the feed."""

    inputs = outputs = ()

    def __init__(self, run: Callable[[Feed], Feed]) -> None:
        self.run = run


def states(feed: Feed) -> Feed:
    return {"last_hidden_state": TABLE[feed["input_ids"]]}


def result(name: str, run: Callable[[Feed], Feed], **args: Any) -> Score:
    """What a build would do with the task of that name."""
    path = places.find_task(name, Path()).path
    module = user_code.load_module(path)
    hooks = {key: user_code.hook(module, key, args) for key in ("score", "combine", "aggregate")}
    task = EvaluationTask(user_code.metric(module, path, args), **hooks)  # type: ignore[arg-type]
    taken = user_code.taken(module.samples, args)
    return score(Model(run), module.samples(**taken, inputs=IDS), task, evidence=Evidence.MEASURED)  # type: ignore[arg-type]


def jsonl(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


@pytest.fixture
def sentences(tmp_path: Path) -> list[dict[str, Any]]:
    random = np.random.default_rng(7)
    words = ["the", "a", "model", "text", "reads", "next", "token", "good", "time"]
    pick = partial(random.choice, words)
    return [
        {"sentence1": " ".join(pick(4)), "sentence2": " ".join(pick(3)), "score": float(gold)}
        for gold in random.integers(0, 6, 40)
    ]


def embedded(bpe: Tokenizer, texts: list[str]) -> np.ndarray:
    means = np.stack([TABLE[bpe.encode(text).ids].mean(0) for text in texts])
    return means / np.linalg.norm(means, axis=1, keepdims=True)


@pytest.mark.parametrize("measure", ["spearman", "pearson"])
def test_similarity(
    sentences: list[dict[str, Any]], tmp_path: Path, folder: Path, bpe: Tokenizer, measure: str
) -> None:
    path = jsonl(tmp_path / "sts.jsonl", sentences)
    found = result("similarity", states, path=path, tokenizer=folder, measure=measure)
    sides = [embedded(bpe, [one[key] for one in sentences]) for key in ("sentence1", "sentence2")]
    cosines, gold = (sides[0] * sides[1]).sum(1), [one["score"] for one in sentences]
    wanted = getattr(stats, f"{measure}r")(cosines, gold).statistic
    assert (found.metric, found.samples) == (measure, 40)
    assert found.value == pytest.approx(wanted, abs=1e-9)
    assert found.ci95.low < wanted < found.ci95.high


def test_retrieval(
    sentences: list[dict[str, Any]], tmp_path: Path, folder: Path, bpe: Tokenizer
) -> None:
    for one in sentences[::2]:
        one["sentence2"] = one["sentence1"] + " and"
    path = jsonl(tmp_path / "pairs.jsonl", sentences)
    fields = ["sentence1", "sentence2"]
    found = result("retrieval", states, path=path, fields=fields, tokenizer=folder, k=2)
    a, b = (embedded(bpe, [one[key] for one in sentences]) for key in fields)
    place = (-(a @ b.T)).argsort(1).argsort(1)[np.arange(40), np.arange(40)]
    assert found.metric == "recall2" and found.proportion
    assert found.per_sample == tuple((place < 2).astype(float)) and 0.3 < found.value < 1


def first_token(feed: Feed) -> Feed:
    """Logits of 4 classes by the first real token."""
    start = feed["attention_mask"].argmax(1) + 1  # behind <s>
    return {"logits": TABLE[feed["input_ids"][np.arange(len(start)), start], :4]}


@pytest.mark.parametrize("name", ["top1", "f1"])
def test_classifiers(
    sentences: list[dict[str, Any]], tmp_path: Path, folder: Path, bpe: Tokenizer, name: str
) -> None:
    classes = ["n", "e", "s", "w"]
    for index, one in enumerate(sentences):
        one["side"] = classes[index % 4]
    path = jsonl(tmp_path / "data.jsonl", sentences)
    found = result(
        name, first_token, path=path, tokenizer=folder, field="sentence1", label="side",
        classes=classes, k=2, average="micro",
    )  # fmt: skip
    firsts = [bpe.encode(one["sentence1"], add_special_tokens=False).ids[0] for one in sentences]
    logits, labels = TABLE[firsts, :4], np.arange(40) % 4
    if name == "f1":
        wanted = f1_score(labels, logits.argmax(1), average="micro")
    else:
        wanted = np.mean(
            [label in row.argsort()[-2:] for row, label in zip(logits, labels, strict=True)]
        )
    assert found.metric == {"top1": "top2", "f1": "f1_micro"}[name]
    assert found.value == pytest.approx(wanted)


def test_token_f1(tmp_path: Path, folder: Path) -> None:
    random = np.random.default_rng(8)
    words = ["Zanzibar", "model", "is", "a", "naïve"]
    records = [
        {"tokens": list(random.choice(words, 6)), "tags": random.integers(0, 3, 6).tolist()}
        for _ in range(20)
    ]
    path = jsonl(tmp_path / "ner.jsonl", records)
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def tagger(feed: Feed) -> Feed:
        logits = TABLE[feed["input_ids"], :3]
        seen.append((feed["input_ids"], logits.argmax(-1)))
        return {"logits": logits}

    found = result(
        "token_f1", tagger, path=path, tokenizer=folder, length=64, exclude=[0], average="macro"
    )
    module = user_code.load_module(places.find_task("token_f1", Path()).path)
    labels = np.concatenate(
        [one for _, one in module.samples(path=path, tokenizer=folder, length=64)]
    )
    guesses = np.concatenate([one for _, one in seen])
    real = labels != IGNORED
    assert real.sum() == 120
    wanted = f1_score(labels[real], guesses[real], average="macro", labels=[1, 2])
    assert found.value == pytest.approx(wanted) and found.metric == "token_f1_macro"


def test_exact_match_is_greedy_decoding(tmp_path: Path, folder: Path, bpe: Tokenizer) -> None:
    """A model that looks back one token: decoding greedily from each prompt, token by token."""

    def run(feed: Feed) -> Feed:
        return {"logits": (TABLE @ TABLE[::-1].T)[feed["input_ids"]]}

    def greedy(prompt: list[int], count: int) -> list[int]:
        ids = list(prompt)
        for _ in range(count):
            ids.append(int((TABLE @ TABLE[::-1].T)[ids[-1]].argmax()))
        return ids[len(prompt) :]

    records, wanted = [], []
    for prompt in ("the model", "a text", "pictures", "next"):
        asked = bpe.encode(prompt).ids
        for answer in (bpe.decode(greedy(asked, 1), skip_special_tokens=False), " something else"):
            ids = bpe.encode(answer, add_special_tokens=False).ids
            if ids:
                records.append({"prompt": prompt, "answer": answer})
                wanted.append(float(greedy(asked, len(ids)) == ids))
    path = jsonl(tmp_path / "qa.jsonl", records)
    found = result("exact_match", run, path=path, tokenizer=folder, length=24)
    assert found.per_sample == tuple(wanted) and 0 < found.value < 1

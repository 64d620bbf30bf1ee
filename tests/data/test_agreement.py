"""Tasks without labels: the agreement of a model with the baseline, compared with independent
figures."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist, cosine
from tokenizers import Tokenizer

from optkit.craft.benchmarking import metrics
from optkit.craft.benchmarking.accuracy import EvaluationTask, pool, run
from optkit.craft.benchmarking.paired_drop import drop
from optkit.craft.benchmarking.partial_results import PartialScores
from optkit.facts.errors import InputRefused
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Score
from optkit.ground import places, user_code
from tests.data.test_tasks import IDS, TABLE, Model, jsonl

OTHER = TABLE + np.random.default_rng(8).normal(0, 0.4, TABLE.shape)
WORDS = ["the", "a", "model", "text", "reads", "next", "token", "good", "time"]


@pytest.fixture
def pairs(tmp_path: Path) -> tuple[Path, list[list[str]]]:
    """Rows of two texts, and the texts by column."""
    random = np.random.default_rng(7)
    columns = [[" ".join(random.choice(WORDS, 4)) for _ in range(40)] for _ in range(2)]
    records = [{"one": a, "two": b} for a, b in zip(*columns, strict=True)]
    return jsonl(tmp_path / "pairs.jsonl", records), columns


def scored(name: str, path: Path, folder: Path, **args: Any) -> list[Score]:
    """Of the baseline, whose vectors are TABLE's, and of a candidate with others."""
    module = user_code.load_module(places.find_task(name, Path()).path)
    args |= {"path": path, "fields": ["one", "two"], "tokenizer": folder}
    hooks = {key: user_code.hook(module, key, args) for key in ("score", "agreement")}
    task = EvaluationTask(user_code.metric(module, path, args), **hooks)  # type: ignore[arg-type]
    taken, found, rows = user_code.taken(module.samples, args), [], None
    for table in (TABLE, OTHER):
        session: Any = Model(lambda feed, x=table: {"last_hidden_state": x[feed["input_ids"]]})
        kept = PartialScores(None)
        run(session, module.samples(**taken, inputs=IDS), task, kept)
        found.append(pool(kept, task, evidence=Evidence.SIMULATED, baseline=rows))
        rows = np.concatenate(kept.scores)
    return found


def vectors(bpe: Tokenizer, texts: list[str], table: np.ndarray) -> np.ndarray:
    means = np.stack([table[bpe.encode(text).ids].mean(0) for text in texts])
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def test_retrieval_has_as_much_in_common_as_the_lists_have(
    pairs: tuple[Path, list[list[str]]], folder: Path, bpe: Tokenizer
) -> None:
    path, columns = pairs
    baseline, candidate = scored("retrieval_agreement", path, folder, k=5)
    lists = []
    for table in (TABLE, OTHER):
        queries, documents = (vectors(bpe, texts, table) for texts in columns)
        lists.append(cdist(queries, documents, "cosine").argsort(1)[:, :5])
    wanted = [len({*a} & {*b}) / 5 for a, b in zip(*lists, strict=True)]
    assert candidate.per_sample == pytest.approx(wanted) and 0.3 < candidate.value < 1
    assert (candidate.metric, candidate.samples) == ("overlap5", 40)
    assert set(baseline.per_sample) == {1.0}
    assert drop(baseline, candidate).value == pytest.approx(1 - np.mean(wanted))


def test_as_many_neighbours_as_texts_say_nothing(
    pairs: tuple[Path, list[list[str]]], folder: Path
) -> None:
    with pytest.raises(InputRefused, match="k is 40, but there are only 40 documents"):
        scored("retrieval_agreement", pairs[0], folder, k=40)


def test_embeddings_are_compared_text_by_text(
    pairs: tuple[Path, list[list[str]]], folder: Path, bpe: Tokenizer
) -> None:
    path, columns = pairs
    baseline, candidate = scored("similarity_agreement", path, folder)
    texts = [text for row in zip(*columns, strict=True) for text in row]
    sides = (vectors(bpe, texts, table) for table in (TABLE, OTHER))
    wanted = [1 - cosine(*row) for row in zip(*sides, strict=True)]
    assert candidate.per_sample == pytest.approx(wanted) and candidate.value < 0.99
    assert candidate.samples == 80 and set(baseline.per_sample) == {1.0}


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=6, max_size=6), min_size=2, max_size=8))
def test_texts_agree_up_to_their_first_other_token(texts: list[list[int]]) -> None:
    found = metrics.agreed(np.array(texts[1:]), np.array(texts[:-1]))
    pairs = zip(texts[1:], texts, strict=False)
    together = (zip(one, other, strict=True) for one, other in pairs)
    assert found.tolist() == [len([*takewhile(lambda x: x[0] == x[1], x)]) for x in together]

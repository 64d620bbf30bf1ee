"""`greedy_agreement`: a decoder's text beside the baseline's, token for token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optkit.craft.benchmarking.accuracy import EvaluationTask, pool, run
from optkit.craft.benchmarking.partial_results import PartialScores
from optkit.facts.errors import InputRefused
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Score
from optkit.ground import places, user_code
from optkit.ground.runtimes import SessionOptions, backend
from tests.generation.conftest import VOCABULARY, Network, words, write

PROMPT, NEW = 5, 12


@pytest.fixture
def text(tmp_path: Path) -> Path:
    random = np.random.default_rng(3)
    path = tmp_path / "text.txt"
    path.write_text(" ".join(f"w{at}" for at in random.integers(0, VOCABULARY, 7 * 20)))
    words().save(str(tmp_path / "tokenizer.json"))
    return path


def scored(networks: list[Network], text: Path, **args: Any) -> list[Score]:
    """Of each network; the first is the baseline."""
    module = user_code.load_module(places.find_task("greedy_agreement", Path()).path)
    args |= {"path": text, "length": PROMPT, "stride": 7, "new": NEW, "eos": "w0"}
    args |= {"tokenizer": text.with_name("tokenizer.json")}
    hooks = {key: user_code.hook(module, key, args) for key in ("run", "score", "agreement")}
    task = EvaluationTask(user_code.metric(module, text, args), **hooks)  # type: ignore[arg-type]
    found, rows = [], None
    for index, network in enumerate(networks):
        path = text.with_name(f"{index}.onnx")
        write(network, path)
        with backend("onnxruntime").session(
            text.with_name(f"{index}.onnx"), SessionOptions(threads=1)
        ) as session:
            kept, inputs = PartialScores(None), {info.name: info for info in session.inputs}
            taken = user_code.taken(module.samples, args)
            batches = (
                ({**feed, **empty(len(labels), inputs)}, labels)
                for feed, labels in module.samples(**taken, inputs=inputs)
            )
            run(session, batches, task, kept)
        found.append(pool(kept, task, evidence=Evidence.SIMULATED, baseline=rows))
        rows = np.concatenate(kept.scores)
    return found


def empty(batch: int, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    """The cache, as spooled samples have it."""
    caches = [info for name, info in inputs.items() if name.startswith("past")]
    sizes = [(batch, info.shape[1], 0, info.shape[3]) for info in caches]
    return {i.name: np.zeros(s, np.float32) for i, s in zip(caches, sizes, strict=True)}


@pytest.mark.parametrize("measure", ["prefix", "equal"])
def test_tokens_count_up_to_where_the_texts_go_apart(
    network: Network, text: Path, measure: str
) -> None:
    noise = np.random.default_rng(5).normal(0, 0.02, network.head.shape).astype(np.float32)
    other = replace(network, head=network.head + noise)
    baseline, candidate = scored([network, other], text, measure=measure)
    ids = [int(word[1:]) for word in text.read_text().split()]
    wanted = []
    for at in range(0, len(ids), 7):
        one, two = (each.continued(ids[at : at + PROMPT], NEW) for each in (network, other))
        same = next((i for i in range(NEW) if one[i] != two[i]), NEW)
        wanted.append(same / NEW if measure == "prefix" else float(same == NEW))
    assert candidate.per_sample == pytest.approx(wanted) and 0.2 < candidate.value < 1
    assert candidate.metric == f"greedy_{measure}{NEW}" and candidate.samples == 20
    assert set(baseline.per_sample) == {1.0}


def test_a_model_without_a_cache_writes_no_text() -> None:
    module = user_code.load_module(places.find_task("greedy_agreement", Path()).path)

    class Encoder:
        inputs = outputs = ()

    task = EvaluationTask("m", lambda outputs, labels: labels, run=module.run)
    batches = [({"input_ids": np.ones((1, 2), np.int64)}, np.zeros(1))]
    with pytest.raises(InputRefused, match="no decoder with a cache"):
        run(Encoder(), batches, task, PartialScores(None))  # type: ignore[arg-type]

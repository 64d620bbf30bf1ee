"""Decoders with sliding windows: their logits and texts are those of transformers, for prompts that
are shorter than the window, as long, and longer; and a cache that keeps only the window, in floats
or as codes, gives what the whole cache gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

import optkit
from optkit.craft.backends.ort_session import OrtLoop
from optkit.ground.artifact import Artifact
from optkit.ground.data.sequences import completed
from optkit.ground.decoder import CACHE_AXIS
from optkit.satellites.generation import Speculation, generate
from optkit.satellites.generation.decoding import rows_kept
from tests.generation import families
from tests.generation.families import LOCAL, MIXED, PROMPTS, WINDOW
from tests.generation.test_equals_transformers import expected

pytestmark = pytest.mark.slow

NEW = 40


@pytest.fixture(scope="module", params=[*LOCAL, *MIXED])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, PreTrainedModel, Path, Artifact]:
    root = tmp_path_factory.mktemp(request.param)
    model = families.write(request.param, root / "model")
    return request.param, model, root / "model", families.build(root / "model", root / "out")


@pytest.fixture(scope="module", params=[LOCAL[0], MIXED[-1]])
def coded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, Artifact]]:
    """The family, and an artifact for each format of its cache."""
    root = tmp_path_factory.mktemp(f"{request.param}-coded")
    families.write(request.param, root / "model")
    texts = (json.dumps({"text": text * 3}) for text in PROMPTS for _ in range(4))
    (root / "texts.jsonl").write_text("\n".join(texts))
    built = {}
    for codes in ("float32", "int8", "int4"):
        cache = {} if codes == "float32" else {"kv_cache": codes}
        recipe = {
            "name": "coded", "model": {"path": "model"}, "quantization": cache,
            "calibration": {"source": "text", "args": {"path": "texts.jsonl"}},
        }  # fmt: skip
        (root / "optkit.yaml").write_text(json.dumps(recipe))
        built[codes] = optkit.build(
            recipe=root / "optkit.yaml", target="cpu", precision="int4", out=root / codes,
            workspace=optkit.Workspace(root / "cache"),
        )  # fmt: skip
    return request.param, built


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The numbers of rows in the caches of loops, after each run."""
    rows: list[int] = []
    run = OrtLoop.run

    def watched(loop: OrtLoop, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = run(loop, feed)
        sizes = {value.numpy().shape[CACHE_AXIS] for value in loop._state.values()}
        rows.extend(sizes)
        return found

    monkeypatch.setattr(OrtLoop, "run", watched)
    yield rows


@pytest.mark.parametrize("length", [1, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW])
def test_logits_are_those_of_transformers(
    pair: tuple[str, PreTrainedModel, Path, Artifact], length: int
) -> None:
    _, model, _, artifact = pair
    ids = np.random.default_rng(length).integers(3, families.VOCABULARY, (2, length))
    with torch.no_grad():
        wanted = model(input_ids=torch.from_numpy(ids)).logits.numpy()
    with artifact.session(threads=1) as session:
        named = {info.name: info for info in session.inputs}
        feed = completed({"input_ids": ids}, named, {"past_sequence"})
        found = session.run({name: np.asarray(x) for name, x in feed.items()})["logits"]
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


def test_texts_are_those_of_transformers(
    pair: tuple[str, PreTrainedModel, Path, Artifact], buffers: list[int]
) -> None:
    family, model, folder, artifact = pair
    wanted = [tokens[:NEW] for tokens in expected(model, folder)]
    assert all(len(set(tokens)) > 8 for tokens in wanted)
    together = generate(artifact, PROMPTS, max_new_tokens=NEW, threads=1)
    assert [text.tokens for text in together.texts] == wanted
    assert together.cache.window == (WINDOW if family in LOCAL else None)
    longest = max(len(text.prompt_tokens) for text in together.texts)
    assert buffers[-1] == (rows_kept(WINDOW) if family in LOCAL else longest + NEW - 1)
    for prompt, tokens in zip(PROMPTS, wanted, strict=True):
        (text,) = generate(artifact, [prompt], max_new_tokens=NEW, threads=1).texts
        assert text.tokens == tokens


def test_drafted_tokens_do_not_change_a_text(
    pair: tuple[str, PreTrainedModel, Path, Artifact],
) -> None:
    _, model, folder, artifact = pair
    made = generate(
        artifact, PROMPTS, max_new_tokens=NEW, speculation=Speculation(tokens=3), threads=1
    )
    assert [text.tokens for text in made.texts] == [t[:NEW] for t in expected(model, folder)]


@pytest.mark.parametrize("codes", ["int8", "int4"])
def test_a_cache_of_codes_that_is_cut_gives_what_the_whole_one_gives(
    coded: tuple[str, dict[str, Artifact]], codes: str, monkeypatch: pytest.MonkeyPatch,
    buffers: list[int],
) -> None:  # fmt: skip
    family, artifacts = coded
    cut = generate(artifacts[codes], PROMPTS, max_new_tokens=NEW, threads=1)
    assert cut.cache.format == codes
    assert cut.cache.window == (WINDOW if family in LOCAL else None)
    assert (buffers[-1] == rows_kept(WINDOW)) == (family in LOCAL)
    monkeypatch.setattr(OrtLoop, "sliding", None)
    whole = generate(artifacts[codes], PROMPTS, max_new_tokens=NEW, threads=1)
    assert whole.cache.window is None and buffers[-1] > rows_kept(WINDOW)
    assert [text.tokens for text in cut.texts] == [text.tokens for text in whole.texts]
    for prompt, text in zip(PROMPTS, cut.texts, strict=True):
        (alone,) = generate(artifacts[codes], [prompt], max_new_tokens=NEW, threads=1).texts
        assert alone.tokens == text.tokens


def test_logits_with_codes_are_near_those_with_floats(
    coded: tuple[str, dict[str, Artifact]],
) -> None:
    """As in `test_coded_cache`: four bits more are 24 dB, of which random weights leave half."""
    _, artifacts = coded
    ids = np.array([families.tokenizer(PROMPTS)(PROMPTS[3] * 3)["input_ids"]])
    assert ids.shape[1] > 2 * WINDOW
    found = {}
    for name, artifact in artifacts.items():
        with artifact.session(threads=1) as session:
            named = {info.name: info for info in session.inputs}
            feed = completed({"input_ids": ids}, named, {"past_sequence"})
            found[name] = session.run({key: np.asarray(x) for key, x in feed.items()})["logits"]
    floats = found.pop("float32")
    sqnr = {
        name: 10 * np.log10(np.square(floats).sum() / np.square(x - floats).sum())
        for name, x in found.items()
    }
    assert sqnr["int8"] > max(25, sqnr["int4"] + 12), sqnr

"""A build with a cache of codes: its text is that of its graph, alone and in a batch."""

from __future__ import annotations

import json

import numpy as np
import pytest

import optkit
from optkit.ground.artifact import Artifact
from optkit.ground.data.sequences import completed
from optkit.ground.decoder import Decoder
from optkit.satellites.generation import Speculation, generate
from tests.generation import families
from tests.generation.families import PROMPTS

pytestmark = pytest.mark.slow

NEW = 24


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str | None, Artifact]:
    root = tmp_path_factory.mktemp("coded")
    families.write("llama", root / "model")
    texts = (json.dumps({"text": text * 3}) for text in PROMPTS for _ in range(4))
    (root / "texts.jsonl").write_text("\n".join(texts))
    built = {}
    for codes in (None, "int8", "int4"):
        recipe = {
            "name": "coded", "model": {"path": "model"}, "quantization": {"kv_cache": codes},
            "calibration": {"source": "text", "args": {"path": "texts.jsonl"}},
        }  # fmt: skip
        (root / "optkit.yaml").write_text(json.dumps(recipe))
        built[codes] = optkit.build(
            recipe=root / "optkit.yaml", target="cpu", precision="int4", out=root / str(codes),
            workspace=optkit.Workspace(root / "cache"),
        )  # fmt: skip
    return built


def test_the_logits_are_near_those_with_floats(artifacts: dict[str | None, Artifact]) -> None:
    """Four bits more are 24 dB; random weights make of the noise of four bits so much that half of
    these remain."""
    found = {}
    for name, artifact in artifacts.items():
        with artifact.session() as session:
            named = {info.name: info for info in session.inputs}
            ids = np.array([families.tokenizer(PROMPTS)(PROMPTS[3] * 2)["input_ids"]])
            feed = completed({"input_ids": ids}, named, {"past_sequence"})
            found[name] = session.run({key: np.asarray(x) for key, x in feed.items()})["logits"]
    sqnr = {
        name: 10 * np.log10(np.square(found[None]).sum() / np.square(x - found[None]).sum())
        for name, x in found.items() if name is not None
    }  # fmt: skip
    assert sqnr["int8"] > max(25, sqnr["int4"] + 12), sqnr


@pytest.mark.parametrize("codes", ["int8", "int4"])
def test_a_batch_writes_what_each_prompt_alone_writes(
    artifacts: dict[str | None, Artifact], codes: str
) -> None:
    artifact = artifacts[codes]
    together = generate(artifact, PROMPTS, max_new_tokens=NEW)
    for prompt, text in zip(PROMPTS, together.texts, strict=True):
        (alone,) = generate(artifact, [prompt], max_new_tokens=NEW).texts
        assert alone.tokens == text.tokens and len(text.tokens) == NEW
    floats = generate(artifacts[None], PROMPTS[:1], max_new_tokens=1).cache
    assert (together.cache.format, floats.format) == (codes, "float32")
    assert floats.token_bytes == {"int8": 4, "int4": 8}[codes] * together.cache.token_bytes


@pytest.mark.parametrize("codes", [None, "int8", "int4"])
def test_drafted_tokens_do_not_change_a_text(
    artifacts: dict[str | None, Artifact], codes: str | None
) -> None:
    plain = generate(artifacts[codes], PROMPTS, max_new_tokens=NEW)
    for draft in (None, artifacts[None]):
        speculation = Speculation(draft, tokens=4)
        made = generate(artifacts[codes], PROMPTS, max_new_tokens=NEW, speculation=speculation)
        assert [text.tokens for text in made.texts] == [text.tokens for text in plain.texts]
        assert made.speculation is not None and made.speculation.drafted > 0
    assert made.speculation.accepted > 0


@pytest.mark.parametrize("codes", ["int8", "int4"])
def test_the_artifact_tells_its_cache(artifacts: dict[str | None, Artifact], codes: str) -> None:
    manifest = artifacts[codes].manifest
    decoder = Decoder.of(manifest.inputs, manifest.outputs)
    assert decoder is not None and (decoder.codes, decoder.head_size) == (codes, 16)
    assert "genai_config.json" in artifacts[None].manifest.files
    assert "genai_config.json" not in manifest.files

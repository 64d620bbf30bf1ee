"""Greedy text of encoder-decoders is that of transformers, token for token, alone and in a batch of
unequal texts or recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoFeatureExtractor, AutoTokenizer, PreTrainedModel

import optkit
from optkit.ground.artifact import Artifact
from optkit.satellites.generation import generate
from tests.generation import speakers
from tests.generation.families import PROMPTS

pytestmark = pytest.mark.slow

NEW = 40


@pytest.fixture(scope="module", params=list(speakers.MODELS))
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[PreTrainedModel, Path, Artifact]:
    root = tmp_path_factory.mktemp(request.param)
    model, folder = speakers.write(request.param, root / request.param), root / request.param
    recipe = {"name": "pair", "bench": {"seconds": 0.1, "warmup_seconds": 0, "batches": [1]}}
    built = optkit.build(
        str(folder),
        target="cpu",
        precision="fp32",
        recipe=recipe,
        out=root,
        workspace=optkit.Workspace(root / "cache"),
    )
    return model, folder, built


def waves() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(0, 0.05 * (at + 1), 5000 + 2500 * at).astype(np.float32) for at in range(5)]


def given(model: PreTrainedModel, folder: Path) -> list[dict[str, Any]]:
    """The inputs of each prompt alone, as transformers prepares them."""
    if model.config.model_type == "whisper":
        extract = AutoFeatureExtractor.from_pretrained(folder)
        return [dict(extract([one], sampling_rate=16000, return_tensors="pt")) for one in waves()]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    keys = ("input_ids", "attention_mask")
    found = [tokenizer(prompt, return_tensors="pt") for prompt in PROMPTS]
    return [{key: one[key] for key in keys} for one in found]


@torch.no_grad()
def expected(model: PreTrainedModel, folder: Path) -> list[list[int]]:
    found = []
    for one in given(model, folder):
        whole = model.generate(**one, max_new_tokens=NEW, do_sample=False, num_beams=1)[0].tolist()
        new = (
            whole if model.config.model_type == "whisper" else whole[1:]
        )  # it leaves the start out
        found.append(new[: new.index(speakers.END)] if speakers.END in new else new)
    return found


def test_greedy_tokens_are_those_of_transformers(
    built: tuple[PreTrainedModel, Path, Artifact],
) -> None:
    model, folder, artifact = built
    wanted = expected(model, folder)
    assert len({tuple(tokens) for tokens in wanted}) > 3 and max(len(set(t)) for t in wanted) > 8
    name = "audio" if model.config.model_type == "whisper" else "prompts"
    asked: list[Any] = waves() if name == "audio" else list(PROMPTS)
    together = generate(artifact, **{name: asked}, max_new_tokens=NEW)  # type: ignore[arg-type]
    assert [text.tokens for text in together.texts] == wanted
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text, one, tokens in zip(together.texts, asked, wanted, strict=True):
        (alone,) = generate(artifact, **{name: [one]}, max_new_tokens=NEW).texts  # type: ignore[arg-type]
        assert alone.tokens == tokens
        assert text.text == tokenizer.decode(tokens, skip_special_tokens=True)
    assert together.encode is not None and together.encode.seconds > 0
    chosen = [min(len(tokens) + 1, NEW) for tokens in wanted]  # one that ends a text is one too
    assert together.decode.tokens == sum(chosen) - len(wanted)

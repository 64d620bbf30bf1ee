"""Greedy text is that of transformers, token for token, alone and in a batch of unequal prompts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedModel

from optkit.ground.artifact import Artifact
from optkit.satellites.generation import Speculation, generate
from tests.generation import families
from tests.generation.families import PROMPTS

pytestmark = pytest.mark.slow

NEW = 64


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[PreTrainedModel, Path, Artifact]:
    root = tmp_path_factory.mktemp(request.param)
    model = families.write(request.param, root / request.param)
    return model, root / request.param, families.build(root / request.param, root)


@torch.no_grad()
def expected(model: PreTrainedModel, folder: Path) -> list[list[int]]:
    """Each prompt alone."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = []
    for prompt in PROMPTS:
        given = tokenizer(prompt, return_tensors="pt")
        (whole,) = model.generate(
            input_ids=given["input_ids"], attention_mask=given["attention_mask"],
            max_new_tokens=NEW, do_sample=False, pad_token_id=0,
        )  # fmt: skip
        found.append(whole[given["input_ids"].shape[1] :].tolist())
    return found


def test_each_prompt_alone(pair: tuple[PreTrainedModel, Path, Artifact]) -> None:
    model, folder, artifact = pair
    wanted = expected(model, folder)
    assert all(len(tokens) == NEW and len(set(tokens)) > 8 for tokens in wanted)
    for prompt, tokens in zip(PROMPTS, wanted, strict=True):
        (text,) = generate(artifact, [prompt], max_new_tokens=NEW).texts
        assert text.tokens == tokens


def test_all_prompts_in_one_batch(pair: tuple[PreTrainedModel, Path, Artifact]) -> None:
    model, folder, artifact = pair
    found = generate(artifact, PROMPTS, max_new_tokens=NEW)
    assert [text.tokens for text in found.texts] == expected(model, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text in found.texts:
        assert text.prompt + text.text == tokenizer.decode([*text.prompt_tokens, *text.tokens])


@pytest.mark.parametrize("drafts", ["lookup", "model"])
def test_each_prompt_with_drafted_tokens(
    pair: tuple[PreTrainedModel, Path, Artifact], drafts: str
) -> None:
    model, folder, artifact = pair
    speculation = Speculation(artifact if drafts == "model" else None, tokens=3)
    found = generate(artifact, PROMPTS, max_new_tokens=NEW, speculation=speculation)
    assert [text.tokens for text in found.texts] == expected(model, folder)
    assert found.speculation is not None and found.speculation.drafted > 0

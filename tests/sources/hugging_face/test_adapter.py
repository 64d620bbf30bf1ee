"""A LoRA adapter is merged, and refused where it is another model's or no LoRA."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from optkit.craft.sources.hugging_face import adapter, inputs, loading
from optkit.facts.errors import InputRefused
from optkit.ground.runtimes import backend
from tests.matrix.families.sizes import VOCAB
from tests.sources.hugging_face.conftest import export


@pytest.fixture
def trained(folders: Callable[[str], Path], tmp_path: Path) -> tuple[torch.nn.Module, Path]:
    """BERT with an adapter that changes what it computes, and the adapter's folder."""
    torch.manual_seed(1)
    model = hf.AutoModelForSequenceClassification.from_pretrained(folders("bert"))
    config = peft.LoraConfig(
        r=4, lora_alpha=16, target_modules=["query", "value"], task_type="SEQ_CLS"
    )
    adapted = peft.get_peft_model(model, config).eval()
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    adapted.save_pretrained(tmp_path / "adapter")
    return adapted, tmp_path / "adapter"


def merged(folder: Path, adapter_folder: Path) -> None:
    loaded = loading.load(folder, None, trusted=False)
    adapter.merge(loaded.model, inputs.describe(loaded.model, folder), adapter_folder)


@pytest.mark.slow
def test_the_graph_computes_what_the_adapter_model_does(
    trained: tuple[torch.nn.Module, Path], folders: Callable[[str], Path], tmp_path: Path
) -> None:
    adapted, folder = trained
    export(folders("bert"), tmp_path / "model.onnx", adapter=folder)
    ids = np.random.default_rng(0).integers(0, VOCAB, (3, 9))
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": ids * 0}
    with torch.no_grad():
        expected = adapted(**{name: torch.from_numpy(a) for name, a in feed.items()}).logits.numpy()
        plain = hf.AutoModelForSequenceClassification.from_pretrained(folders("bert")).eval()
        without = plain(input_ids=torch.from_numpy(ids)).logits.numpy()
    with backend("onnxruntime").session(tmp_path / "model.onnx") as runner:
        found = runner.run(feed)["logits"]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(expected - without).max() > 1e-3


def test_an_adapter_of_another_kind_is_refused(
    trained: tuple[torch.nn.Module, Path], folders: Callable[[str], Path]
) -> None:
    config = trained[1] / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "peft_type": "IA3"}))
    with pytest.raises(InputRefused, match="kind IA3; only LoRA"):
        merged(folders("bert"), trained[1])


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"task_type": None, "alora_invocation_tokens": [3, 4]}, "cannot be merged: .*aLoRA"),
        ({"layer_replication": [[0, 2], [0, 2]]}, "layer_replication is set"),
    ],
)
def test_what_weights_cannot_hold_is_refused(
    config: dict[str, object],
    told: str,
    trained: tuple[torch.nn.Module, Path],
    folders: Callable[[str], Path],
) -> None:
    file = trained[1] / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
    with pytest.raises(InputRefused, match=told):
        merged(folders("bert"), trained[1])


def test_an_adapter_of_another_model_is_refused(
    trained: tuple[torch.nn.Module, Path], folders: Callable[[str], Path]
) -> None:
    with pytest.raises(InputRefused, match="does not fit"):
        merged(folders("vit"), _renamed(trained[1], "bert.encoder.layer.1", "bert.encoder.layer.7"))


def test_weights_that_find_no_place_are_refused(
    trained: tuple[torch.nn.Module, Path], folders: Callable[[str], Path]
) -> None:
    with pytest.raises(InputRefused, match="weights of the adapter do not fit"):
        merged(folders("bert"), _renamed(trained[1], "encoder.layer.1", "encoder.layer.7"))


def test_a_merge_that_computes_something_else_is_refused(
    trained: tuple[torch.nn.Module, Path],
    folders: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def half(self: peft.PeftModel, safe_merge: bool) -> None:
        for name, parameter in self.named_parameters():
            if "lora_B" in name:
                parameter.mul_(0.5)

    monkeypatch.setattr(peft.LoraModel, "merge_and_unload", half)
    with pytest.raises(InputRefused, match="differs by"):
        merged(folders("bert"), trained[1])


def _renamed(folder: Path, old: str, new: str) -> Path:
    file = folder / "adapter_model.safetensors"
    save_file({name.replace(old, new): t for name, t in load_file(file).items()}, file)
    return folder

"""What a folder must hold to become a model, and how what does not fit is refused."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from optkit.craft.sources import toolchain
from optkit.craft.sources.hugging_face import loading
from optkit.facts.errors import InputRefused, ToolchainMissing, UsageError
from tests.matrix.families import FAMILIES, saved
from tests.matrix.families.sizes import VOCAB
from tests.sources.hugging_face import own_code
from tests.sources.hugging_face.conftest import export

Folders = Callable[[str], Path]
BERT = FAMILIES["bert"].made


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return saved(BERT, tmp_path / "bert")


def changed(folder: Path, **config: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
    return folder


def reweighted(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def refused(folder: Path, task: str | None = None) -> InputRefused:
    with pytest.raises(InputRefused) as caught:
        loading.load(folder, task, trusted=False)
    assert caught.value.exit_code == 5
    assert caught.value.hint
    return caught.value


def test_a_folder_of_sentence_transformers_is_the_network_without_the_checkpoints_head(
    tmp_path: Path,
) -> None:
    folder = saved(lambda: BERT().bert, tmp_path / "encoder")
    changed(folder, architectures=["BertForMaskedLM"])
    refused(folder)  # the head has no weights
    (folder / "modules.json").write_text(
        json.dumps([{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}])
    )
    loaded = loading.load(folder, None, trusted=False)
    assert (type(loaded.model), loaded.task) == (hf.BertModel, "feature-extraction")
    assert loading.load(folder, "feature-extraction", trusted=False).task == loaded.task


@pytest.mark.parametrize("text", ["", "{}", '["text"]', '[{"type": "other.models.Pooling"}]'])
def test_another_modules_file_changes_nothing(text: str, tmp_path: Path) -> None:
    folder = saved(BERT, tmp_path / "bert")
    (folder / "modules.json").write_text(text)
    assert loading.load(folder, None, trusted=False).task == "text-classification"


def test_class_and_task_follow_from_the_config(folders: Folders) -> None:
    loaded = loading.load(folders("bert"), None, trusted=False)
    assert isinstance(loaded.model, hf.BertForSequenceClassification)
    assert loaded.task == "text-classification"
    assert not loaded.model.training
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}


def test_a_tower_alone_is_of_no_task(folders: Folders) -> None:
    assert loading.load(folders("clip-vision"), None, trusted=False).task is None


def test_another_task_takes_the_body_and_tells_of_the_head_that_is_left(folders: Folders) -> None:
    loaded = loading.load(folders("bert"), "feature-extraction", trusted=False)
    assert isinstance(loaded.model, hf.BertModel)
    assert len(loaded.warnings) == 1
    assert "classifier.weight" in loaded.warnings[0]


def test_half_precision_weights_are_computed_in_single(tmp_path: Path) -> None:
    model = BERT().half()
    model.save_pretrained(tmp_path)
    loaded = loading.load(tmp_path, None, trusted=False)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}


def test_shards_are_put_together(tmp_path: Path) -> None:
    folder = saved(BERT, tmp_path / "shards", max_shard_size="30KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    expected = load_file(saved(BERT, tmp_path / "whole") / "model.safetensors")
    found = loading.load(folder, None, trusted=False).model.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"num_hidden_layers": 3}, "the model needs bert.encoder.layer.2"),
        ({"num_hidden_layers": 1}, "the model has no bert.encoder.layer.1"),
        ({"intermediate_size": 48}, r"of another shape are .*\[64.*\], not \[48"),
    ],
)
def test_a_config_of_another_model_is_refused(bert: Path, config: Any, told: str) -> None:
    error = refused(changed(bert, **config))
    assert error.message.startswith("the weights do not fit BertForSequenceClassification")
    assert re.search(told, error.message)


def test_a_missing_weight_is_refused(bert: Path) -> None:
    error = refused(reweighted(bert, lambda weights: weights.pop("classifier.bias")))
    assert "needs classifier.bias" in error.message


def test_a_weight_more_inside_a_layer_is_refused(bert: Path) -> None:
    name = "bert.encoder.layer.0.attention.q_norm.weight"
    error = refused(reweighted(bert, lambda weights: weights.update({name: torch.ones(4)})))
    assert f"has no {name}" in error.message


def test_another_head_is_a_warning(bert: Path) -> None:
    folder = reweighted(bert, lambda w: w.update({"cls.predictions.bias": torch.ones(4)}))
    assert "cls.predictions.bias" in loading.load(folder, None, trusted=False).warnings[0]


def test_an_unknown_model_type_is_refused(bert: Path) -> None:
    error = refused(changed(bert, model_type="novelty"))
    assert "novelty" in error.message
    assert "--trust-remote-code" in str(error.hint)


def test_an_unknown_architecture_is_refused(bert: Path) -> None:
    error = refused(changed(bert, architectures=["BertForNovelty"]))
    assert "BertForNovelty, which transformers lacks" in error.message


def test_no_architecture_needs_a_task(bert: Path) -> None:
    assert "--task" in str(refused(changed(bert, architectures=None)).hint)
    named = loading.load(bert, "text-classification", trusted=False)
    assert isinstance(named.model, hf.BertForSequenceClassification)


def test_a_broken_config_is_refused(bert: Path) -> None:
    (bert / "config.json").write_text("{")
    assert "config.json is not understood" in refused(bert).message


def test_code_of_the_folder_does_not_run_untrusted(bert: Path) -> None:
    trap = bert.parent / "ran"
    (bert / "own.py").write_text(f"open({str(trap)!r}, 'w')\n")
    changed(bert, model_type="own", auto_map={"AutoConfig": "own.Own", "AutoModel": "own.Own"})
    refused(bert)
    assert not trap.exists()


def test_a_folders_own_model_is_loaded_where_its_code_is_trusted(tmp_path: Path) -> None:
    weights = own_code.write(tmp_path / "own")
    error = refused(tmp_path / "own")
    assert "contains Python code" in error.message and "--trust-remote-code" in str(error.hint)
    loaded = loading.load(tmp_path / "own", None, trusted=True)
    assert (type(loaded.model).__name__, loaded.task) == (
        "OwnForSequenceClassification", "text-classification",
    )  # fmt: skip
    ids = torch.tensor([[3, 4, 5]])
    means = weights["embeddings.weight"][ids[0]].mean(0).tanh()
    wanted = weights["classifier.weight"] @ means + weights["classifier.bias"]
    found = loaded.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    torch.testing.assert_close(found, wanted)


def test_an_own_class_of_a_known_kind_asks_for_trust(bert: Path) -> None:
    own = {"AutoModelForSequenceClassification": "own.BertForNovelty"}
    error = refused(changed(bert, architectures=["BertForNovelty"], auto_map=own))
    assert "--trust-remote-code" in str(error.hint)


def test_an_unknown_task_names_the_nearest(bert: Path) -> None:
    with pytest.raises(UsageError, match="text-clasification") as caught:
        loading.load(bert, "text-clasification", trusted=False)
    assert "text-classification" in str(caught.value.hint)


def test_a_task_that_the_model_cannot_do_is_refused(folders: Folders) -> None:
    assert "cannot be loaded from it" in refused(folders("vit"), "text-classification").message


def test_an_encoder_decoder_is_no_single_graph(tmp_path: Path) -> None:
    config = hf.T5Config(vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4)
    hf.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(InputRefused, match="t5 is two graphs"):
        export(tmp_path, tmp_path / "model.onnx")


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optimum.exporters.tasks", None)
    with pytest.raises(ToolchainMissing, match="optimum") as caught:
        toolchain.require_hugging_face()
    assert "optkit[hf]" in str(caught.value.hint)
    assert caught.value.exit_code == 4

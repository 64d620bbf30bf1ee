"""Encoders: what the graph says at sizes of its own choosing is what transformers says."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

from optkit.craft.sources.hugging_face import inputs, loading, vision_input
from optkit.facts.errors import ExportFailed, InputRefused, UsageError
from optkit.facts.request import Request
from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo
from optkit.ground.data.synthetic import random_feed
from optkit.ground.recipe.resolution import resolve
from optkit.ground.runtimes import backend
from tests.matrix.families import saved
from tests.matrix.families.sizes import TOKENS, VOCAB
from tests.sources.hugging_face.conftest import ENCODERS, export

QUICK = ("bert",)
EVERY = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ENCODERS]
LIMIT = {"bert": 64, "roberta": 64, "distilbert": 64, "deberta-v2": 64, "clip": 32,
         "llama-classifier": 64}  # fmt: skip

Folders = Callable[[str], Path]


@pytest.mark.parametrize("name", EVERY)
def test_the_graph_is_the_model(name: str, folders: Folders, tmp_path: Path) -> None:
    log = export(folders(name), tmp_path / "model.onnx")
    model = loading.load(folders(name), None, trusted=False).model
    sizes = {"batch": 3, "sequence": 11}
    feed = random_feed(log.specs, sizes, seed=5)
    given = {key: torch.from_numpy(array) for key, array in feed.items()}
    with torch.no_grad():
        expected = model(**given)
    with backend("onnxruntime").session(tmp_path / "model.onnx") as runner:
        found = runner.run(feed)
    for output, values in found.items():
        reference = expected[output].numpy()
        np.testing.assert_allclose(values, reference, atol=1e-4 * np.abs(reference).max())
    assert all(len(values) == 3 for values in found.values())


@pytest.mark.parametrize("name", ENCODERS)
def test_inputs_and_axes_follow_from_the_model(name: str, folders: Folders) -> None:
    model = loading.load(folders(name), None, trusted=False).model
    found = inputs.describe(model, folders(name))
    infos = {spec.info.name: spec.info for spec in found.specs}
    ranges = {spec.info.name: spec.range for spec in found.specs}
    assert all(info.shape[0] == "batch" for info in infos.values())
    if name in LIMIT:
        assert infos["input_ids"].shape == infos["attention_mask"].shape == ("batch", "sequence")
        assert ranges["input_ids"] == (0, VOCAB - 1) or name == "clip"
        assert found.axes["sequence"].max == LIMIT[name]
    else:
        assert infos["pixel_values"].shape[1:] in ((3, 32, 32), (3, 64, 64))
        assert list(found.axes) == ["batch"]
    assert ("token_type_ids" in infos) == (name == "bert")
    assert (len(infos) == 3) == (name in ("bert", "clip"))


def test_both_towers_of_clip_return_their_embeddings(folders: Folders, tmp_path: Path) -> None:
    model = loading.load(folders("clip"), None, trusted=False).model
    inputs.describe(model, folders("clip"))
    with torch.no_grad():
        returned = model(
            torch.ones((2, 5), dtype=torch.int64), torch.ones(2, 3, 32, 32),
            torch.ones((2, 5), dtype=torch.int64),
        )  # fmt: skip
    assert list(returned) == ["text_embeds", "image_embeds"]


@pytest.fixture
def resnet(tmp_path: Path) -> Path:
    config = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
    )
    return saved(lambda: hf.ResNetForImageClassification(config), tmp_path / "resnet")


@pytest.mark.parametrize(
    ("processor", "size"),
    [
        ('{"size": {"height": 48, "width": 40}}', (48, 40)),
        ('{"size": 56}', (56, 56)),
        ('{"size": {"shortest_edge": 64}, "crop_size": {"height": 32, "width": 32}}', (32, 32)),
        ('{"size": {"shortest_edge": 64}, "crop_size": 32, "do_center_crop": false}', (64, 64)),
    ],
)
def test_the_size_of_images_is_the_processors(
    processor: str, size: tuple[int, int], resnet: Path
) -> None:
    (resnet / "preprocessor_config.json").write_text(processor)
    model = loading.load(resnet, None, trusted=False).model
    assert inputs.describe(model, resnet).specs[0].info.shape == ("batch", 3, *size)


def test_an_unknown_size_is_asked_for(resnet: Path) -> None:
    model = loading.load(resnet, None, trusted=False).model
    with pytest.raises(InputRefused, match="size of its images") as caught:
        inputs.describe(model, resnet)
    assert "inputs.pixel_values" in str(caught.value.hint)


def _segformer(folder: Path) -> Path:
    config = hf.SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], hidden_sizes=[8, 16], num_attention_heads=[1, 2],
        sr_ratios=[2, 1], patch_sizes=[7, 3], strides=[4, 2], decoder_hidden_size=16, num_labels=3,
    )  # fmt: skip
    return saved(lambda: hf.SegformerForSemanticSegmentation(config), folder)


def test_the_size_of_images_may_be_that_of_the_familys_processor(tmp_path: Path) -> None:
    folder = _segformer(tmp_path / "segformer")

    def described(*declared: InputSpec) -> inputs.ModelInputs:
        model = loading.load(folder, None, trusted=False).model
        return inputs.describe(model, folder, declared)

    found = described()
    assert found.specs[0].info.shape == ("batch", 3, 512, 512)
    assert "512×512" in found.warnings[0] and "SegformerImageProcessor" in found.warnings[0]
    told = described(InputSpec(TensorInfo("pixel_values", "float32", ("batch", 3, 64, 96))))
    assert told.specs[0].info.shape == ("batch", 3, 64, 96) and not told.warnings
    named = {"image_processor": {"image_processor_type": "RTDetrImageProcessor"}}
    (folder / "processor_config.json").write_text(json.dumps(named))
    assert described().specs[0].info.shape == ("batch", 3, 640, 640)


@pytest.mark.parametrize("family", ["DFine", "RTDetrV2"])
def test_a_family_without_a_processor_has_that_of_its_checkpoints(
    family: str, tmp_path: Path
) -> None:
    config = getattr(hf, f"{family}Config")()
    found, warning = vision_input.spec(config, tmp_path, ())
    assert found.info.shape == ("batch", 3, 640, 640)
    assert warning is not None and "RTDetrImageProcessor" in warning


def test_a_processor_whose_package_is_missing_gives_no_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Missing(type):
        def __getattribute__(cls, name: str) -> object:
            raise ImportError("needs another package")  # as the dummies of transformers do

    class Dummy(metaclass=Missing):
        pass

    monkeypatch.setattr(hf, "RfDetrImageProcessor", Dummy, raising=False)
    with pytest.raises(InputRefused, match="size of its images"):
        vision_input.spec(hf.RfDetrConfig(), tmp_path, ())


def test_the_hint_about_an_unknown_size_works(resnet: Path, tmp_path: Path) -> None:
    folder = resnet
    asked = Request(str(folder))
    with pytest.raises(InputRefused, match="size of its images") as caught:
        export(folder, tmp_path / "refused.onnx", specs=resolve(asked).describe())
    option, setting = shlex.split(str(caught.value.hint))
    assert option == "--set"
    told = resolve(replace(asked, overrides=(setting,))).describe()
    log = export(folder, tmp_path / "model.onnx", specs=told)
    assert [info.shape for info in log.inputs] == [("batch", 3, 224, 224)]


@pytest.mark.slow
def test_the_recipe_may_say_another_size_and_fix_an_axis(resnet: Path, tmp_path: Path) -> None:
    (resnet / "preprocessor_config.json").write_text('{"size": 56}')
    log = export(
        resnet,
        tmp_path / "model.onnx",
        specs=[InputSpec(TensorInfo("pixel_values", "float32", ("batch", 3, 40, 40)))],
        axes={"batch": AxisRange(2, 2, 2)},
    )
    assert [info.shape for info in log.inputs] == [(2, 3, 40, 40)]
    assert [info.shape for info in log.outputs] == [(2, 2)]


def test_an_input_that_the_model_has_not_is_refused(resnet: Path) -> None:
    (resnet / "preprocessor_config.json").write_text('{"size": 56}')
    described = inputs.describe(loading.load(resnet, None, trusted=False).model, resnet)
    with pytest.raises(UsageError, match="pixel_value'") as caught:
        described.overridden(
            [InputSpec(TensorInfo("pixel_value", "float32", ("batch", 3, 40, 40)))], {}
        )
    assert "pixel_values" in str(caught.value.hint)
    with pytest.raises(InputRefused, match="declares int64"):
        described.overridden(
            [InputSpec(TensorInfo("pixel_values", "int64", ("batch", 3, 40, 40)))], {}
        )


def test_a_branch_on_values_is_an_export_failure(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pooler = hf.models.bert.modeling_bert.BertPooler
    forward = pooler.forward

    def branching(self: torch.nn.Module, states: torch.Tensor) -> torch.Tensor:
        return forward(self, states * 2 if states.sum() > 0 else states)

    monkeypatch.setattr(pooler, "forward", branching)
    with pytest.raises(ExportFailed, match="only known at run time") as caught:
        export(folders("bert"), tmp_path / "model.onnx")
    assert "bert.pooler" in caught.value.message
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize(
    ("name", "count"),
    [("bert", 64), ("roberta", 64), ("distilbert", 64), ("clip", 32), ("gpt2", 64),
     ("llama", None), ("vit", None)],
)  # fmt: skip
def test_learned_positions_are_counted(name: str, count: int | None, folders: Folders) -> None:
    model = loading.load(folders(name), None, trusted=False).model
    assert inputs.learned_positions(model) == count
    if count is not None and name != "clip":
        with torch.no_grad():
            model(torch.full((1, count), 5))
            with pytest.raises((IndexError, RuntimeError)):
                model(torch.full((1, count + 1), 5))


def test_the_axes_of_sound_are_samples_or_a_spectrogram(folders: Folders) -> None:
    def described(name: str) -> inputs.ModelInputs:
        return inputs.describe(
            loading.load(folders(name), None, trusted=False).model, folders(name)
        )

    plain, masked, spectrogram = map(described, ("wav2vec2", "hubert", "ast"))
    assert [spec.info.name for spec in plain.specs] == ["input_values"]
    assert [spec.info.name for spec in masked.specs] == ["input_values", "attention_mask"]
    assert plain.specs[0].info.shape == masked.specs[1].info.shape == ("batch", "samples")
    assert plain.axes["samples"] == AxisRange(1600, 80_000, 320_000)
    assert spectrogram.specs[0].info.shape == ("batch", 64, 32)
    assert list(spectrogram.axes) == ["batch"]
    processor = folders("hubert") / "preprocessor_config.json"
    processor.write_text('{"return_attention_mask": false}')
    assert len(described("hubert").specs) == 1
    processor.unlink()


@torch.no_grad()
def test_a_text_is_classified_at_its_last_end_token(folders: Folders) -> None:
    folder, numbers = folders("bart-classifier"), np.random.default_rng(0)
    whole = loading.load(folder, None, trusted=False).model
    ids = torch.from_numpy(numbers.integers(3, VOCAB, (3, 9)))
    mask = torch.ones_like(ids)
    for row, length in enumerate((9, 5, 7)):
        ids[row, length - 3], ids[row, length - 1] = TOKENS["eos_token_id"], TOKENS["eos_token_id"]
        ids[row, length:], mask[row, length:] = TOKENS["pad_token_id"], 0
    expected = whole(ids, mask).logits
    described = loading.load(folder, None, trusted=False).model
    specs = inputs.describe(described, folder).specs
    assert [spec.info.name for spec in specs] == ["input_ids", "attention_mask"]
    returned = described(ids, mask)
    assert list(returned) == ["logits"]
    torch.testing.assert_close(returned["logits"], expected)
    without = ids.masked_fill(ids == TOKENS["eos_token_id"], 5)
    assert described(without, mask)["logits"].isfinite().all()

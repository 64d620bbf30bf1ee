"""Models of series, mel bins, waveforms and other pictures: the graph is what transformers says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

from optkit.craft.sources.hugging_face import encoder_decoder, inputs, loading
from optkit.ground.data.synthetic import random_feed
from optkit.ground.runtimes import backend
from tests.matrix.families import saved
from tests.matrix.families.sizes import IMAGES, SMALL, TOKENS, VOCAB
from tests.sources.hugging_face.conftest import export

_SERIES: dict[str, Any] = {
    "num_input_channels": 3, "context_length": 32, "patch_length": 8, "prediction_length": 16,
    "d_model": 16,
}  # fmt: skip


def _patchtst() -> Any:
    return hf.PatchTSTForPrediction(
        hf.PatchTSTConfig(patch_stride=8, num_attention_heads=2, num_hidden_layers=1, ffn_dim=32,
                          **_SERIES)
    )  # fmt: skip


def _mixer() -> Any:
    return hf.PatchTSMixerForPrediction(hf.PatchTSMixerConfig(num_layers=1, **_SERIES))


def _xlnet() -> Any:
    return hf.XLNetForSequenceClassification(
        hf.XLNetConfig(d_model=32, n_layer=2, n_head=4, d_inner=64, **TOKENS)
    )


def _parakeet() -> Any:
    encoder = {"num_mel_bins": 32, "subsampling_conv_channels": 8, **SMALL}
    return hf.ParakeetForCTC(
        hf.ParakeetCTCConfig(vocab_size=VOCAB, pad_token_id=VOCAB - 1, encoder_config=encoder)
    )


def _eomt() -> Any:
    return hf.EomtForUniversalSegmentation(
        hf.EomtConfig(num_queries=6, num_blocks=1, num_labels=4, num_upscale_blocks=1, **IMAGES,
                      **SMALL)
    )  # fmt: skip


def _dfine() -> Any:
    backbone = hf.HGNetV2Config(
        hidden_sizes=[16, 32, 32, 32], stem_channels=[3, 8, 16], stage_in_channels=[16, 16, 32, 32],
        stage_mid_channels=[8, 8, 16, 16], stage_out_channels=[16, 32, 32, 32],
        stage_num_blocks=[1, 1, 1, 1], stage_numb_of_layers=[1, 1, 1, 1],
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    return hf.DFineForObjectDetection(
        hf.DFineConfig(
            backbone_config=backbone, encoder_hidden_dim=32, encoder_in_channels=[32, 32, 32],
            encoder_layers=1, encoder_ffn_dim=64, encoder_attention_heads=4, d_model=32,
            num_queries=6, decoder_in_channels=[32, 32, 32], decoder_ffn_dim=64, decoder_layers=2,
            decoder_attention_heads=4, num_denoising=0, num_labels=5)
    )  # fmt: skip


def _moonshine() -> Any:
    return hf.MoonshineForConditionalGeneration(
        hf.MoonshineConfig(
            encoder_num_hidden_layers=1, decoder_num_hidden_layers=1, hidden_size=32,
            encoder_num_attention_heads=4, decoder_num_attention_heads=4, intermediate_size=64,
            max_position_embeddings=64, decoder_start_token_id=1, **TOKENS)
    )  # fmt: skip


def _compared(
    made: Callable[[], Any],
    sizes: list[dict[str, int]],
    folder: Path,
    part: str | None = None,
    processor: dict[str, Any] | None = None,
) -> None:
    saved(made, folder)
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    log = export(folder, folder / "model.onnx", part=part)
    model = loading.load(folder, None, trusted=False).model
    if part is None:
        inputs.describe(model, folder)
    else:
        encoder_decoder.describe(model, part)
    with backend("onnxruntime").session(folder / "model.onnx") as session:
        for each in sizes:
            feed = random_feed(log.specs, each, seed=3)
            with torch.no_grad():
                expected = model(*(torch.from_numpy(array) for array in feed.values()))
            found = session.run(feed)
            assert found.keys() == expected.keys()
            for name, values in found.items():
                reference = expected[name].numpy()
                np.testing.assert_allclose(
                    values, reference, atol=1e-4 * np.abs(reference).max(), err_msg=f"{name} {each}"
                )


def test_a_series_has_the_length_of_its_configuration(tmp_path: Path) -> None:
    _compared(_patchtst, [{"batch": 1}, {"batch": 5}], tmp_path / "model")


@pytest.mark.slow
@pytest.mark.parametrize("made", [_mixer, _eomt])
def test_a_batch_of_any_size(made: Callable[[], Any], tmp_path: Path) -> None:
    _compared(made, [{"batch": 1}, {"batch": 5}], tmp_path / "model")


@pytest.mark.slow
def test_pictures_of_the_size_of_the_processor(tmp_path: Path) -> None:
    """The configuration of D-FINE has no size; its folders have the processor of RT-DETR."""
    side = {"height": 64, "width": 96}
    processor = {"image_processor_type": "RTDetrImageProcessor", "size": side}
    sizes = [{"batch": 1}, {"batch": 5}]
    _compared(_dfine, sizes, tmp_path / "model", processor=processor)


@pytest.mark.slow
def test_texts_of_any_length_whatever_the_memory_of_the_model(tmp_path: Path) -> None:
    sizes = [{"batch": 2, "sequence": length} for length in (1, 7, 600)]
    _compared(_xlnet, sizes, tmp_path / "model")


@pytest.mark.slow
def test_mel_bins_of_any_length(tmp_path: Path) -> None:
    sizes = [{"batch": 2, "frames": frames} for frames in (20, 77, 300)]
    _compared(_parakeet, sizes, tmp_path / "model")


@pytest.mark.slow
@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_waveforms_of_an_encoder_decoder(part: str, tmp_path: Path) -> None:
    sizes = [
        {"batch": 2, "samples": samples, "encoder_sequence": 9, "sequence": 1, "past_sequence": 3}
        for samples in (1600, 5000)
    ]
    _compared(_moonshine, sizes, tmp_path / "model", part)

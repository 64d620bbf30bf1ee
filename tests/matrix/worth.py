"""What each precision gains on an L4 for models of published sizes, by optkit's own predictor, into
worth.json; `python tests/matrix/table.py --page` puts it into docs/reference/models.md.

    python tests/matrix/worth.py                  all groups
    python tests/matrix/worth.py --groups Audio   the others stay

The weights are random: only the sizes count. Nothing is compiled or run. A group takes a minute or
two: its models are exported and fused, as `optkit plan` does.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf

import optkit
from optkit.craft.prediction.fitted import fitted
from optkit.ground.decoder import DecoderSizes

JSON = Path(__file__).with_suffix(".json")
TARGET = "l4"
BASELINE, PRECISIONS = "fp16", ("int8", "fp8", "int4")
BATCHES = (1, 32)

_EIGHT_BILLION = DecoderSizes(8.03e9, 32, 8, 128, 32, 4096, 14336, 128256)
_HALF_A_BILLION = DecoderSizes(0.494e9, 24, 2, 64, 14, 896, 4864, 151936, tied=True)

GROUPS: dict[str, dict[str, DecoderSizes | Callable[[], Any]]] = {
    "Text encoders": {
        "BERT-base (110 M), 128 tokens": lambda: hf.BertForSequenceClassification(hf.BertConfig()),
    },
    "Embeddings and rerankers": {
        "MiniLM-L6 (22 M), 128 tokens": lambda: hf.BertModel(
            hf.BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12,
                          intermediate_size=1536)
        ),
    },
    "Decoders": {
        "Llama 3 8B, per token after 1,024": _EIGHT_BILLION,
        "Qwen2 0.5B, per token after 1,024": _HALF_A_BILLION,
    },
    "Encoder-decoders": {
        "Whisper base (74 M), per token": lambda: hf.WhisperForConditionalGeneration(
            hf.WhisperConfig(d_model=512, encoder_layers=6, decoder_layers=6,
                             encoder_attention_heads=8, decoder_attention_heads=8,
                             encoder_ffn_dim=2048, decoder_ffn_dim=2048)
        ),
    },
    "Image classifiers and towers": {
        "ViT-B/16 (86 M)": lambda: hf.ViTForImageClassification(hf.ViTConfig()),
        "ResNet-50 (26 M)": lambda: hf.ResNetForImageClassification(hf.ResNetConfig()),
    },
    "Detectors and segmenters": {
        "SegFormer-B0 (4 M), 512 × 512": lambda: hf.SegformerForSemanticSegmentation(
            hf.SegformerConfig(num_labels=150)
        ),
    },
    "Audio": {
        "Wav2Vec2-base (95 M), 5 s": lambda: hf.Wav2Vec2ForCTC(hf.Wav2Vec2Config()),
    },
    "Time series": {
        "PatchTST/64, 21 channels of 512 steps": lambda: hf.PatchTSTForPrediction(
            hf.PatchTSTConfig(num_input_channels=21, context_length=512, prediction_length=96,
                              patch_length=16, patch_stride=8, d_model=128, ffn_dim=256,
                              num_hidden_layers=3, num_attention_heads=16)
        ),
    },
}  # fmt: skip
# Title or model → the kind of work that its interval follows; of the others: encoders.
KINDS = {"Decoders": "decode", "Encoder-decoders": "decode", "ResNet-50 (26 M)": "convolution"}
_IMAGES = {"ResNet-50 (26 M)": 224, "SegFormer-B0 (4 M), 512 × 512": 512}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write tests/matrix/worth.json.")
    parser.add_argument("--groups", help="titles, separated by commas", default=",".join(GROUPS))
    asked = parser.parse_args().groups.split(",")
    found = json.loads(JSON.read_text()) if JSON.exists() else {}
    for title in asked:
        found[title] = {name: _gains(name, model) for name, model in GROUPS[title].items()}
        JSON.write_text(json.dumps({t: found[t] for t in GROUPS if t in found}, indent=1) + "\n")
        print(title, json.dumps(found[title], indent=1), flush=True)


def _gains(name: str, model: DecoderSizes | Callable[[], Any]) -> dict[str, dict[str, Any]]:
    """Precision → batch → predicted times of FP16 by times of the precision, or a reason."""
    planned = {"target": TARGET, "precision": (BASELINE, *PRECISIONS), "batches": BATCHES,
               "partial": True}  # fmt: skip
    if isinstance(model, DecoderSizes):
        plan = optkit.plan(decoder=model, **planned)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "model"
            torch.manual_seed(0)
            model().save_pretrained(folder)
            if edge := _IMAGES.get(name):
                size = json.dumps({"size": {"height": edge, "width": edge}})
                (folder / "preprocessor_config.json").write_text(size)
            workspace = optkit.Workspace(Path(scratch) / "cache", listener=None)
            plan = optkit.plan(str(folder), workspace=workspace, **planned)
    rows = {row["precision"]: row for row in plan["results"]}
    times = {name: {call["batch"]: call["p50_ms"] for call in row["latency"]}
             for name, row in rows.items()}  # fmt: skip
    return {
        precision: {
            str(batch): round(times[BASELINE][batch] / times[precision][batch], 2)
            for batch in BATCHES
        }
        if times[precision]
        else {"reason": rows[precision]["reason"]}
        for precision in PRECISIONS
    }


def verdict(gain: float, kind: str) -> str:
    """In a word, from a predicted gain and its interval for that kind of work."""
    if fitted().ratio_band(kind, gain).low > 1:
        return "yes"
    return "no" if gain < 1.1 else "measure"


if __name__ == "__main__":
    main()

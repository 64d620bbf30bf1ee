"""A model folder that brings its own Python: a configuration and a model behind `auto_map`."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

VOCABULARY, WIDTH, CLASSES = 32, 8, 3

CONFIGURATION = f"""
from transformers import PretrainedConfig


class OwnConfig(PretrainedConfig):
    model_type = "own"

    def __init__(self, vocab_size={VOCABULARY}, hidden_size={WIDTH}, num_labels={CLASSES}, **more):
        super().__init__(num_labels=num_labels, **more)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
"""

MODEL = """
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from .configuration_own import OwnConfig


class OwnForSequenceClassification(PreTrainedModel):
    config_class = OwnConfig
    main_input_name = "input_ids"

    def __init__(self, config):
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, input_ids, attention_mask=None, return_dict=None):
        mask = attention_mask.unsqueeze(-1).to(self.dtype)
        mean = (self.embeddings(input_ids) * mask).sum(1) / mask.sum(1).clamp(min=1)
        return SequenceClassifierOutput(logits=self.classifier(torch.tanh(mean)))
"""


def write(folder: Path) -> dict[str, torch.Tensor]:
    """The folder of that model; its weights."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    weights = {
        "embeddings.weight": torch.randn(VOCABULARY, WIDTH, generator=generator),
        "classifier.weight": torch.randn(CLASSES, WIDTH, generator=generator),
        "classifier.bias": torch.randn(CLASSES, generator=generator),
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "configuration_own.py").write_text(CONFIGURATION)
    (folder / "modeling_own.py").write_text(MODEL)
    config = {
        "model_type": "own",
        "architectures": ["OwnForSequenceClassification"],
        "auto_map": {
            "AutoConfig": "configuration_own.OwnConfig",
            "AutoModelForSequenceClassification": "modeling_own.OwnForSequenceClassification",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    return weights

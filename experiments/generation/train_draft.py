"""A draft model for the decoder of a project: two layers of 128 with its tokenizer.

    python experiments/generation/train_draft.py PROJECT [--steps 400]

PROJECT holds a Hugging Face folder model/, as examples/02_tiny_llama; draft/ comes to be beside it,
trained on the same texts, in FP32.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from unittest import mock

import torch
from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "02_tiny_llama"))
import corpus
import train

SIZES = {"hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("project", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(options.project / "model")
    config = AutoConfig.from_pretrained(options.project / "model")
    config.update(SIZES)
    model = LlamaForCausalLM(config)
    # without BF16, which is slow on CPUs that do not have it
    with mock.patch.object(torch, "autocast", lambda *_, **__: contextlib.nullcontext()):
        train.train(model, train.stream(tokenizer, corpus.training()), options.steps)
    model.save_pretrained(options.project / "draft")
    tokenizer.save_pretrained(options.project / "draft")
    unseen = train.stream(tokenizer, list(corpus.held_out())[::6])
    print(f"held-out perplexity: {train.perplexity(model, unseen):.2f}")


if __name__ == "__main__":
    main()

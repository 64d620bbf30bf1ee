"""Train a small mixture of experts on Python's standard library, as a Hugging Face folder.

    python experiments/experts/train.py OUT            about a minute on two free cores

Qwen3-MoE: two layers of 128, each with 8 experts of 128, of which a token takes two. Tokenizer,
text and training are those of examples/02_tiny_llama; the loss that balances the experts is that of
the architecture (router_aux_loss_coef). OUT gets model/, data/training.jsonl and
data/held-out.jsonl.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "02_tiny_llama"))

import corpus
import train as llama

STEPS, WINDOW = 400, 64


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the small mixture of experts.")
    parser.add_argument("out", type=Path, help="the folder to write into")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    torch.manual_seed(0)
    llama.WINDOW = WINDOW
    texts, unseen = list(corpus.training()), list(corpus.held_out())[::6]
    tokenizer = llama.train_tokenizer(texts, size=1024)
    end = tokenizer.eos_token_id
    model = Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=len(tokenizer), hidden_size=128, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, head_dim=64,
            num_experts=8, num_experts_per_tok=2, moe_intermediate_size=128,
            norm_topk_prob=True, output_router_logits=True, max_position_embeddings=1024,
            tie_word_embeddings=False, bos_token_id=end, eos_token_id=end, pad_token_id=end,
        )
    )  # fmt: skip
    model.set_experts_implementation("grouped_mm")  # twice as fast here as the loop over experts
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters", flush=True)
    llama.train(model, llama.stream(tokenizer, texts), options.steps)
    model.config.output_router_logits = False
    model.save_pretrained(options.out / "model")
    tokenizer.save_pretrained(options.out / "model")
    llama.write_texts(options.out / "data" / "training.jsonl", texts[::20])
    llama.write_texts(options.out / "data" / "held-out.jsonl", unseen)
    seen = llama.stream(tokenizer, unseen)[: 1 << 15]
    print(f"held-out perplexity: {llama.perplexity(model, seen):.2f}")


if __name__ == "__main__":
    main()

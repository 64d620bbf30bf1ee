"""Train a tokenizer and a small Llama on Python's standard library, as a Hugging Face folder.

    python train.py                        about fifteen minutes on two cores
    python train.py --quick [--out DIR]    a few seconds, a tiny model; writes into DIR or nowhere

12.6 M parameters: six layers of 384, six heads on two of keys and values, RMSNorm, RoPE, SwiGLU.
The byte-level BPE has 4096 tokens. Every tenth module is held out (corpus.py); what is printed at
the end is its perplexity per token. Beside this file, or in DIR, come to be

    model/                 config.json, model.safetensors, tokenizer.json, …
    data/training.jsonl    some files that it was trained on, for calibration
    data/held-out.jsonl    some that it was not, for evaluation
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterable
from pathlib import Path

import corpus
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

END = "<|endoftext|>"  # between files; also what a text begins with
WINDOW, BATCH = 256, 8


def train_tokenizer(texts: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """Byte-pair encoding of bytes (Sennrich et al., arXiv:1508.07909, as GPT-2 does it)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END, eos_token=END, pad_token=END
    )


def stream(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> Tensor:
    """The ids of all texts, each behind END: int64 [tokens]."""
    ids = [[tokenizer.bos_token_id, *row] for row in tokenizer(list(texts))["input_ids"]]
    return torch.tensor([one for row in ids for one in row])


def configure(tokenizer: PreTrainedTokenizerFast, *, quick: bool) -> LlamaConfig:
    end = tokenizer.eos_token_id
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64 if quick else 384,
        intermediate_size=128 if quick else 1024,
        num_hidden_layers=2 if quick else 6,
        num_attention_heads=2 if quick else 6,
        num_key_value_heads=1 if quick else 2,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
    )


def train(model: LlamaForCausalLM, tokens: Tensor, steps: int) -> None:
    """AdamW with warm-up and a cosine, on random windows; products in BF16."""
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim != 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=2e-3,
        betas=(0.9, 0.95),
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=2e-3, total_steps=steps, pct_start=0.1, cycle_momentum=False
    )
    model.train()
    start = time.monotonic()
    for step in range(steps):
        places = torch.randint(len(tokens) - WINDOW, (BATCH, 1)) + torch.arange(WINDOW)
        batch = tokens[places]
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step} of {steps}: loss {loss.item():.3f}, "
                  f"{time.monotonic() - start:.0f} s", flush=True)  # fmt: skip


@torch.no_grad()
def perplexity(model: LlamaForCausalLM, tokens: Tensor) -> float:
    """exp of the mean loss over windows side by side."""
    model.eval()
    windows = tokens[: len(tokens) // WINDOW * WINDOW].view(-1, WINDOW)
    losses = [model(input_ids=rows, labels=rows).loss * len(rows) for rows in windows.split(BATCH)]
    return math.exp(sum(float(loss) for loss in losses) / len(windows))


def write_texts(path: Path, texts: Iterable[str]) -> None:
    """One JSON object per line, as optkit's reader of texts takes them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the tiny Llama.")
    parser.add_argument("--quick", action="store_true", help="a few steps of a tiny model")
    parser.add_argument("--out", type=Path, help="the folder to write into; default: beside this")
    options = parser.parse_args()
    quick, out = options.quick, options.out
    if not quick and out is None:
        out = Path(__file__).parent

    torch.manual_seed(0)
    texts, unseen = list(corpus.training()), list(corpus.held_out())[::6]
    if quick:
        texts, unseen = texts[:20], unseen[:2]
    tokenizer = train_tokenizer(texts, size=512 if quick else 4096)
    model = LlamaForCausalLM(configure(tokenizer, quick=quick))
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters", flush=True)
    train(model, stream(tokenizer, texts), steps=20 if quick else 800)
    if out is not None:
        model.save_pretrained(out / "model")
        tokenizer.save_pretrained(out / "model")
        write_texts(out / "data" / "training.jsonl", texts[::20])
        write_texts(out / "data" / "held-out.jsonl", unseen)
        print(f"written: {out}")
    print(f"held-out perplexity: {perplexity(model, stream(tokenizer, unseen)):.2f}")


if __name__ == "__main__":
    main()

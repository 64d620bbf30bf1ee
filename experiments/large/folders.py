"""A Hugging Face folder with random weights in a real shape, with a tokenizer and texts beside it.

    python experiments/large/folders.py decoder SCRATCH/decoder    Llama 3.2 1B, 1.24 B parameters
    python experiments/large/folders.py encoder SCRATCH/encoder    BERT with 26 layers, 0.79 B
    python experiments/large/folders.py decoder SCRATCH/small --small

Weights are normal, in FP16 (2.5 GB and 1.6 GB). The tokenizer has one token per byte. The texts are
modules of Python's standard library.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

_END = "<|endoftext|>"
_TEXTS, _CHARACTERS = 64, 4000
_SMALL = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
          "num_attention_heads": 4}  # fmt: skip


def decoder(*, small: bool) -> transformers.PreTrainedModel:
    """The shapes of Llama 3.2 1B, whose head is its embedding."""
    sizes: dict[str, Any] = {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256,
    }  # fmt: skip
    sizes |= {**_SMALL, "num_key_value_heads": 2, "vocab_size": 512} if small else {}
    config = transformers.LlamaConfig(
        **sizes, max_position_embeddings=2048, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def encoder(*, small: bool) -> transformers.PreTrainedModel:
    """BERT, wider and deeper than BERT-large; it classifies."""
    sizes: dict[str, Any] = {
        "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 26,
        "num_attention_heads": 24, "vocab_size": 30_522,
    }  # fmt: skip
    sizes |= {**_SMALL, "vocab_size": 512} if small else {}
    return transformers.BertForSequenceClassification(transformers.BertConfig(**sizes))


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """One token per byte, and one for the end."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [],
        trainers.BpeTrainer(
            vocab_size=len(alphabet) + 1, special_tokens=[_END], initial_alphabet=alphabet,
            show_progress=False,
        ),
    )  # fmt: skip
    return transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=made, bos_token=_END, eos_token=_END, pad_token=_END
    )


def write(kind: str, folder: Path, *, small: bool = False) -> int:
    """Write the folder; returns the number of parameters."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float16)
    made = {"decoder": decoder, "encoder": encoder}[kind](small=small)
    made.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    with (folder.parent / "texts.jsonl").open("w") as file:
        for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:_TEXTS]:
            text = path.read_text(errors="replace")[:_CHARACTERS]
            file.write(json.dumps({"text": text}) + "\n")
    return sum(weight.numel() for weight in made.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=("decoder", "encoder"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    count = write(given.kind, given.folder, small=given.small)
    print(f"{given.folder}: {count / 1e9:.3f} B parameters")


if __name__ == "__main__":
    main()

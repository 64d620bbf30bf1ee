"""Train a tokenizer and a small BERT that says what a function does, as a Hugging Face folder.

    python train.py                        a few minutes on two cores
    python train.py --quick [--out DIR]    a few seconds, a tiny model; writes into DIR or nowhere

0.7 M parameters: two layers of 128 with two heads, a WordPiece vocabulary of 2048. Which functions
train and which are held out is in functions.py. Beside this file, or in DIR, come to be

    model/                 config.json, model.safetensors (in FP16), tokenizer.json, …
    data/training.jsonl    every tenth function that it was trained on, for calibration
    data/held-out.jsonl    those of the held-out modules with their verbs, for evaluation

What is printed at the end is the held-out accuracy of the weights as they are written.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from functions import VERBS, Function, split
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

LENGTH, BATCH = 64, 32
POOL = 16 * BATCH
HIDDEN = 0.2  # of the tokens in training, so that identifiers are not learnt by heart
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def train_tokenizer(texts: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """WordPiece as BERT has it (Devlin et al., arXiv:1810.04805), of cased text."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(
        texts,
        trainers.WordPieceTrainer(vocab_size=size, special_tokens=SPECIAL, show_progress=False),
    )
    start, end = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", end), ("[CLS]", start))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=LENGTH,
        pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]",
    )  # fmt: skip


def configure(tokenizer: PreTrainedTokenizerFast, *, quick: bool) -> BertConfig:
    return BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64 if quick else 128,
        intermediate_size=128 if quick else 512,
        num_hidden_layers=1 if quick else 2,
        num_attention_heads=2,
        max_position_embeddings=LENGTH,
        pad_token_id=tokenizer.pad_token_id,
        id2label=dict(enumerate(VERBS)),
        label2id={verb: index for index, verb in enumerate(VERBS)},
    )


class Batches:
    """Functions as batches of inputs and classes, each batch padded to its longest."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, functions: Sequence[Function]) -> None:
        self.tokenizer = tokenizer
        self.rows = tokenizer([function.text for function in functions], truncation=True)
        verbs = list(VERBS)
        self.classes = torch.tensor([verbs.index(function.verb) for function in functions])
        self.unknown = tokenizer.unk_token_id
        self.special = tokenizer.mask_token_id  # the last of them
        self.lengths = torch.tensor([len(ids) for ids in self.rows["input_ids"]])

    def __len__(self) -> int:
        return math.ceil(len(self.classes) / BATCH)

    def in_order(self, order: Tensor) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """Inputs by name, int64 [batch, sequence], and classes, int64 [batch]; of every POOL
        functions the short ones come first, so that little is padding."""
        for pool in order.split(POOL):
            for chosen in pool[self.lengths[pool].argsort()].split(BATCH):
                rows = {name: [values[i] for i in chosen] for name, values in self.rows.items()}
                yield dict(self.tokenizer.pad(rows, return_tensors="pt")), self.classes[chosen]


def train(model: BertForSequenceClassification, data: Batches, epochs: int) -> None:
    """AdamW with a one-cycle schedule; products in BF16."""
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1e-3, total_steps=epochs * len(data), pct_start=0.1
    )
    model.train()
    for epoch in range(epochs):
        for inputs, classes in data.in_order(torch.randperm(len(data.classes))):
            ids = inputs["input_ids"]
            ids[(torch.rand(ids.shape) < HIDDEN) & (ids > data.special)] = data.unknown
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(**inputs).logits.float(), classes, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch + 1} of {epochs}: loss {loss.item():.3f}", flush=True)


@torch.no_grad()
def accuracy(model: BertForSequenceClassification, data: Batches) -> float:
    model.eval()
    right = 0
    for inputs, classes in data.in_order(torch.arange(len(data.classes))):
        right += int((model(**inputs).logits.argmax(dim=1) == classes).sum())
    return right / len(data.classes)


def write_functions(path: Path, functions: Iterable[Function]) -> None:
    """One JSON object per line, as optkit's reader of texts takes them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = ({"text": function.text, "label": function.verb} for function in functions)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the small BERT.")
    parser.add_argument("--quick", action="store_true", help="an epoch of a tiny model")
    parser.add_argument("--out", type=Path, help="the folder to write into; default: beside this")
    options = parser.parse_args()
    quick, out = options.quick, options.out
    if not quick and out is None:
        out = Path(__file__).parent

    torch.manual_seed(0)
    training, held_out = split()
    if quick:
        training, held_out = training[::4], held_out[::4]
    print(f"{len(training)} functions to train on, {len(held_out)} held out", flush=True)
    tokenizer = train_tokenizer((f.text for f in training), size=1024 if quick else 2048)
    model = BertForSequenceClassification(configure(tokenizer, quick=quick))
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)
    train(model, Batches(tokenizer, training), epochs=2 if quick else 8)

    model.half()
    if out is not None:
        model.save_pretrained(out / "model")
        tokenizer.save_pretrained(out / "model")
        write_functions(out / "data" / "training.jsonl", training[::10])
        write_functions(out / "data" / "held-out.jsonl", held_out)
        print(f"written: {out}")
    found = accuracy(model.float(), Batches(tokenizer, held_out))
    most = Counter(f.verb for f in held_out).most_common(1)[0][1] / len(held_out)
    print(f"held-out accuracy: {found:.4f} (always the most frequent verb: {most:.4f})")


if __name__ == "__main__":
    main()

"""Is the greedy text of `optkit generate` that of transformers in FP32, token for token?

    python experiments/generation/greedy.py examples/02_tiny_llama --root SCRATCH

PROJECT holds a Hugging Face folder model/, a recipe, and texts that the model was not trained on in
data/held-out.jsonl. Pieces of 24 tokens are cut from these and continued by 64: by transformers
itself, and by our artifacts for the CPU in FP32 and INT4.

No quantization promises the same text: where FP32's two highest logits are almost equal, any other
rounding may choose the other one, and everything behind it is another text. So texts are counted by
their *margin*, the least distance between these two over all 64 tokens, in FP32. The first five
prompts with a margin of MARGIN or more, which FP32 alone decides, go through the command itself:
all their texts must be equal (else exit 1). The result goes to greedy.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import optkit
from optkit.generation import generate

PROMPT, NEW = 24, 64  # tokens
EVERY, MOST = 400, 128  # a prompt so many tokens of a text, and how many in all
MARGIN, CHOSEN = 0.1, 5
BORDERS = (0.0, 0.01, 0.03, MARGIN)
COMMAND = [sys.executable, "-c", "from optkit.cli import main; main()", "generate"]


class Reference(NamedTuple):
    """What transformers writes, and how sure it is: ids [prompts, NEW], margins [prompts]."""

    prompts: list[str]
    ids: np.ndarray
    margins: np.ndarray


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("project", type=Path)
    parser.add_argument("--root", type=Path, required=True, help="artifacts and cache")
    options = parser.parse_args()
    reference = transformers(options.project)
    sure = np.flatnonzero(reference.margins >= MARGIN)[:CHOSEN]
    found: dict[str, Any] = {}
    for precision in ("fp32", "int4"):
        artifact = optkit.build(
            options.project, target="cpu", precision=precision,
            out=options.root / "artifacts", workspace=optkit.Workspace(options.root / "cache"),
        ).path  # fmt: skip
        same = np.array([lead == NEW for lead in leads(artifact, reference)])
        found[precision] = {"equal": int(same.sum()), "of": len(same),
                            "by_margin": list(by_margin(same, reference.margins)),
                            "sure": [written(artifact, reference, at) for at in sure]}  # fmt: skip
        print(precision, json.dumps(found[precision]), flush=True)
    told = {
        "date": date.today().isoformat(),
        "evidence": "measured",
        "versions": {name: version(name) for name in ("onnxruntime", "torch", "transformers")},
        "prompt_tokens": PROMPT, "new_tokens": NEW, "margin": MARGIN,
        "margins": [round(float(reference.margins[at]), 3) for at in sure],
        "prompts": [reference.prompts[at] for at in sure],
        "found": found,
    }  # fmt: skip
    Path(__file__).with_name("greedy.json").write_text(f"{json.dumps(told, indent=1)}\n")
    if len(sure) < CHOSEN or not all(all(one["sure"]) for one in found.values()):
        sys.exit("not the same text")


@torch.no_grad()
def transformers(project: Path) -> Reference:
    """Greedy texts of the model as it is, and their margins."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    tokenizer = AutoTokenizer.from_pretrained(project / "model")
    model = AutoModelForCausalLM.from_pretrained(project / "model").eval()
    texts = (project / "data" / "held-out.jsonl").read_text().splitlines()
    pieces = list(cut(tokenizer, [json.loads(line)["text"] for line in texts]))[:MOST]
    ids = torch.tensor([tokenizer(piece)["input_ids"] for piece in pieces])
    made = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW,
        min_new_tokens=NEW,
    )  # fmt: skip
    logits = model(made).logits[:, PROMPT - 1 : -1]
    highest = logits.topk(2).values
    whole = (made[:, PROMPT:] == logits.argmax(-1)).all(1)  # none that would have ended before
    margins = (highest[..., 0] - highest[..., 1]).amin(1)
    chosen = [piece for piece, one in zip(pieces, whole.tolist(), strict=True) if one]
    return Reference(chosen, made[whole, PROMPT:].numpy(), margins[whole].numpy())


def cut(tokenizer: Any, texts: Sequence[str]) -> Iterator[str]:
    """Pieces of PROMPT tokens that are read again as they were."""
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        for start in range(0, len(ids) - PROMPT, EVERY):
            piece = tokenizer.decode(ids[start : start + PROMPT])
            if tokenizer(piece)["input_ids"] == ids[start : start + PROMPT]:
                yield piece


def leads(artifact: Path, reference: Reference) -> Iterator[int]:
    """How many tokens of each text are the same before they part."""
    with optkit.load(artifact) as loaded:
        made = generate(loaded, reference.prompts, max_new_tokens=NEW)
    for text, wanted in zip(made.texts, reference.ids, strict=True):
        ours = np.resize(np.array(text.tokens), NEW)
        differ = np.flatnonzero(ours != wanted)
        yield min(int(differ[0]) if differ.size else NEW, len(text.tokens))


def by_margin(same: np.ndarray, margins: np.ndarray) -> Iterator[dict[str, Any]]:
    for low, high in zip(BORDERS, (*BORDERS[1:], np.inf), strict=True):
        inside = (margins >= low) & (margins < high)
        yield {"from": low, "texts": int(inside.sum()), "equal": int(same[inside].sum())}


def written(artifact: Path, reference: Reference, at: int) -> bool:
    """Whether the command, given this prompt alone, writes the same tokens."""
    asked = ["--prompt", reference.prompts[at], "--max-new-tokens", str(NEW), "--json"]
    done = subprocess.run(
        [*COMMAND, str(artifact), *asked], check=True, capture_output=True, text=True
    )
    (text,) = json.loads(done.stdout)["texts"]
    return bool(text["tokens"] == reference.ids[at].tolist())


if __name__ == "__main__":
    main()

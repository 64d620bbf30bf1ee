"""Runs a graph on the test part of its workload: the task's metric, and closeness to FP32.

    python score.py --root DIR --workload w1 --model FILE --session JSON

    SQNR = 20 log10(‖reference‖ / ‖output − reference‖)    over all outputs, padding left out

Prints one line of JSON. FP32 outputs, as exported, are kept in `reference/`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import feeds
import numpy as np
from recipes.topics import prototypes
from sessions import session

BATCH = {"w1": 37, "w2": 37, "w3": 32, "w4": 20, "w5": 8, "w6": 8}


def outputs(root: Path, workload: str, model: Path, asked: dict[str, Any]) -> np.ndarray:
    """The first output over all test samples, float32 [N, ...]."""
    loaded = session(model, asked)
    rows = feeds.feeds(root, workload, "test", feeds.TEST[workload], BATCH[workload])
    return np.concatenate([loaded.run(None, feed)[0].astype(np.float32) for feed in rows])


def reference(root: Path, workload: str) -> np.ndarray:
    """What the exported FP32 graph gives."""
    source = feeds.model(root, workload)
    kept = root / "reference" / f"{workload}.npy"
    if not kept.exists() or kept.stat().st_mtime < source.stat().st_mtime:
        kept.parent.mkdir(exist_ok=True)
        np.save(kept, outputs(root, workload, source, {}))
    return np.load(kept)


def sqnr(reference: np.ndarray, found: np.ndarray) -> float:
    """Signal to quantization noise in dB; inf where nothing differs, NaN where `found` has any."""
    noise = float(np.linalg.norm((found - reference).astype(np.float64)))
    signal = float(np.linalg.norm(reference.astype(np.float64)))
    return float(20 * np.log10(signal / noise)) if noise else float("inf")


def classes(expected: np.ndarray, found: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Logits [N, classes]: top-1 accuracy, and how often both graphs choose the same, in %."""
    chosen = found.argmax(1)
    return {
        "accuracy": 100 * float((chosen == labels).mean()),
        "agreement": 100 * float((chosen == expected.argmax(1)).mean()),
    }


def language(expected: np.ndarray, found: np.ndarray, tokens: np.ndarray) -> dict[str, float]:
    """Logits [N, T, V] against tokens [N, T]: perplexity of the next token, and agreement in %."""
    total = 0.0
    for logits, row in zip(found, tokens, strict=True):  # one at a time: V is wide
        shifted = logits[:-1] - logits[:-1].max(-1, keepdims=True)
        chosen = np.take_along_axis(shifted, row[1:, None], 1)[:, 0]
        total += float((np.log(np.exp(shifted).sum(-1)) - chosen).mean())
    return {
        "perplexity": float(np.exp(total / len(tokens))),
        "agreement": 100 * float((found.argmax(-1) == expected.argmax(-1)).mean()),
    }


def embeddings(
    expected: np.ndarray, found: np.ndarray, mask: np.ndarray, labels: np.ndarray
) -> dict[str, float]:
    """Token embeddings [N, T, D], mask [N, T]: topic accuracy of the mean real token against the
    fixed prototypes, and its cosine to FP32's (mean and worst)."""
    means = [
        (tokens * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        for tokens in (expected, found)
    ]
    before, after = means
    cosine = (
        (before * after).sum(1) / np.linalg.norm(before, axis=1) / np.linalg.norm(after, axis=1)
    )
    topics = prototypes().T
    scores = classes(before @ topics, after @ topics, labels)
    return {**scores, "cosine": float(cosine.mean()), "worst_cosine": float(cosine.min())}


def closeness(expected: np.ndarray, found: np.ndarray) -> dict[str, float]:
    """Rows [N, D] of a network with random weights, which knows no task: mean cosine to FP32's, in
    %."""
    products = (expected * found).sum(-1)
    norms = np.linalg.norm(expected, axis=-1) * np.linalg.norm(found, axis=-1)
    return {"cosine": 100 * float((products / norms).mean(dtype=np.float64))}


def score(root: Path, workload: str, model: Path, asked: dict[str, Any]) -> dict[str, float]:
    expected, found = reference(root, workload), outputs(root, workload, model, asked)
    count = feeds.TEST[workload]
    with np.load(feeds.path(root, workload)) as data:
        if workload in ("w3", "w6"):
            mask = data["test.attention_mask"][:count]
            real = mask.astype(bool)
            outside = {"sqnr_db": sqnr(expected[real], found[real])}
            if workload == "w6":
                return {**closeness(expected[real], found[real]), **outside}
            return {**embeddings(expected, found, mask, data["labels"][:count]), **outside}
        if workload == "w5":
            task = closeness(expected, found)
        elif workload == "w4":
            task = language(expected, found, data["test.input_ids"][:count])
        else:
            task = classes(expected, found, data["labels"][:count])
    return {**task, "sqnr_db": sqnr(expected, found)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--workload", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--session", type=json.loads, default={})
    options = parser.parse_args()
    print(json.dumps(score(options.root, options.workload, options.model, options.session)))


if __name__ == "__main__":
    main()

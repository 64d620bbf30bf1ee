"""The data of the workloads: scikit-learn's digits, and the sources of Python's standard library.

Nothing is downloaded. Text is cut into BPE tokens of a vocabulary of 2048; what calibrates is
never what is scored.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from networks import SEQUENCE, VOCABULARY
from recipes.topics import TOPICS

PAD, MASK = 0, 1  # ids that the tokenizer reserves for W3
SHORTEST = 12  # tokens of the shortest W3 text
Arrays = dict[str, np.ndarray]


def digits() -> Arrays:
    """1168 training and 629 test images, float32 [N, 3, 32, 32], with int64 labels [N]."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    source = load_digits()
    images = torch.tensor(source.images, dtype=torch.float32)[:, None] / 16
    images = F.interpolate(images, size=32, mode="bilinear", align_corners=False)
    images = ((images - 0.3) / 0.35).repeat(1, 3, 1, 1).numpy()
    labels = source.target.astype("int64")
    train, test, train_labels, test_labels = train_test_split(
        images, labels, test_size=0.35, random_state=0, stratify=labels
    )
    return {
        "calibration.input": train,
        "calibration_labels": train_labels,
        "test.input": test,
        "labels": test_labels,
    }


def sources() -> dict[Path, str]:
    """The standard library's own modules (two levels, no tests), path → text, in sorted order."""
    library = Path(sysconfig.get_paths()["stdlib"])
    found = sorted([*library.glob("*.py"), *library.glob("*/*.py")])
    return {
        path: path.read_text(encoding="utf8", errors="ignore")
        for path in found
        if "/test" not in str(path.relative_to(library.parent)) and "site-packages" not in str(path)
    }


def tokenizer(texts: list[str]):
    """A byte-level BPE tokenizer of 2048 ids, the first two reserved for padding and masking."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return made


def split(files: dict[Path, str]) -> tuple[list[Path], list[Path]]:
    """Every 17th file is held out: (training, held out)."""
    paths = list(files)
    held = set(paths[::17])
    return [path for path in paths if path not in held], [path for path in paths if path in held]


def stream() -> Arrays:
    """W4: `train` int64 [tokens], 512 calibration and 400 test windows of 128 tokens."""
    files = sources()
    training, held = split(files)
    bpe = tokenizer([files[path] for path in training])
    train = np.array(bpe.encode("\n".join(files[path] for path in training)).ids)
    test = np.array(bpe.encode("\n".join(files[path] for path in held)).ids)
    windows = train[: 512 * SEQUENCE].reshape(512, SEQUENCE)
    return {
        "train": train,
        "calibration.input_ids": np.random.default_rng(0).permutation(windows),
        "test.input_ids": test[: 400 * SEQUENCE].reshape(400, SEQUENCE),
    }


def texts() -> Arrays:
    """W3: pieces of 12–128 tokens, padded, with the package or module that they come from.

    Returns `train`, `calibration` and `test` ids and masks, int64 [N, 128]; the first and the last
    with labels [N] (`train_labels`, `labels`). Every ninth run of 512 tokens of a file is held out
    for the test, every tenth for calibration; only the vocabulary has seen them.
    """
    files = sources()
    training, _ = split(files)
    bpe = tokenizer([files[path] for path in training])
    library = Path(sysconfig.get_paths()["stdlib"])
    by_topic: dict[str, list[np.ndarray]] = {}
    for path, text in files.items():
        topic = path.relative_to(library).parts[0]
        by_topic.setdefault(topic, []).append(np.array(bpe.encode(text).ids, dtype=np.int64))
    largest = sorted(by_topic, key=lambda topic: -sum(map(len, by_topic[topic])))[:TOPICS]
    rng = np.random.default_rng(0)
    pieces: dict[str, list[tuple[np.ndarray, int]]] = {"train": [], "calibration": [], "test": []}
    for label, topic in enumerate(sorted(largest)):
        for ids in by_topic[topic]:
            for run, start in enumerate(range(0, len(ids) - SHORTEST, 512)):
                part = {8: "test", 9: "calibration"}.get(run % 10, "train")
                pieces[part] += [(piece, label) for piece in cut(ids[start : start + 512], rng)]
    limits = {"train": None, "calibration": 2048, "test": 1024}
    found: Arrays = {}
    for part, limit in limits.items():
        order = rng.permutation(len(pieces[part]))[:limit]
        chosen = [pieces[part][index] for index in order]
        found |= padded(part, [ids for ids, _ in chosen])
        if part != "calibration":
            name = "labels" if part == "test" else "train_labels"
            found[name] = np.array([label for _, label in chosen])
    return found


def cut(ids: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Consecutive pieces of random length, SHORTEST to SEQUENCE tokens, skewed to the short."""
    pieces, start = [], 0
    while len(ids) - start >= SHORTEST:
        length = int(SHORTEST + (SEQUENCE - SHORTEST) * rng.random() ** 1.5)
        pieces.append(ids[start : start + length])
        start += length
    return pieces


def padded(part: str, rows: list[np.ndarray]) -> Arrays:
    """Rows of any length ≤ 128 as ids and mask, both int64 [N, 128]."""
    ids = np.full((len(rows), SEQUENCE), PAD, dtype=np.int64)
    mask = np.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    return {f"{part}.input_ids": ids, f"{part}.attention_mask": mask}

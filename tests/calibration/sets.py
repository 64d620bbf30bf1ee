"""Sets of samples, sound and unsound, from data that comes with scikit-learn and the examples."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from optkit.craft.calibration.suspects import ModelProperties, judge, profile
from optkit.facts.documents.data_finding import DataFinding
from optkit.facts.tensors import Feed, TensorInfo, batched
from optkit.ground.data.identity import sample_digests

ENCODER = Path(__file__).parents[2] / "examples" / "03_hf_encoder"
MEAN = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
STD = np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]


@dataclass(frozen=True)
class Pair:
    """Calibration data, evaluation data (None: there is none), and what is known of the model."""

    calibration: Feed
    evaluation: Feed | None = None
    tables: Mapping[str, int] = field(default_factory=dict)
    known: ModelProperties = field(default_factory=ModelProperties)

    def findings(self) -> list[DataFinding]:
        inputs = tuple(
            TensorInfo(name, array.dtype.name, ("batch", *array.shape[1:]))
            for name, array in self.calibration.items()
        )
        looked = [
            None if feed is None else profile(
                split(feed), inputs, self.tables, sample_digests(feed, batched(inputs))
            )
            for feed in (self.calibration, self.evaluation)
        ]  # fmt: skip
        assert looked[0] is not None
        return judge(looked[0], looked[1], self.known)

    def kinds(self) -> list[str]:
        return [finding.kind for finding in self.findings()]


def split(feed: Feed, size: int = 32) -> Iterable[Feed]:
    count = len(next(iter(feed.values())))
    for start in range(0, count, size):
        yield {name: array[start : start + size] for name, array in feed.items()}


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """[1797, 1, 8, 8] in [0, 1], and their classes."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return (found.images / 16).astype(np.float32)[:, None], found.target


def training() -> np.ndarray:
    """As calibration/digits.py has them."""
    images = digits()[0][0::2]
    return images[np.arange(len(images)) * 556 % len(images)]


def held_out() -> np.ndarray:
    return digits()[0][1::2]


@cache
def photographs(
    seed: int = 0, count: int = 64, side: int = 48, of: tuple[int, ...] = (0, 1)
) -> np.ndarray:
    """[count, 3, side, side] in [0, 1]: parts of scikit-learn's two photographs (0: a temple under
    a blue sky, 1: a flower)."""
    from sklearn.datasets import load_sample_images

    random = np.random.default_rng(seed)
    pictures = load_sample_images().images
    parts = []
    for index in range(count):
        picture = pictures[of[index % len(of)]]
        y, x = (int(random.integers(0, size - side)) for size in picture.shape[:2])
        parts.append(picture[y : y + side, x : x + side])
    return np.stack(parts).transpose(0, 3, 1, 2).astype(np.float32) / 255


def coloured(seed: int) -> np.ndarray:
    """Photographs in warm light; those above are nearly gray."""
    tint = np.array([1.0, 0.9, 0.7], np.float32)[:, None, None]
    found: np.ndarray = photographs(seed) * tint
    return found


def table(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Calibration and evaluation halves of one of scikit-learn's tables, columns standardized."""
    from sklearn import datasets

    x = getattr(datasets, f"load_{name}")().data.astype(np.float32)
    x = x[np.random.default_rng(0).permutation(len(x))]
    x = (x - x.mean(0)) / x.std(0)
    return x[0::2], x[1::2]


def raw_table(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The same with the columns in their own units."""
    from sklearn import datasets

    x = getattr(datasets, f"load_{name}")().data.astype(np.float32)
    x = x[np.random.default_rng(1).permutation(len(x))]
    return x[0::2], x[1::2]


@cache
def functions(part: str) -> list[str]:
    """Texts of example 03: "training" or "held-out"."""
    lines = (ENCODER / "data" / f"{part}.jsonl").read_text().splitlines()
    return [json.loads(line)["text"] for line in lines]


@cache
def vocabulary() -> int:
    from tokenizers import Tokenizer

    size: int = Tokenizer.from_file(str(ENCODER / "model" / "tokenizer.json")).get_vocab_size()
    return size


def encoded(texts: Iterable[str], length: int = 64) -> Feed:
    """Token ids and mask, padded on the right."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(ENCODER / "model" / "tokenizer.json"))
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length)
    rows = tokenizer.encode_batch(list(texts))
    return {
        "input_ids": np.array([row.ids for row in rows], np.int64),
        "attention_mask": np.array([row.attention_mask for row in rows], np.int64),
    }


def tones(seed: int, count: int = 48, loudness: float = 1.0) -> np.ndarray:
    """[count, 1, 2000] recordings of a few tones, each as loud as it likes."""
    random = np.random.default_rng(seed)
    time = np.arange(2000) / 8000
    pitch = random.uniform(100, 1500, (count, 3, 1))
    level = random.lognormal(-2, 0.8, (count, 1)) * loudness
    waves = np.sin(2 * np.pi * pitch * time + random.uniform(0, 6, (count, 3, 1))).mean(axis=1)
    return (waves * level + 0.001 * random.standard_normal((count, 2000))).astype(np.float32)[
        :, None
    ]

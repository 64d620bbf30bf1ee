"""The user's evaluation."""

from pathlib import Path

import numpy as np

METRIC = "accuracy"
WEIGHTS = np.load(Path(__file__).with_name("weights.npz"))


def samples(seed=2):
    rng = np.random.default_rng(seed)
    for _ in range(8):
        x = rng.standard_normal((64, 16)).astype(np.float32)
        hidden = np.maximum(x @ WEIGHTS["w1"] + WEIGHTS["b1"], 0)
        yield {"x": x}, (hidden @ WEIGHTS["w2"] + WEIGHTS["b2"]).argmax(1)


def score(outputs, labels):
    return (outputs["y"].argmax(1) == labels).astype(float)

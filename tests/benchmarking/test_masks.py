"""Compared with torch and torchmetrics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_jaccard_index

from optkit.craft.benchmarking import masks


@pytest.mark.parametrize("seed", range(40))
def test_mean_iou_is_that_of_torchmetrics(seed: int) -> None:
    """Five cases each: 200 in all."""
    for turn in range(5):
        random = np.random.default_rng([seed, turn])
        kinds, pictures = int(random.integers(2, 6)), int(random.integers(1, 5))
        truth = random.integers(0, kinds, (pictures, 9, 7))
        truth[random.random(truth.shape) < 0.1] = 255
        logits = random.normal(size=(pictures, kinds, 9, 7)).astype(np.float32)
        found = masks.classes({"logits": logits}, 9, 7)
        rows = masks.overlaps(found, truth, kinds, ignored=255)
        value = masks.mean_over_classes(rows, "miou")(np.ones(pictures))
        wanted = multiclass_jaccard_index(
            torch.tensor(found), torch.tensor(truth), kinds, ignore_index=255
        )
        assert value == pytest.approx(float(wanted), abs=1e-6)


def test_dice_counts_what_both_have_twice() -> None:
    rows = np.asarray([[[3, 4, 5], [0, 0, 0]], [[1, 2, 1], [0, 1, 1]]], float)
    value = masks.mean_over_classes(rows, "dice")(np.ones(2))
    assert value == pytest.approx(((2 * 4) / (6 + 6) + 0) / 2)
    assert masks.mean_over_classes(rows, "dice")(np.asarray([1.0, 0.0])) == pytest.approx(6 / 9)


@pytest.mark.parametrize("size", [(8, 8), (13, 5), (4, 21), (16, 24)])
def test_logits_are_resized_as_torch_resizes_them(size: tuple[int, int]) -> None:
    values = np.random.default_rng(0).normal(size=(2, 3, 8, 6)).astype(np.float32)
    wanted = torch.nn.functional.interpolate(
        torch.tensor(values), size=size, mode="bilinear", align_corners=False
    )
    np.testing.assert_allclose(masks.bilinear(values, *size), wanted.numpy(), atol=1e-5)


def test_a_class_that_the_model_lacks_is_an_error() -> None:
    found = np.zeros((1, 2, 2), np.int64)
    with pytest.raises(ValueError, match="the class 7, but the output has 3 classes"):
        masks.overlaps(found, np.full((1, 2, 2), 7), 3, ignored=255)

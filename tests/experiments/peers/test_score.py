"""Metrics of the comparison against slow, obvious implementations."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import score
import torch

from recipes import images, npz, tokens, topics


def test_sqnr_is_the_ratio_of_energies_in_decibels() -> None:
    reference = np.array([[3.0, -4.0], [0.0, 12.0]], dtype=np.float32)
    found = reference + np.float32(0.13)
    energy = sum(x * x for x in reference.ravel().tolist())
    noise = sum(x * x for x in (found - reference).ravel().tolist())
    assert score.sqnr(reference, found) == pytest.approx(10 * math.log10(energy / noise), rel=1e-6)
    assert score.sqnr(reference, reference) == math.inf
    assert math.isnan(score.sqnr(reference, reference * np.float32("nan")))


def test_perplexity_is_that_of_torch() -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((3, 7, 11)).astype(np.float32)
    ids = rng.integers(0, 11, (3, 7))
    loss = torch.nn.functional.cross_entropy(
        torch.from_numpy(logits[:, :-1]).reshape(-1, 11), torch.from_numpy(ids[:, 1:]).reshape(-1)
    )
    found = score.language(logits, logits, ids)
    assert found["perplexity"] == pytest.approx(math.exp(loss.item()), rel=1e-5)
    assert found["agreement"] == 100
    task = tokens.score({"logits": logits}, ids)
    assert np.exp(-task.mean()) == pytest.approx(found["perplexity"], rel=1e-5)


def test_classes_count_labels_and_agreement() -> None:
    expected = np.eye(4)
    found = np.eye(4)[[0, 1, 3, 3]]
    labels = np.array([0, 0, 2, 3])
    assert score.classes(expected, found, labels) == {"accuracy": 50.0, "agreement": 75.0}
    assert images.score({"logits": found}, labels).tolist() == [1, 0, 0, 1]


def test_embeddings_leave_padding_out_and_agree_with_the_task() -> None:
    rng = np.random.default_rng(1)
    lengths = np.array([2, 5, 3])
    mask = (np.arange(6) < lengths[:, None]).astype(np.int64)
    labels = np.array([4, 7, 9])
    tokens = rng.standard_normal((3, 6, topics.WIDTH)).astype(np.float32)
    for row, (length, label) in enumerate(zip(lengths, labels, strict=True)):
        tokens[row, :length] += 40 * topics.prototypes()[label] * (row != 1)
        tokens[row, length:] = 1e6  # what padding holds counts for nothing
    other = np.where(mask[..., None] == 0, -1e6, tokens).astype(np.float32)
    found = score.embeddings(tokens, other, mask, labels)
    assert found["cosine"] == pytest.approx(1, abs=1e-5)
    assert found["agreement"] == 100
    rows = np.stack([labels, lengths], axis=1)
    task = topics.score({"embeddings": tokens}, rows)
    assert found["accuracy"] == pytest.approx(100 * task.mean())
    assert task[[0, 2]].tolist() == [1, 1]


def test_prototypes_are_fixed_unit_vectors() -> None:
    found = topics.prototypes()
    assert found.shape == (topics.TOPICS, topics.WIDTH)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(found, topics.prototypes())


def test_sources_yield_what_the_file_holds(tmp_path: Path) -> None:
    ids = np.arange(40 * 4).reshape(40, 4)
    mask = np.ones_like(ids)
    mask[:, 3] = 0
    file = tmp_path / "w3.npz"
    arrays = {"calibration.input_ids": ids, "calibration.attention_mask": mask}
    tests = {"test.input_ids": ids, "test.attention_mask": mask, "labels": np.arange(40) % 5}
    np.savez(file, **arrays, **tests)
    feeds = list(npz.samples(str(file)))
    np.testing.assert_array_equal(np.concatenate([feed["input_ids"] for feed in feeds]), ids)
    assert all(set(feed) == {"input_ids", "attention_mask"} for feed in feeds)
    scored = list(topics.samples(str(file), count=40))
    labels = np.concatenate([label for _, label in scored])
    assert labels[:, 0].tolist() == (np.arange(40) % 5).tolist()
    assert set(labels[:, 1].tolist()) == {3}

"""Against numpy, scikit-learn, scipy and torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from sklearn.metrics import f1_score
from torch.nn import functional

from optkit.craft.benchmarking import metrics
from optkit.ground import places, user_code

numbers = arrays(np.float64, st.shared(st.integers(2, 30), key="n"), elements=st.integers(-4, 4))


@given(
    arrays(np.float32, (6, 7), elements=st.integers(0, 3)),
    arrays(np.int64, 6, elements=st.integers(0, 6)),
    st.integers(1, 7),
)
def test_top_k_is_where_a_stable_sort_puts_the_label(
    logits: np.ndarray, labels: np.ndarray, k: int
) -> None:
    highest = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(
        metrics.in_top(logits, labels, k), (highest == labels[:, None]).any(1)
    )


def test_what_is_no_number_is_no_hit() -> None:
    logits = np.array([[np.nan, np.nan], [np.nan, 1.0], [0.0, 1.0]])
    assert metrics.in_top(logits, np.array([0, 1, 1]), 1).tolist() == [0, 0, 1]


@pytest.mark.parametrize("label", [-1, -100, 3])
def test_a_label_that_is_no_class_is_not_scored(label: int) -> None:
    logits, labels = np.eye(3), np.array([0, 1, label])
    with pytest.raises(ValueError, match=f"label is {label}, but the output has 3 classes"):
        metrics.in_top(logits, labels, 1)
    if label != -100:
        with pytest.raises(ValueError, match=f"label is {label}, but the output has 3 classes"):
            metrics.guessed(logits, labels)
        with pytest.raises(ValueError, match=f"label is {label}, but the output has 3 classes"):
            metrics.tag_counts(logits[:, None], labels[:, None])


def test_an_unknown_average_is_refused() -> None:
    with pytest.raises(ValueError, match="average 'weighted' is not one of macro, micro, binary"):
        metrics.f1(np.eye(3), "weighted")  # type: ignore[arg-type]


@pytest.mark.parametrize("average", ["macro", "micro", "binary"])
@pytest.mark.parametrize("seed", range(5))
def test_f1_is_scikit_learns(average: metrics.Average, seed: int) -> None:
    random = np.random.default_rng(seed)
    classes = 2 if average == "binary" else 5
    logits = random.standard_normal((40, classes))
    labels = random.integers(0, classes, 40) // 2 if seed else random.integers(0, classes, 40)
    rows = metrics.guessed(logits, labels)
    found = metrics.f1(metrics.class_counts(rows), average)
    assert found == pytest.approx(f1_score(labels, logits.argmax(1), average=average), abs=1e-12)
    ignored = np.concatenate([rows, [[4.0, -100.0]]])
    assert metrics.f1(metrics.class_counts(ignored), average) == found
    zeros = np.zeros((3, 2))  # a resample without the positive class
    assert metrics.f1(metrics.class_counts(zeros), average) == (average != "binary")


def test_a_row_of_f1_is_small_however_many_classes_there_are() -> None:
    module = user_code.load_module(places.find_task("f1", Path()).path)
    logits = np.eye(1000, dtype=np.float32)
    assert module.score({"logits": logits}, np.arange(1000)).shape == (1000, 2)
    assert module.aggregate(module.score({"logits": logits}, np.arange(1000)[::-1])) == 0.0
    with pytest.raises(ValueError, match="the label is 1000, but the output has 1000 classes"):
        module.score({"logits": logits}, np.arange(1000), average="binary", positive=1000)


def test_f1_of_tags_leaves_out_what_is_not_scored() -> None:
    random = np.random.default_rng(1)
    logits, labels = random.standard_normal((9, 6, 4)), random.integers(0, 4, (9, 6))
    labels[:, 4:] = -100
    rows = metrics.tag_counts(logits, labels)
    real = labels != -100
    for average in ("macro", "micro"):
        wanted = f1_score(labels[real], logits.argmax(-1)[real], average=average, labels=[1, 2, 3])
        assert metrics.f1(rows.sum(0), average, exclude=[0]) == pytest.approx(wanted, abs=1e-12)
    assert metrics.f1(rows[:0].sum(0)) == metrics.f1(metrics.class_counts(rows[:0, 0, :2])) == 0


@given(numbers, numbers)
def test_correlations_are_scipys(a: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_array_equal(metrics.ranks(a), stats.rankdata(a))
    if np.ptp(a) and np.ptp(b):
        assert metrics.pearson(a, b) == pytest.approx(stats.pearsonr(a, b).statistic, abs=1e-9)
        assert metrics.spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-9)
    else:
        assert metrics.spearman(a, b) == 0.0


def test_surprise_is_torchs_cross_entropy() -> None:
    random = np.random.default_rng(2)
    logits = (random.standard_normal((4, 6, 11)) * 30).astype(np.float32)
    targets = random.integers(0, 11, (4, 6))
    targets[0, :3] = targets[2] = -100
    found = metrics.surprise(logits, targets)
    for row in range(4):
        wanted = functional.cross_entropy(
            torch.from_numpy(logits[row]).double(), torch.from_numpy(targets[row]), reduction="sum"
        )
        assert found[row, 0] == pytest.approx(float(wanted), rel=1e-12, abs=1e-12)
    assert found[:, 1].tolist() == [3, 6, 0, 6]


def test_exact_match_wants_every_scored_token() -> None:
    logits = np.eye(5)[np.array([[1, 2, 3], [1, 2, 3], [1, 2, 3]])]
    targets = np.array([[1, 2, 3], [-100, 2, 4], [-100, -100, 3]])
    assert metrics.exact(logits, targets).tolist() == [1, 0, 1]


def test_pooled_vectors_are_means_of_the_real_tokens() -> None:
    states = np.random.default_rng(4).standard_normal((3, 5, 8)).astype(np.float32)
    start, stop = np.array([0, 2, 1]), np.array([3, 5, 2])
    wanted = np.stack(
        [states[i, a:b].mean(0) for i, (a, b) in enumerate(zip(start, stop, strict=True))]
    )
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(metrics.pooled(states, start, stop, "mean"), wanted, rtol=1e-5)
    np.testing.assert_allclose(metrics.pooled(wanted, start, stop, "mean"), wanted, rtol=1e-5)
    first = metrics.pooled(states, start, stop, "first")
    np.testing.assert_allclose(first[1], states[1, 2] / np.linalg.norm(states[1, 2]), rtol=1e-5)


def test_retrieval_is_the_rank_in_the_whole_similarity_matrix() -> None:
    random = np.random.default_rng(5)
    a, b = random.standard_normal((2, 300, 6))
    b += 0.8 * a
    a, b = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (a, b))
    place = (-(a @ b.T)).argsort(1).argsort(1)[np.arange(300), np.arange(300)]
    for k in (1, 5):
        np.testing.assert_array_equal(metrics.found_first(a, b, k), place < k)

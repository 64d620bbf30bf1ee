"""The metrics of tasks in plain numpy: top-k, F1, correlation, retrieval, likelihood, agreement.

A per-sample function returns one row per sample. A metric that is defined only for a whole set (F1,
a correlation, a perplexity) is computed from these rows, so that it can be computed for resampled
rows too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, get_args

import numpy as np

from optkit.ground.data.packing import IGNORED

Outputs = Mapping[str, np.ndarray]
Average = Literal["macro", "micro", "binary"]


def output(outputs: Outputs, *names: str) -> np.ndarray:
    """The first of these names that the model has as an output, otherwise its first output."""
    found = next((name for name in names if name in outputs), next(iter(outputs)))
    return outputs[found]


def in_top(logits: np.ndarray, labels: np.ndarray, k: int) -> np.ndarray:
    """1.0 if the label is among the k highest of [batch, classes], else 0.0. Among equal logits the
    first counts as higher, as in argmax; NaN counts as the highest. Raises ValueError for a label
    that is not a class."""
    classes = logits.shape[1]
    _check(labels, classes)
    own = np.take_along_axis(logits, labels[:, None], 1)  # [batch, 1]
    later = np.arange(classes) > labels[:, None]
    behind = (logits < own) | ((logits == own) & later)
    return np.asarray(behind.sum(1) >= classes - k, np.float64)


def _check(labels: np.ndarray, classes: int) -> None:
    """Raises ValueError for a label that is not a class. Indexing would count a negative label from
    the last class."""
    wrong = labels[(labels < 0) | (labels >= classes)]
    if wrong.size:
        raise ValueError(
            f"the label is {wrong[0]}, but the output has {classes} classes (0 to {classes - 1})"
        )


def guessed(logits: np.ndarray, labels: np.ndarray, positive: int = 0) -> np.ndarray:
    """The class of the highest logit and the class of the label, float64 [batch, 2], from [batch,
    classes]. A row is small for any number of classes.

    Raises ValueError if a label other than −100, or `positive`, is not a class.
    """
    _check(np.append(labels[labels != IGNORED], positive), logits.shape[1])
    return np.stack([logits.argmax(1), labels], axis=1).astype(np.float64)


def class_counts(rows: np.ndarray) -> np.ndarray:
    """True positives, false positives and false negatives of `guessed` [samples, 2]: [classes, 3],
    up to the last class that occurs. Labels of −100 do not count."""
    guesses, truth = rows[rows[:, 1] != IGNORED].astype(np.int64).T
    right, classes = guesses == truth, int(rows.max(initial=-1)) + 1
    kinds = (truth[right], guesses[~right], truth[~right])
    return np.stack([np.bincount(kind, minlength=classes) for kind in kinds], axis=1)


def tag_counts(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """True positives, false positives and false negatives of each sample: [batch, classes, 3] in
    float64, from logits [batch, length, classes] and labels [batch, length].

    Labels of −100 do not count. Raises ValueError for another label that is not a class.
    """
    guesses, classes = logits.argmax(-1), logits.shape[-1]
    found = np.zeros((len(logits), classes, 3))
    rows, places = np.nonzero(labels != IGNORED)
    guesses, truth = guesses[rows, places], labels[rows, places]
    _check(truth, classes)
    right = guesses == truth
    np.add.at(found, (rows, guesses, np.where(right, 0, 1)), 1)
    np.add.at(found, (rows[~right], truth[~right], 2), 1)
    return found


def f1(
    total: np.ndarray, average: Average = "macro", positive: int = 1, exclude: Collection[int] = ()
) -> float:
    """F1 = 2·TP / (2·TP + FP + FN) from the counts of all samples together, [classes, 3].

    macro: the mean over classes that occur; micro: from the sum of the counts; binary: of class
    `positive`. Classes in `exclude` are left out (the class O of tagging). 0 if no class occurs.
    Raises ValueError for another average.
    """
    if average not in get_args(Average):
        raise ValueError(f"average {average!r} is not one of {', '.join(get_args(Average))}")
    every = {*range(len(total))}
    kept = every & {positive} if average == "binary" else every - {*exclude}
    total = total[sorted(kept)]
    if average == "micro":
        total = total.sum(0, keepdims=True)
    total = total[total.sum(1) > 0]
    if not len(total):
        return 0.0
    right, wrong, missed = total.T
    return float((2 * right / (2 * right + wrong + missed)).mean())


def pooled(states: np.ndarray, start: np.ndarray, stop: np.ndarray, pooling: str) -> np.ndarray:
    """One unit vector per sample, float64 [batch, width], from states [batch, length, width]: the
    mean over positions start to stop, or the first or last of them. States of two axes are vectors
    already."""
    if states.ndim == 2:
        vectors = states.astype(np.float64)
    else:
        spans = [row[a:b].astype(np.float64) for row, a, b in zip(states, start, stop, strict=True)]
        taken = {"mean": slice(None), "first": slice(1), "last": slice(-1, None)}[pooling]
        vectors = np.stack([span[taken].mean(0) for span in spans])
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12))


def embedded(
    outputs: Outputs, labels: np.ndarray, pooling: str, name: str | None = None
) -> np.ndarray:
    """`pooled` of the output `name` (default: that of sentence embeddings). Labels [batch, 3] have
    in columns 1 and 2 the start and the stop of the tokens of each text that are not padding."""
    states = (
        output(outputs, "sentence_embedding", "last_hidden_state")
        if name is None
        else outputs[name]
    )
    start, stop = labels[:, 1:].T.astype(int)
    return pooled(states, start, stop, pooling)


def pearson(a: np.ndarray, b: np.ndarray) -> float:
    """The correlation of two lists of numbers; 0 if one of them is constant."""
    a, b = a - a.mean(), b - b.mean()
    scale = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale > 0 else 0.0


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Pearson's correlation of the ranks; equal values share their mean rank."""
    return pearson(ranks(a), ranks(b))


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1 on; equal values get the mean of their ranks."""
    _, inverse, counted = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((counted.cumsum() - (counted - 1) / 2)[inverse])


def found_first(queries: np.ndarray, documents: np.ndarray, k: int) -> np.ndarray:
    """1.0 if document i is among the k most similar to query i, else 0.0; for unit vectors
    [samples, width]."""
    hits = np.empty(len(queries))
    for start in range(0, len(queries), 256):  # a block of similarities at a time
        part = slice(start, start + 256)
        similar = queries[part] @ documents.T
        hits[part] = in_top(similar, np.arange(len(queries))[part], k)
    return hits


def overlap(
    queries: np.ndarray,
    documents: np.ndarray,
    queries_before: np.ndarray,
    documents_before: np.ndarray,
    k: int,
) -> np.ndarray:
    """The share of the k documents nearest to each query that two models have in common, in any
    order: float64 [queries], from unit vectors [samples, width]. Among equal similarities the first
    is nearer. Source: the overlap of Fagin, Kumar and Sivakumar 2003, "Comparing Top k Lists".

    Raises ValueError if there are not more than k documents, because then any two models would
    agree.
    """
    if not 1 <= k < len(documents):
        raise ValueError(f"k is {k}, but there are only {len(documents)} documents")
    found = np.empty(len(queries))
    for start in range(0, len(queries), 256):  # a block of similarities at a time
        part = slice(start, start + 256)
        now, before = (
            (-(a[part] @ b.T)).argsort(axis=1, kind="stable")[:, :k]
            for a, b in ((queries, documents), (queries_before, documents_before))
        )
        found[part] = (now[:, :, None] == before[:, None]).sum((1, 2)) / k
    return found


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cosines of unit vectors [samples, width], row by row: exactly 1 for equal rows."""
    return np.asarray(1 - np.square(a - b).sum(1) / 2)


def agreed(tokens: np.ndarray, before: np.ndarray) -> np.ndarray:
    """The number of equal tokens at the start of each row [samples, tokens]: float64 [samples]."""
    differ = tokens != before
    first = np.where(differ.any(1), differ.argmax(1), differ.shape[1])
    return np.asarray(first, np.float64)


def surprise(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Negative log-likelihood in nats, and the number of targets per sample: float64 [batch, 2].

    logits [batch, length, vocabulary]; targets[b, t]: the token that position t predicts, −100:
    none.
    """
    found = np.zeros((len(logits), 2))
    for row, (values, wanted) in enumerate(zip(logits, targets, strict=True)):
        places = np.flatnonzero(wanted != IGNORED)
        scored = values[places].astype(np.float64)  # [targets, vocabulary]
        scored -= scored.max(1, keepdims=True, initial=-np.inf)
        own = np.take_along_axis(scored, wanted[places, None], 1)[:, 0]
        found[row] = (np.log(np.exp(scored).sum(1)) - own).sum(), len(places)
    return found


def perplexity(rows: np.ndarray) -> float:
    """exp of the mean negative log-likelihood per token, from `surprise` [samples, 2]."""
    nats, tokens = rows.sum(0)
    return float(np.exp(nats / tokens))


def exact(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """1.0 if the highest logit is the target at every scored position, else 0.0: [batch]."""
    right = (logits.argmax(-1) == targets) | (targets == IGNORED)
    return np.asarray(right.reshape(len(right), -1).all(1), np.float64)

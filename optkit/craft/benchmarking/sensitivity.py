"""The noise of a quantized variant's outputs relative to recorded outputs of the reference, without
labels.

    noise      Σ (r - c)² / Σ r², the inverse of the SQNR, of the worst output (see `fidelity`)
    divergence mean over rows of KL(softmax(r) || softmax(c)) = Σ p (log p - log q), in nats

The noises of layers that are quantized one at a time add up to the noise of all of them, if their
errors are independent (Lin, Talathi, Annapureddy: Fixed Point Quantization of Deep Convolutional
Networks, ICML 2016), and to more if each has another output as its worst. The divergence measures
the effect of the noise on a decision, if outputs are logits along their last axis. Both leave out
padding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np

from optkit.craft.benchmarking.fidelity import padding, pool, run
from optkit.craft.benchmarking.partial_results import PartialScores
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Deviation
from optkit.facts.tensors import Feed, TensorInfo, count_samples, narrowed
from optkit.ground.runtimes import Session

RECORDED_BYTES = 1 << 26


@dataclass(frozen=True)
class ReferenceRuns:
    """Feeds, and the outputs of the reference for them. `signature`: its inputs and outputs."""

    signature: tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]
    feeds: tuple[Feed, ...]
    outputs: tuple[Feed, ...]

    def deviation(self, candidate: Session) -> Deviation:
        """Run the candidate on the same inputs. Raises InputRefused as `fidelity` does."""
        watched = _Watched(candidate, self)
        kept = PartialScores(None)
        run(_Replay(self), watched, ((feed, None) for feed in self.feeds), kept)
        found = pool(kept, name="fp32", evidence=Evidence.SIMULATED, intervals=False)
        worst = found.worst.sqnr_db
        noise = 0.0 if worst is None else 10 ** (-worst / 10)
        return Deviation(noise, watched.divergence, found.samples)


def record(session: Session, feeds: Iterable[Feed], *, samples: int) -> ReferenceRuns:
    """The reference's outputs for the first `samples` samples in whole batches. If inputs and
    outputs would take more than RECORDED_BYTES, there are fewer samples, but at least one batch."""
    kept: list[tuple[Feed, Feed]] = []
    seen = held = 0
    for feed in feeds:
        if kept and (seen >= samples or held >= RECORDED_BYTES):
            break
        outputs = session.run(feed)
        kept.append((feed, outputs))
        seen += count_samples(feed)
        held += sum(array.nbytes for part in (feed, outputs) for array in part.values())
    signature = (session.inputs, session.outputs)
    return ReferenceRuns(
        signature, tuple(feed for feed, _ in kept), tuple(made for _, made in kept)
    )


def divergence(expected: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """KL divergence of the softmax along the last axis, in nats: [..., n] twice → float64 [...]."""
    log_p, log_q = _log_softmax(expected), _log_softmax(actual)
    p = np.exp(log_p)
    with np.errstate(invalid="ignore"):
        terms = np.where(p > 0, p * (log_p - log_q), 0.0)
    found: np.ndarray = terms.sum(axis=-1)
    return found


def _shown(logits: np.ndarray, hidden: np.ndarray | None) -> np.ndarray:
    """The rows [..., n] that are not all padding. Padded classes of the other rows get probability
    0."""
    if hidden is None:
        return logits
    padded = np.broadcast_to(hidden, logits.shape)
    shown = ~padded.all(axis=-1)
    return np.where(padded[shown], -np.inf, logits[shown])


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    found: np.ndarray = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return found


class _Replay:
    """A session that returns recorded outputs, in their order."""

    def __init__(self, recorded: ReferenceRuns) -> None:
        self.inputs, self.outputs = recorded.signature
        self._left = iter(recorded.outputs)

    def run(self, feed: Feed) -> Feed:
        return next(self._left)

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None: ...


class _Watched(_Replay):
    """A session whose outputs are compared as distributions when they are computed."""

    def __init__(self, session: Session, recorded: ReferenceRuns) -> None:
        super().__init__(recorded)
        self.inputs = session.inputs
        self._session, self._reference = session, _Replay(recorded)
        self._sum = 0.0
        self._rows = 0

    def run(self, feed: Feed) -> Feed:
        outputs = self._session.run(narrowed(feed, self._session.inputs))
        expected = self._reference.run(feed)
        hidden = padding(self._reference, feed, expected)
        for name, values in expected.items():
            other = outputs.get(name)
            logits = values.dtype.kind == "f" and values.ndim > 1 and values.shape[-1] > 1
            if logits and other is not None and other.shape == values.shape:
                rows = divergence(*(_shown(x, hidden.get(name)) for x in (values, other)))
                self._sum += float(rows.sum())
                self._rows += rows.size
        return outputs

    @property
    def divergence(self) -> float | None:
        mean = self._sum / self._rows if self._rows else np.inf
        return max(mean, 0.0) if np.isfinite(mean) else None

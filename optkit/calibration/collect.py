"""The calibration loop: one forward per batch serves all observers, within a memory budget."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import length_hint

import numpy as np

from optkit.calibration.observer import Observer
from optkit.data.spool import sample_digests
from optkit.errors import InputRefused
from optkit.runtime import Feed, Progress, Session, batched
from optkit.statistics import Statistics, data_digest

# Bytes in use at the peak per byte of tapped values: the runtime's buffer, its copy for numpy, and
# inner values that are not tapped but alive (measured: 2.1 to 2.8 on a CNN and a transformer).
_PEAK = 3


def observe(
    session: Session,
    feeds: Iterable[Feed],
    names: Sequence[str],
    *,
    memory_bytes: int,
    progress: Progress,
) -> Statistics:
    """Run every feed once and return the statistics of the values `names`.

    `session` runs a graph in which `names` are outputs (`graph.expose`) or inputs. A batch that
    needs more than `memory_bytes` is run in parts, where the model's batch axis is dynamic.
    Raises InputRefused for NaN or Inf in an input or a tapped value (naming tensor and sample), an
    empty set, inputs of unequal length, or one sample that does not fit in the memory.
    """
    observers = {name: Observer() for name in names}
    samples, data = 0, data_digest([])
    batch = batched(session.inputs)
    for part in _parts(session, feeds, batch, memory_bytes, progress):
        rows = _rows(part, batch)
        _check_inputs(part, batch, first=samples)
        outputs = session.run(part)
        for name, observer in observers.items():
            value = outputs.pop(name) if name in outputs else part[name]
            if not observer.update(value):
                raise _not_finite(name, value, first=samples, rows=rows)
        digests = map(bytes.fromhex, sample_digests(part, batch))
        samples, data = samples + rows, data_digest([bytes.fromhex(data), *digests])
    if not samples:
        raise InputRefused(
            "the calibration set is empty",
            where="calibration",
            hint="the sample source yielded nothing; 128 to 512 samples are usual",
        )
    values = {name: observer.result() for name, observer in sorted(observers.items())}
    return Statistics(values, samples, data)


def _parts(
    session: Session,
    feeds: Iterable[Feed],
    batch: Collection[str],
    memory_bytes: int,
    progress: Progress,
) -> Iterator[Feed]:
    """Feeds that fit in the memory. `batch`: the inputs whose axis 0 counts samples."""
    batches, largest, limit = length_hint(feeds), 0, 0
    for done, feed in enumerate(feeds, start=1):
        _check_lengths(session, feed, batch)
        rows = _rows(feed, batch)
        if rows and (size := sum(array.size for array in feed.values()) // rows) > largest:
            largest, limit = size, _fitting_rows(session, feed, batch, memory_bytes)
        for start in range(0, rows, limit or 1):
            yield _slice(feed, batch, start, min(start + limit, rows))
        progress("calibrate", min(done / batches, 1.0) if batches else 0.0)


def _check_lengths(session: Session, feed: Feed, batch: Collection[str]) -> None:
    missing = [spec.name for spec in session.inputs if spec.name not in feed]
    if missing:
        raise InputRefused("the sample has no such array", where=f"input {missing[0]!r}")
    lengths = {spec.name: len(feed[spec.name]) for spec in session.inputs if spec.name in batch}
    if len(set(lengths.values())) > 1:
        raise InputRefused(f"inputs differ in length: {lengths}", where="calibration sample")


def _rows(feed: Feed, batch: Collection[str]) -> int:
    return next((len(feed[name]) for name in batch), 1)


def _slice(feed: Feed, batch: Collection[str], start: int, stop: int) -> Feed:
    return {name: a[start:stop] if name in batch else a for name, a in feed.items()}


def _fitting_rows(session: Session, feed: Feed, batch: Collection[str], memory_bytes: int) -> int:
    """How many samples may run at once, from the sizes that one sample's forward returns."""
    dynamic = any(isinstance(s.shape[0], str) for s in session.inputs if s.name in batch)
    unit = 1 if dynamic else _rows(feed, batch)
    outputs = session.run(_slice(feed, batch, 0, unit))
    need = _PEAK * sum(value.nbytes for value in outputs.values())
    if need > memory_bytes:
        what = "one sample" if unit == 1 else f"the model's fixed batch of {unit}"
        raise InputRefused(
            f"{what} needs about {need >> 20} MiB of memory, {memory_bytes >> 20} are allowed",
            where="calibration",
            hint="raise --memory" + ("" if unit == 1 else ", or export a dynamic batch axis"),
        )
    return unit * max(memory_bytes // max(need, 1), 1)


def _check_inputs(feed: Feed, batch: Collection[str], *, first: int) -> None:
    for name, value in feed.items():
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            rows = len(value) if name in batch else 1
            raise _not_finite(name, value, first=first, rows=rows)


def _not_finite(name: str, value: np.ndarray, *, first: int, rows: int) -> InputRefused:
    """`first`: number of the batch's first sample; `rows`: samples in the batch."""
    bad = np.argwhere(~np.isfinite(value))[0]
    each, rest = divmod(value.shape[0] if value.ndim else 1, rows)
    # a value like [batch * sequence, features] still tells the sample
    known = value.ndim and each and not rest
    sample = f"sample {first + int(bad[0]) // each}" if known else f"samples from {first}"
    return InputRefused(
        f"holds {value[tuple(bad)]}",
        where=f"tensor {name!r}, {sample}",
        hint="remove the sample, or find the operator that overflows in FP32",
    )

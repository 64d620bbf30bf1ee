"""What all steps share: names of files, how a graph is described, opened and counted through."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, dropwhile, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from optkit.data.spool import Batch
    from optkit.runtimes import Level, Session

Inputs = Mapping[str, Path]
Params = dict[str, Any]
Progress = Callable[[str, float], None]

GRAPH = "model.onnx"
SIMULATION = "simulation.onnx"
STATISTICS = "statistics.safetensors"
SCORES = "scores.safetensors"
RAW_SCORES = ("per_sample", "replicates")  # what of a Score is in that file
TIMES = "times.safetensors"
ASSETS = "assets"  # the folder of a source's tokenizer and processor files


def cpu(
    model: Path, *, threads: int | None = None, level: Level = "all", pooled: bool = True
) -> Session:
    from optkit.runtimes import SessionOptions, simulator

    # idle threads that spin take the cores from whoever else works on this machine
    options = SessionOptions(threads, spinning=False, level=level, pooled=pooled)
    return simulator().session(model, options)


def simulated(model: Path, evidence: str) -> Session:
    """A simulation keeps Q/DQ as written; a measurement runs what users run."""
    return cpu(model, level="all" if evidence == "measured" else "basic")


def engine(inputs: Inputs, params: Params, name: str) -> Session:
    """An engine on its device. params: backend, engines, session (its options), kept."""
    from optkit.runtimes import SessionOptions, backend

    kept = Path(params["kept"]) if params.get("kept") else None
    options = SessionOptions(**params["session"], kept=kept)
    return backend(params["backend"]).session(inputs[name] / params["engines"][name], options)


def rules_of(family: Mapping[str, Any]) -> dict[str, Any]:
    from optkit.placement import PlacementRules

    return {name: PlacementRules.from_json(data) for name, data in family.items()}


def dtype_of(carrier: str) -> Any:
    """The numpy dtype of a carrier."""
    import ml_dtypes
    import numpy as np

    return {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp32": np.float32}[carrier]


def recording(inputs: Inputs, params: Params, out: Path) -> dict[str, Any]:
    """How the code of a step is recorded. params: roots, the folders to which paths are told
    relative; store. What lies in the store, and what the step writes, is told elsewhere."""
    store = [params["store"]] if "store" in params else []
    return {"roots": params.get("roots", ()), "ignored": [out, *inputs.values(), *store]}


class Counted:
    """Batches of a spool that report how far they are and how long the rest will take at this rate.

    `shard` (i, n): those of the i-th of n parts, to which a batch belongs by its first sample; a
    part may be empty. `first`: the number of its first sample.
    """

    def __init__(
        self,
        path: Path,
        batch: int | None,
        progress: Progress,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        from optkit.data.spool import Spool

        spool, (index, count) = Spool(path), shard
        start, self._end = (len(spool) * i // count for i in (index, index + 1))
        self._progress = progress
        self._spans = dropwhile(lambda span: span.start < start, _spans(spool.batches(batch)))
        self._next = next(self._spans, None)
        self.first = self._end if self._next is None else self._next.start

    def rest(self, done: int) -> Iterator[Batch]:
        """All but the first `done`; once."""
        before, started = self.first, time.monotonic()
        own = takewhile(lambda span: span.start < self._end, self._all())
        for index, span in enumerate(own):
            if index < done:
                before, started = span.stop, time.monotonic()
                continue
            yield span.batch
            end = max(self._end, span.stop)
            rate = (span.stop - before) / max(time.monotonic() - started, 1e-9)
            seen, total = span.stop - self.first, end - self.first
            left = (end - span.stop) / rate
            self._progress(
                f"{seen} of {total} samples, {rate:.3g}/s, {left:.0f} s left", seen / total
            )

    def _all(self) -> Iterator[_Span]:
        return self._spans if self._next is None else chain([self._next], self._spans)


class _Span(NamedTuple):
    """A batch, and the numbers of its first sample and of the one behind it."""

    start: int
    stop: int
    batch: Batch


def _spans(batches: Iterable[Batch]) -> Iterator[_Span]:
    from optkit.tensors import count_samples

    stop = 0
    for feed, labels in batches:
        start, stop = stop, stop + (count_samples(feed) if labels is None else len(labels))
        yield _Span(start, stop, (feed, labels))

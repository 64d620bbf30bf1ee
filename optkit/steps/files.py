"""What all steps share: names of files, how a graph is described, opened and counted through."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optkit.errors import OptkitError

if TYPE_CHECKING:
    import onnx_ir as ir

    from optkit.data.spool import Spool
    from optkit.runtime import Session

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


def cpu(model: Path, **options: Any) -> Session:
    from optkit.runtime import backend

    # idle threads that spin take the cores from whoever else works on this machine
    return backend("onnxruntime").session(model, **{"spinning": False, **options})


def simulator(model: Path, evidence: str) -> Session:
    """A simulation keeps Q/DQ as written; a measurement runs what users run."""
    level = "all" if evidence == "measured" else "basic"
    return cpu(model, level=level)


def signature(model: ir.Model) -> dict[str, Any]:
    """Inputs, outputs and number of parameters."""
    from optkit import graph

    return {
        "inputs": [list(spec) for spec in graph.inputs(model)],
        "outputs": [list(spec) for spec in graph.outputs(model)],
        "parameters": graph.parameters(model),
    }


def rules_of(family: Mapping[str, Any]) -> dict[str, Any]:
    from optkit.runtime import PlacementRules

    return {name: PlacementRules.from_json(data) for name, data in family.items()}


def dtype_of(carrier: str) -> Any:
    """The numpy dtype of a carrier."""
    import ml_dtypes
    import numpy as np

    return {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp32": np.float32}[carrier]


@contextmanager
def named(staged: Path | None, given: str | None) -> Iterator[None]:
    """An error about the store's copy of a file is told about the file that the user named."""
    try:
        yield
    except OptkitError as error:
        if staged is not None and error.where == str(staged):
            error.where = given
        raise


def outside(reads: dict[str, Any], out: Path) -> dict[str, Any]:
    """Without the files that the step itself wrote and read again."""
    own = f"{out}/"
    files = {path: sha for path, sha in reads["files"].items() if not path.startswith(own)}
    return {**reads, "files": files}


class Counted:
    """Batches of a spool, all but the first `done`, that report how far they are and how long the
    rest will take at this rate."""

    def __init__(self, path: Path, batch: int | None, progress: Progress, *, done: int = 0) -> None:
        from optkit.data.spool import Spool

        self.spool: Spool = Spool(path)
        self.batch = batch
        self.progress = progress
        self.done = done

    def __iter__(self) -> Iterator[Any]:
        from optkit.runtime import count_samples

        total, seen, before, started = len(self.spool), 0, 0, time.monotonic()
        for index, (feed, labels) in enumerate(self.spool.batches(self.batch)):
            seen += count_samples(feed) if labels is None else len(labels)
            if index < self.done:
                before, started = seen, time.monotonic()
                continue
            yield feed, labels
            rate = (seen - before) / max(time.monotonic() - started, 1e-9)
            told = f"{seen} of {total} samples, {rate:.3g}/s, {(total - seen) / rate:.0f} s left"
            self.progress(told, seen / total)

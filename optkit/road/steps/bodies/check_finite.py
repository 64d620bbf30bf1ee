from __future__ import annotations

from pathlib import Path

import numpy as np

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import Feed, batched
from optkit.ground.data.checking import count_of
from optkit.ground.data.spool import Spool
from optkit.ground.execute.step import Progress, StepResult
from optkit.road.steps.bodies.sessions import cpu
from optkit.road.steps.check_finite import CheckFinite
from optkit.road.steps.file_names import GRAPH


def run(step: CheckFinite, out: Path, progress: Progress) -> StepResult:
    samples = Spool(step.samples.path)
    rows, first = batched(samples.inputs), 0
    with cpu(step.graph.path / GRAPH) as session:
        for feed, _ in samples:
            odd = {name: a for name, a in feed.items() if not _is_finite(a)}
            progress(f"sample {first} of {len(samples)}", first / len(samples))
            if odd:
                outputs = session.run({info.name: feed[info.name] for info in session.inputs})
                _check(odd, outputs, rows, first)
            first += count_of(feed, rows)
    return StepResult()


def _check(odd: Feed, outputs: Feed, rows: frozenset[str], first: int) -> None:
    """Raise for outputs that are NaN, or infinite if there is more than -inf in the samples, which
    masks have."""
    masked = all(bool((np.isfinite(a) | (a == -np.inf)).all()) for a in odd.values())
    for result, values in outputs.items():
        bad = np.isnan(values) if masked else ~np.isfinite(values)
        if values.dtype.kind != "f" or not bad.any():
            continue
        name, array = next(iter(odd.items()))
        wrong = ~np.isfinite(array)
        row = int(np.argwhere(wrong)[0][0]) if name in rows else 0
        raise InputRefused(
            f"{int(wrong.sum())} of {wrong.size} values of the batch are not finite (NaN, inf), "
            f"and then neither is output {result!r} of the model",
            where=f"sample {first + row}, input {name!r}",
            hint="repair these samples, or remove them; values that the model masks or replaces "
            "are accepted",
        )


def _is_finite(array: np.ndarray) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())

from __future__ import annotations

from pathlib import Path

import numpy as np

from optkit.facts.documents.report import PaddedTokens
from optkit.facts.tensors import TensorInfo
from optkit.ground.data.padding import mask_input, text_lengths
from optkit.ground.data.spool import Spool
from optkit.ground.execute.step import Progress
from optkit.road.steps.padding import CountPadding, Padding

_COUNTED = 512  # samples at equal distances


def run(step: CountPadding, out: Path, progress: Progress) -> Padding:
    samples = Spool(step.samples.path)
    counted = mask_input(samples.inputs) or next(filter(_is_ids, samples.inputs), None)
    if counted is None:
        return Padding(tokens=None)
    feeds = [feed[counted.name] for feed in samples.spread(_COUNTED)]
    if mask_input(samples.inputs) is not None:
        real = np.concatenate([(mask != 0).sum(axis=1) for mask in feeds])
    else:
        real = text_lengths(feeds)
    if not real.any():
        return Padding(tokens=None)
    axis = counted.shape[1]
    return Padding(
        tokens=PaddedTokens(
            input=counted.name,
            axis=axis if isinstance(axis, str) else None,
            samples=len(real),
            given=float(np.mean([ids.shape[1] for ids in feeds for _ in ids])),
            real=float(real.mean()),
            most=int(np.ceil(np.quantile(real, 0.95))),
            longest=int(real.max()),
        )
    )


def _is_ids(info: TensorInfo) -> bool:
    return info.dtype.startswith("int") and len(info.shape) == 2

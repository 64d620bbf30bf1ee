"""Steps that spool samples: from a source or task of the user, or random ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optkit.errors import InputRefused, located
from optkit.steps.comparing import random_feed
from optkit.steps.files import Inputs, Params, Progress, outside


def collect(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Run a sample source or a task and spool what it yields, checked against the inputs.

    params: function, args, limit, inputs, labelled; path, memory.
    """
    from optkit import content
    from optkit.data import reads, spool
    from optkit.recipe import infos_from_json

    path = Path(params["path"])
    with located(str(path)), reads.record() as record:
        module = content.load_module(path)
        function = content.member(module, params["function"], path)
        if params["labelled"]:
            content.member(module, "score", path)
        written = spool.write(
            content.guarded(function, params["args"], path),
            out,
            infos_from_json(params["inputs"]),
            limit_samples=params["limit"],
            memory_bytes=params["memory"],
            progress=progress,
        )
    if params["labelled"] and not written.labelled:
        raise InputRefused(
            "samples() yields no labels", where=str(path), hint="yield pairs: feed, labels"
        )
    metric = content.metric(module, path) if params["labelled"] else None
    return {"info": written.to_json(), "metric": metric, "reads": outside(record.to_json(), out)}


def random(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Seeded random inputs, for a model that comes with no samples at all.

    params: inputs, axes.
    """
    from optkit.data import spool
    from optkit.recipe import infos_from_json

    infos = infos_from_json(params["inputs"])
    feeds = (random_feed(params, "opt", seed) for seed in range(8))
    written = spool.write(
        feeds, out, infos, limit_samples=None, memory_bytes=1 << 28, progress=progress
    )
    return {"info": written.to_json(), "metric": None}

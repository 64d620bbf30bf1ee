from __future__ import annotations

import json
from pathlib import Path

from optkit.ground import graph
from optkit.ground.decoder import KV_CACHE
from optkit.ground.execute.step import Progress
from optkit.road.steps.bodies.kv_cache import cache_ranges
from optkit.road.steps.cache_reach import CacheReach, ObserveCache
from optkit.road.steps.file_names import GRAPH


def run(step: ObserveCache, out: Path, progress: Progress) -> CacheReach:
    model = graph.load(step.graph.path / GRAPH)
    reach = cache_ranges(model, step.samples.path, step.batch, progress).reach()
    (out / KV_CACHE).write_text(f"{json.dumps(reach, indent=1)}\n")
    return CacheReach()

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx_ir as ir

from optkit.craft.quantization.kv_cache import FORMATS, CacheRanges, quantize_caches
from optkit.facts.errors import InputRefused
from optkit.ground import graph
from optkit.ground.data.padding import mask_input, real_tokens
from optkit.ground.decoder import Decoder, continued
from optkit.ground.execute.step import Progress
from optkit.road.steps.bodies.batches import CountedBatches
from optkit.road.steps.bodies.ort import written
from optkit.road.steps.bodies.sessions import cpu
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.kv_cache import QuantizeCache
from optkit.road.steps.ort import OrtGraph


def run(step: QuantizeCache, out: Path, progress: Progress) -> OrtGraph:
    model = graph.load(step.graph.path / GRAPH)
    ranges = cache_ranges(model, step.samples.path, step.batch, progress)
    fmt = FORMATS[step.dtype]
    quantize_caches(model, ranges.names, ranges.scales(fmt), fmt)
    log = {"caches": len(ranges.names), "dtype": step.dtype}
    return written(model, log, out)


def cache_ranges(
    model: ir.Model, samples: Path, batch: int | None, progress: Progress
) -> CacheRanges:
    """What the caches of a decoder hold for the samples. Raises InputRefused for another model."""
    decoder = Decoder.of(graph.inputs(model), graph.outputs(model))
    if decoder is None or not decoder.cache:
        raise InputRefused(
            "it is not a decoder with a key-value cache",
            where="quantization.kv_cache",
            hint="leave it out, or export the model with past_key_values and present",
        )
    ranges = CacheRanges(caches := tuple(continued(info.name) for info in decoder.cache))
    mask = mask_input(graph.inputs(model))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / GRAPH
        # without the logits, which may be larger than all caches
        graph.save(graph.expose(model, caches, alone=True), place, inline_limit=0)
        with cpu(place, pooled=False) as session:
            for feed, _ in CountedBatches(samples, batch, progress).rest(0):
                ranges.add(session.run(feed), real_tokens(feed, mask))
    return ranges

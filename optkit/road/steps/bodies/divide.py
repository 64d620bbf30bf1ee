from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from optkit.facts.tensors import Feed, batch_axis
from optkit.ground.data import parts, spool, spool_writer
from optkit.ground.execute.step import Progress
from optkit.ground.runtimes import Session
from optkit.road.steps.bodies.sessions import cpu
from optkit.road.steps.collect import Samples
from optkit.road.steps.divide import Divide
from optkit.road.steps.file_names import GRAPH


def run(step: Divide, out: Path, progress: Progress) -> Samples:
    samples = spool.Spool(step.samples.path)
    with ExitStack() as stack:
        if step.encoder is not None:
            session = stack.enter_context(cpu(step.encoder.path / GRAPH, pooled=False))
            items = _encoded(session, samples)
        else:
            items = (
                (parts.of_encoder(spool.counting(feed, feed, labels)), labels)
                for feed, labels in samples
            )
        written = spool_writer.write(
            items,
            out,
            [spec.info for spec in step.specs],
            limit_samples=len(samples),
            memory_bytes=step.memory,
            progress=progress,
            optional=step.optional,
            fill=samples.labelled,
        )
    return Samples(info=written)


def _encoded(encoder: Session, samples: spool.Spool) -> Iterator[tuple[Feed, object]]:
    """The decoder's samples. They are computed one by one, because the outputs of the encoder are
    much larger than its inputs; with a fixed batch size, batch by batch."""
    size = 1 if isinstance(batch_axis(samples.inputs), str) else None
    for feed, labels in samples.batches(size):
        made = parts.of_decoder(feed, encoder.run(parts.of_encoder(feed)))
        yield spool.counting(made, feed, labels), labels

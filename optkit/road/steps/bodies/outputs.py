"""Outputs of a graph on disk, in safetensors files of some batches each.

    000000128-64-8.safetensors    from sample 128: 64 samples in 8 batches, tensors "<row>/<output>"

A killed run continues after the last file.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import NamedTuple, Self

from optkit.facts.tensors import Feed, TensorInfo, count_samples, narrowed
from optkit.ground.data import spool_file
from optkit.ground.data.spool import Spool
from optkit.ground.execute.step import Progress
from optkit.ground.runtimes import Session
from optkit.road.steps.bodies.batches import CountedBatches
from optkit.road.steps.bodies.sessions import opened
from optkit.road.steps.outputs import KeepOutputs, Outputs

_FILE_BYTES = 16 << 20
_NUMBERS = "biuf"  # the kinds of dtypes that both the format and numpy have


class _File(NamedTuple):
    path: Path
    samples: int
    batches: int


def run(step: KeepOutputs, out: Path, progress: Progress) -> Outputs:
    whole = len(Spool(step.samples.path))
    if step.parts:
        found = [file for part in step.parts.values() for file in _files(part.path)]
        if sum(file.samples for file in found) < whole:  # a part was too large
            return Outputs()
        for file in found:
            shutil.copyfile(file.path, out / file.path.name)
        return Outputs(kept=True)
    folder = step.checkpoint or out
    folder.mkdir(parents=True, exist_ok=True)
    kept = _write(step, folder, whole, progress)
    for file in _files(folder):
        if not kept:
            file.path.unlink()
        elif folder != out:
            shutil.move(file.path, out / file.path.name)
    return Outputs(kept=kept)


def _write(step: KeepOutputs, folder: Path, whole: int, progress: Progress) -> bool:
    """Write the outputs of all batches. False if they would take too much space, or are of a dtype
    that the format lacks."""
    shard = step.shard or (0, 1)
    counted, done = CountedBatches(step.samples.path, step.batch, progress, shard), _files(folder)
    before = sum(file.samples for file in done)
    written = sum(file.path.stat().st_size for file in done)
    batches: list[Feed] = []
    waiting = 0
    with opened(step) as session:
        for feed, _ in counted.rest(sum(file.batches for file in done)):
            outputs = session.run(narrowed(feed, session.inputs))
            if not all(array.dtype.kind in _NUMBERS for array in outputs.values()):
                return False
            batches.append(outputs)
            waiting += count_samples(feed)
            held = sum(array.nbytes for one in batches for array in one.values())
            share = (before + waiting) / ceil(whole / shard[1])
            if (written + held) / min(share, 1) > step.most / shard[1]:
                return False
            if held >= _FILE_BYTES:
                _save(folder, counted.first + before, waiting, batches)
                before, written, waiting, batches = before + waiting, written + held, 0, []
    if batches:
        _save(folder, counted.first + before, waiting, batches)
    return True


def _save(folder: Path, first: int, samples: int, batches: list[Feed]) -> None:
    """Write a file under its name only when it is complete."""
    arrays: Feed = {}
    for row, outputs in enumerate(batches):
        arrays |= spool_file.arrays(row, outputs, None)
    name = f"{first:09}-{samples}-{len(batches)}.safetensors"
    spool_file.save(arrays, folder / f".{name}")
    (folder / f".{name}").replace(folder / name)


def _files(folder: Path) -> list[_File]:
    return [
        _File(path, *map(int, path.stem.split("-")[1:]))
        for path in sorted(folder.glob("[0-9]*.safetensors"))
    ]


class KeptOutputs(Session):
    """Returns the outputs that are kept in a folder: those of the first batch, then those of the
    next one."""

    def __init__(self, folder: Path, inputs: tuple[TensorInfo, ...]) -> None:
        self._inputs = inputs
        self._batches = _batches(folder)

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        return ()

    def run(self, feed: Feed) -> Feed:
        return next(self._batches)

    def close(self) -> None:
        """Nothing is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _batches(folder: Path) -> Iterator[Feed]:
    for file in _files(folder):
        tensors = spool_file.opened(file.path)
        rows: list[Feed] = [{} for _ in range(file.batches)]
        for name in tensors.keys():  # noqa: SIM118  it is no mapping
            row, _, output = name.partition("/")
            rows[int(row)][output] = tensors.get_tensor(name)
        yield from rows

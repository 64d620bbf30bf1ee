from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from optkit.craft import foreign
from optkit.craft.sources import hugging_face, model_factory, onnx_file, program
from optkit.craft.sources.custom_operators import CustomOperators
from optkit.craft.sources.export_log import ExportLog
from optkit.facts.errors import OptkitError
from optkit.facts.tensors import Feed
from optkit.ground import graph, intake
from optkit.ground.data.pretrained import PROCESSORS
from optkit.ground.data.spool import Spool
from optkit.ground.execute.step import Progress, StepInput
from optkit.road.steps.bodies.sessions import cpu
from optkit.road.steps.bodies.signature import signature
from optkit.road.steps.export import (
    Export,
    ExportedGraph,
    HuggingFaceModel,
    OnnxModel,
    TorchArchive,
)
from optkit.road.steps.file_names import ASSETS, GRAPH

_FILES = (OnnxModel, TorchArchive)  # that may hold the codes of another tool


def run(step: Export, out: Path, progress: Progress) -> ExportedGraph:
    # at the end, so that a file next to them does not hide an installed package
    sys.path += [folder for folder in map(str, _folders(step)) if folder not in sys.path]
    with _named(_path(step.weights), step.given_weights):
        log = _export(step, out / GRAPH, progress)
    if isinstance(step.source, HuggingFaceModel):
        _keep_companions(_model(step), out)
    if log.image_processor is not None:
        (out / ASSETS).mkdir()
        (out / ASSETS / PROCESSORS[0]).write_text(json.dumps(log.image_processor))
    model = graph.load(out / GRAPH)
    given = isinstance(step.source, OnnxModel)
    optimized, products = foreign.optimized(model) if given else ({}, 0)
    return ExportedGraph(
        log=log,
        optimized=optimized,
        optimized_products=products,
        quantized=isinstance(step.source, _FILES) and foreign.is_quantized(model),
        warnings=tuple(log.warnings),
        **vars(signature(model)),
    )


def _export(step: Export, out: Path, progress: Progress) -> ExportLog:
    source, specs = step.source, step.specs
    if isinstance(source, OnnxModel):
        library = source.operators
        operators = None if library is None else CustomOperators(library, cpu, source.plugins)
        return onnx_file.export(_model(step), specs, out, operators)
    if isinstance(source, TorchArchive):
        return program.export(
            _model(step),
            specs,
            source.axes,
            out,
            session=cpu,
            progress=progress,
            samples=_samples(step),
        )
    if isinstance(source, HuggingFaceModel):
        return hugging_face.export(
            _model(step),
            specs,
            source.axes,
            out,
            task=source.task,
            part=source.part,
            trusted=source.trusted,
            adapter=_path(step.adapter),
            session=cpu,
            progress=progress,
        )
    return model_factory.export(
        f"{step.file or step.module}:{step.attribute}",
        source.args,
        _path(step.weights),
        specs,
        source.axes,
        out,
        session=cpu,
        progress=progress,
        given_weights=step.given_weights,
        samples=_samples(step),
    )


def _folders(step: Export) -> list[Path]:
    """Where the factory's modules are: a file finds its neighbours before those of the folder in
    which the command runs."""
    found = [None if step.file is None else step.file.parent, step.code]
    return [folder for folder in found if folder is not None]


def _samples(step: Export) -> list[Feed]:
    return [] if step.samples is None else [feed for feed, _ in Spool(step.samples.path)]


def _model(step: Export) -> Path:
    """The staged file or folder."""
    assert step.model is not None
    return step.model.path


def _path(staged: StepInput | None) -> Path | None:
    return None if staged is None else staged.path


@contextmanager
def _named(staged: Path | None, given: str | None) -> Iterator[None]:
    """Errors about the store's copy of a file then name the file of the user instead."""
    try:
        yield
    except OptkitError as error:
        if staged is not None and error.where == str(staged):
            error.where = given
        if staged is not None and error.hint and given is not None:
            error.hint = error.hint.replace(str(staged), given)
        raise


def _keep_companions(folder: Path, out: Path) -> None:
    """Copy configuration, tokenizer and processor of a staged folder."""
    (out / ASSETS).mkdir()
    for name in intake.COMPANIONS:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, out / ASSETS / name)

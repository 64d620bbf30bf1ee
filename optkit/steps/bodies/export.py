from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from optkit import graph, intake, sources
from optkit.errors import OptkitError
from optkit.execute.reads import Record
from optkit.execute.step import Progress
from optkit.steps.bodies.graphs import signature
from optkit.steps.bodies.recorded import recorded
from optkit.steps.bodies.sessions import cpu
from optkit.steps.export import Export, Exported, HuggingFaceModel, OnnxModel, PythonModel
from optkit.steps.files import ASSETS, GRAPH


def run(step: Export, out: Path, progress: Progress) -> Exported:
    source, place = step.source, step.file or step.module
    inputs = {role: one.path for role, one in step.inputs.items()}
    hub = source if isinstance(source, HuggingFaceModel) else None
    with ExitStack() as stack:
        stack.enter_context(_named(inputs.get("weights"), step.given_weights))
        told = recorded(step, out, step.code)
        record = stack.enter_context(told) if step.reads_code else None
        log = sources.export(
            source.kind,
            inputs,
            factory=f"{place}:{step.attribute}" if place else None,
            args=source.args if isinstance(source, PythonModel) else None,
            task=hub.task if hub is not None else None,
            part=hub.part if hub is not None else None,
            trusted=hub is not None and hub.trusted,
            specs=step.specs,
            axes={} if isinstance(source, OnnxModel) else source.axes,
            out=out / GRAPH,
            session=cpu,
            progress=progress,
        )
    if hub is not None:
        _keep_companions(inputs["model"], out)
    return Exported(
        log=log.to_json(),
        warnings=tuple(log.warnings),
        reads=Record() if record is None else record.relative(),
        **signature(graph.load(out / GRAPH))._asdict(),
    )


@contextmanager
def _named(staged: Path | None, given: str | None) -> Iterator[None]:
    """An error about the store's copy of a file is told about the file that the user named."""
    try:
        yield
    except OptkitError as error:
        if staged is not None and error.where == str(staged):
            error.where = given
        raise


def _keep_companions(folder: Path, out: Path) -> None:
    """Configuration, tokenizer and processor of a staged folder."""
    (out / ASSETS).mkdir()
    for name in intake.COMPANIONS:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, out / ASSETS / name)

"""`optkit package`: an artifact or a fleet in the layout of another program."""

from __future__ import annotations

from pathlib import Path

from optkit.facts.errors import UsageError
from optkit.verbs import api
from optkit.verbs.cli import command_output
from optkit.verbs.cli.command_output import Output


def package(
    path: Path,
    form: str,
    out: Path,
    name: str | None,
    precision: str | None,
    adapters: tuple[str, ...],
    compiled: bool,
    dynamic: bool,
    output: Output,
) -> None:
    folders = _folders(adapters)
    with output.terminal() as ears:
        document = api.package(
            path,
            format=form,
            out=out,
            name=name,
            precision=precision,
            adapters=folders,
            compiled=compiled,
            dynamic=dynamic,
        )
        for note in document.notes:
            ears.note(note)
    if output.json:
        command_output.put_json(document)
        return
    size = sum(file.bytes for file in document.files)
    variants = ", ".join(f"{one.target} {one.precision}" for one in document.variants)
    command_output.put(
        f"{document.folder}  {len(document.files)} files, {size:,} bytes: {variants}"
    )


def _folders(adapters: tuple[str, ...]) -> dict[str, Path]:
    """The folders of adapters by their names. Raises UsageError for a name that is given twice."""
    folders: dict[str, Path] = {}
    for name, folder in map(_named, adapters):
        if name in folders:
            raise UsageError(
                f"{folders[name]} and {folder} have the same name, {name}",
                where="--adapter",
                hint="--adapter NAME=FOLDER gives an adapter another name",
            )
        folders[name] = folder
    return folders


def _named(adapter: str) -> tuple[str, Path]:
    """Name and folder of NAME=FOLDER, or of FOLDER, whose own name it is then."""
    name, equals, folder = adapter.partition("=")
    return (name, Path(folder)) if equals else (Path(adapter).resolve().name, Path(adapter))

"""`optkit attest`: the bill of materials and the provenance of an artifact."""

from __future__ import annotations

from pathlib import Path

from optkit.verbs import api
from optkit.verbs.cli import command_output
from optkit.verbs.cli.command_output import Output


def attest(artifact: Path, out: Path, key: Path | None, output: Output) -> None:
    found = api.attest(artifact, out=out, key=key)
    with output.terminal() as ears:
        for note in found.notes:
            ears.note(note)
    if output.json:
        command_output.put_json(found)
        return
    for file in found.files:
        signed = ", signed" if file.signed else ""
        command_output.put(f"{file.kind}{signed}: {file.file}")

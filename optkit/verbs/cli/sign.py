"""`optkit sign` and `optkit verify`: the signature and the files of an artifact."""

from __future__ import annotations

from pathlib import Path

from optkit.facts.documents.signature import VerifiedArtifact
from optkit.verbs import api
from optkit.verbs.cli import command_output
from optkit.verbs.cli.command_output import Output


def sign(
    artifact: Path,
    key: Path,
    certificate: Path | None,
    certificate_chain: tuple[Path, ...],
    ignore_paths: tuple[str, ...],
    output: Output,
) -> None:
    signed = api.sign(
        artifact,
        key=key,
        certificate=certificate,
        certificate_chain=certificate_chain,
        ignore_paths=ignore_paths,
    )
    _put(signed, "signed", output)


def verify(
    artifact: Path,
    key: Path | None,
    certificate_chain: tuple[Path, ...],
    ignore_unsigned_files: bool,
    trust: bool,
    output: Output,
) -> None:
    verified = api.verify(
        artifact,
        key=key,
        certificate_chain=certificate_chain,
        ignore_unsigned_files=ignore_unsigned_files,
        trust=trust,
    )
    _put(verified, "verified", output)


def _put(found: VerifiedArtifact, done: str, output: Output) -> None:
    with output.terminal() as ears:
        for note in found.notes:
            ears.note(note)
    if output.json:
        command_output.put_json(found)
        return
    what = f"{found.files} files and manifest.json"
    if found.signature is not None:
        what += f", by a {found.signature.method}: {found.signature.file}"
    command_output.put(f"{found.name}: {done} {what}")

"""`optkit init`: a commented recipe to start from."""

from __future__ import annotations

from pathlib import Path

import click

from optkit.errors import UsageError


@click.command()
@click.argument("model")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("optkit.yaml"),
    show_default=True,
    help="The recipe to write.",
)
def init(model: str, out: Path) -> None:
    """Write a commented recipe for MODEL (model.onnx, model.pt2 or file.py:factory).

    Called optkit.yaml it is the default recipe of its folder.
    """  # fmt: skip
    from optkit import content
    from optkit.cli import terminal
    from optkit.store import storage_errors, write_durably

    if out.exists():
        raise UsageError(
            "it exists already", where=str(out), hint="choose another --out, or edit it"
        )
    with storage_errors(out):
        write_durably(out.resolve(), content.template(model).encode())
    terminal.put(f"wrote {out}; next: optkit build --recipe {out} --target l4 --precision fp16")

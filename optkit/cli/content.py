"""`optkit init`: a commented recipe to start from."""

from __future__ import annotations

from pathlib import Path

import click

from optkit.errors import UsageError


@click.command()
@click.argument("model")
@click.option("--weights", metavar="FILE", help="A safetensors file for what the factory returns.")
@click.option("--calibration", metavar="PATH|NAME", help="Calibration data, or a source.")
@click.option("--eval", "evaluation", metavar="NAME|FILE.py", help="The evaluation task.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("optkit.yaml"),
    show_default=True,
    help="The recipe to write.",
)
def init(
    model: str, weights: str | None, calibration: str | None, evaluation: str | None, out: Path
) -> None:
    """Write a commented recipe for MODEL (model.onnx, model.pt2 or file.py:factory).

    The input names come from `forward`, which is read from the file without running it. The command
    looks for weights in the folder of the model. A recipe with the name optkit.yaml is the default
    recipe of its folder.
    """
    from optkit.cli import terminal
    from optkit.recipe.template import template
    from optkit.store import storage_errors, write_durably

    if out.exists():
        raise UsageError(
            "it exists already", where=str(out), hint="choose another --out, or edit it"
        )
    with storage_errors(out):
        out.resolve().parent.stat()  # what is named beside it is looked for from there
    started = template(model, out, weights=weights, calibration=calibration, evaluation=evaluation)
    with storage_errors(out):
        write_durably(out.resolve(), started.text.encode())
    terminal.put(f"wrote {out}; next: {started.then}")

"""`optkit init`: a commented recipe to start from."""

from __future__ import annotations

from pathlib import Path

from optkit.api.jobs import signature
from optkit.cli import terminal
from optkit.errors import UsageError
from optkit.recipe.template import template
from optkit.store import OUT_OPTION, storage_errors, write_durably


def init(
    model: str, weights: str | None, calibration: str | None, evaluation: str | None, out: Path
) -> None:
    if out.exists():
        raise UsageError(
            "it exists already", where=str(out), hint="choose another --out, or edit it"
        )
    with storage_errors(out, OUT_OPTION):
        out.resolve().parent.stat()  # paths in the recipe are relative to this folder
    read = signature(model) if model.endswith(".onnx") and weights is None else ()
    started = template(
        model, out, weights=weights, calibration=calibration, evaluation=evaluation, read=read
    )
    with storage_errors(out, OUT_OPTION):
        write_durably(out.resolve(), started.text.encode())
    terminal.put(f"wrote {out}; next: {started.then}")

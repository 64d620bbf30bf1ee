"""The account of a translated command of another tool: one row for each flag."""

from __future__ import annotations

from typing import Annotated, Literal

from optkit.facts.documents.record import Record, Rows, said

Fate = Literal["done", "meaningless", "refused"]


class TranslatedFlag(Record):
    """What became of one flag."""

    flag: Annotated[str, said("As the user wrote it; in parentheses if a flag is missing.")]
    fate: Fate
    becomes: Annotated[
        str | None, said("The option of optkit, or in words what does the same.")
    ] = None
    reason: Annotated[
        str | None, said("Why it is meaningless or refused; else how optkit differs.")
    ] = None
    remedy: Annotated[str | None, said("What to do instead of a refused flag.")] = None
    overridden_by: Annotated[
        str | None, said("The option beside the command that was followed instead.")
    ] = None


class Translation(Record):
    """A command of another tool, and the same in optkit's options."""

    tool: Literal["trtexec", "ultralytics", "modelopt"]
    command: str
    flags: Rows[TranslatedFlag]
    options: Annotated[str, said("The options of optkit that the command was translated into.")]

"""The tables of flags in `data/`: for each flag of another tool, what optkit does with it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

_FOLDER = Path(__file__).with_name("data")

Tool = Literal["trtexec", "ultralytics", "modelopt"]
TOOLS: tuple[Tool, ...] = ("trtexec", "ultralytics", "modelopt")

Kind = Literal[
    "switch", "optional", "text", "file", "integer", "boolean", "names", "choice", "shapes",
    "pools", "mebibytes", "gibibytes", "seconds", "milliseconds", "picture", "layers", "patterns",
]  # fmt: skip
"""The kinds of values. `switch`: none; `optional`: one or none; `names`, `patterns`: one or more
words."""


class FlagRow(BaseModel):
    """The answer for one flag, or for several flags with the same answer.

    What optkit does, exactly one of these:
        key             sets a key of the recipe, to `is` or to the value
        option          sets an option of optkit; MODEL is its argument
        precision       sets the precision; "*": the one that the value names
        done            optkit does it without a setting, in words
        meaningless     the flag changes nothing here: why
        refused         the flag cannot be followed: why, and `remedy`: what to do instead

    Values with another answer, as regular expressions:
        harmless        these change nothing: the tool's default, or `harmless_because`
        refused_values  these are refused; other values are done

    answered_by: the option of optkit that replaces a refused flag.
    values: the tool's name of a choice → optkit's. note: a difference that the user should know.
    since, until: the first and the last major version of the tool that has the flag.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    flags: tuple[str, ...]
    value: Kind = "switch"
    key: str | None = None
    constant: bool | None = Field(default=None, alias="is")
    option: str | None = None
    precision: str | None = None
    done: str | None = None
    meaningless: str | None = None
    refused: str | None = None
    remedy: str | None = None
    harmless: str | None = None
    harmless_because: str = "this value is the default"
    refused_values: str | None = None
    answered_by: str | None = None
    values: dict[str, str] = {}
    note: str | None = None
    repeats: bool = False
    since: int | None = None
    until: int | None = None

    @model_validator(mode="after")
    def one_answer(self) -> Self:
        answers = (self.key, self.option, self.precision, self.done, self.meaningless)
        count = sum(answer is not None for answer in answers)
        only_refused = self.refused is not None and self.refused_values is None
        if count + only_refused != 1:
            raise ValueError(f"{self.flags}: give exactly one answer")
        if (self.refused is None) != (self.remedy is None):
            raise ValueError(f"{self.flags}: refused and remedy belong together")
        if (self.value == "choice") != bool(self.values):
            raise ValueError(f"{self.flags}: a choice has values, and nothing else has")
        if self.value == "switch" and self.key is not None and self.constant is None:
            raise ValueError(f"{self.flags}: a switch sets its key to `is`")
        return self


@cache
def table(tool: Tool) -> dict[str, FlagRow]:
    """Flag → its row."""
    from ruamel.yaml import YAML

    text = (_FOLDER / f"{tool}.yaml").read_text(encoding="utf-8")
    rows = [FlagRow.model_validate(row) for row in YAML(typ="safe", pure=True).load(text)]
    found = {flag: row for row in rows for flag in row.flags}
    if len(found) != sum(len(row.flags) for row in rows):
        raise ValueError(f"{tool}.yaml has a flag twice")
    return found

"""The tables of flags: complete, and each row gives an answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from optkit.facts.documents.translation import TranslatedFlag
from optkit.ground.recipe import Bench, Calibration, Compiler, Quantization
from optkit.satellites.translation import TOOLS, Tool, ToolCommand, table, translate
from optkit.verbs.cli import optkit
from tests.translation.flags_page import PAGE, page

FLAGS = Path(__file__).with_name("trtexec_flags.txt")

EXAMPLES = {
    "text": "some", "file": "some.file", "integer": "3", "boolean": "True", "names": "Conv Gemm",
    "shapes": "x:2x16", "picture": "640", "pools": "workspace:64", "mebibytes": "64",
    "gibibytes": "2",
    "seconds": "2", "milliseconds": "300", "layers": "first:fp16", "patterns": "first",
}  # fmt: skip
"""Kind of value → a value."""


def spelled(tool: Tool, flag: str) -> str:
    """The flag with a value, as the tool's user writes it."""
    row = table(tool)[flag]
    value = EXAMPLES.get(row.value, next(iter(row.values), ""))
    if row.value in ("switch", "optional"):
        return flag
    return f"{flag} {value}" if tool == "modelopt" else f"{flag}={value}"


def account(tool: Tool, command: str) -> tuple[TranslatedFlag, ...]:
    translated = translate(ToolCommand(**{tool: command}), frozenset())
    assert translated is not None
    return translated.account.flags


@pytest.mark.parametrize("tool", TOOLS)
def test_every_flag_has_an_answer(tool: Tool) -> None:
    for flag in table(tool):
        told = account(tool, spelled(tool, flag))[0]
        assert told.flag.split("=")[0].split()[0] == flag
        if told.fate == "done":
            assert told.becomes, flag
        else:
            assert told.reason and told.becomes is None, flag
        assert (told.remedy is not None) == (told.fate == "refused"), flag


@pytest.mark.parametrize("version", ["10", "11"])
def test_the_table_has_every_flag_of_trtexec(version: str) -> None:
    names = FLAGS.read_text().partition(f"\n{version}:\n")[2].partition(":\n")[0].split()
    flags = {name for name in names if name.startswith("-")}
    assert len(flags) > 120
    rows = table("trtexec")
    assert flags <= rows.keys()
    gone = {flag for flag in flags if (rows[flag].until or 99) < int(version)}
    late = {flag for flag in flags if (rows[flag].since or 0) > int(version)}
    # --int8 of trtexec 11 is for engines of functional safety alone
    assert gone | late <= {"--int8"}


def test_the_page_of_flags_is_made_from_the_tables() -> None:
    """`python -m tests.translation.flags_page` writes it."""
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("tool", TOOLS)
def test_what_a_row_names_exists(tool: Tool) -> None:
    options = {name for parameter in optkit.commands["build"].params for name in parameter.opts}
    for row in table(tool).values():
        assert {row.option, row.answered_by} - {None, "MODEL"} <= options, row.flags
        if row.key is not None:
            section, key = row.key.split(".")
            part = {"quantization": Quantization, "compiler": Compiler, "bench": Bench,
                    "calibration": Calibration}[section]  # fmt: skip
            assert key in part.model_fields, row.flags


@pytest.mark.parametrize("tool", TOOLS)
def test_texts_are_short_and_have_no_full_stop(tool: Tool) -> None:
    for row in table(tool).values():
        for text in (row.done, row.meaningless, row.refused, row.remedy, row.note):
            assert text is None or len(text) < 160, text
            assert text is None or not (text.endswith(".") or "\n" in text), text

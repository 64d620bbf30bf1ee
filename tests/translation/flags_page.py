"""docs/reference/translated_flags.md from the tables: python -m tests.translation.flags_page"""

from __future__ import annotations

import re
from pathlib import Path

from optkit.satellites.translation import TOOLS, Tool, table
from optkit.satellites.translation.tables import FlagRow

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/translated_flags.md"
TITLES = {
    "trtexec": "trtexec",
    "ultralytics": "Ultralytics (`yolo export`)",
    "modelopt": "ModelOpt (`python -m modelopt.onnx.quantization`)",
}
HEAD = (
    "# Every flag of trtexec, Ultralytics and ModelOpt\n\n"
    "`optkit build` and `optkit init` translate the command of another tool with `--trtexec`, "
    "`--ultralytics` or `--modelopt` "
    "([how](../how_to/from_tensorrt_10.md#give-the-command-itself)). These tables are made from "
    "those that the translation uses. A flag is *done*, *meaningless* (it changes nothing here), "
    "or *refused* (the build stops, and says what to do instead). The flags "
    "of trtexec are those of TensorRT 10.0 to 11.1, and those of 8.6 that 10 removed; those of "
    "ModelOpt are of 0.47.\n"
)


def page() -> str:
    return "\n".join([HEAD, *(section(tool) for tool in TOOLS)])


def section(tool: Tool) -> str:
    rows = dict.fromkeys(row.flags for row in table(tool).values())
    lines = [line(table(tool)[flags[0]]) for flags in rows]
    return "\n".join([f"## {TITLES[tool]}\n", "| flag | answer | |", "|---|---|---|", *lines, ""])


def line(row: FlagRow) -> str:
    flags = ", ".join(f"`{flag}`" for flag in row.flags)
    answer, what = answered(row)
    if row.harmless is not None:
        default = row.harmless_because == FlagRow.model_fields["harmless_because"].default
        why = "the default" if default else f"because {row.harmless_because}"
        what += f". Meaningless: {named(row.harmless)}, {why}".replace("some values, the", "the")
    if row.refused_values is not None:
        what += (
            f". Refused: {named(row.refused_values)}, because {row.refused}. Instead: {row.remedy}"
        )
    return f"| {flags} | {answer} | {what} |"


def answered(row: FlagRow) -> tuple[str, str]:
    """The answer, and its text."""
    note = f"; {row.note}" if row.note else ""
    if row.key is not None:
        return "done", f"`--set {row.key}=…`{note}"
    if row.option is not None:
        return "done", f"`{row.option}`{note}"
    if row.precision is not None:
        return "done", f"`--precision {'…' if row.precision == '*' else row.precision}`{note}"
    if row.done is not None:
        return "done", row.done + note
    if row.meaningless is not None:
        return "meaningless", row.meaningless
    beside = f", unless `{row.answered_by}` is given" if row.answered_by else ""
    return "refused", f"{row.refused}{beside}. Instead: {row.remedy}"


def named(pattern: str) -> str:
    """The values that a regular expression matches, if they are words."""
    values = pattern.split("|")
    plain = all(re.fullmatch(r"-?\w+", value) for value in values)
    return " or ".join(f"`{value}`" for value in values) if plain else "some values"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

"""The words of another tool's command, as flags with their values."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from optkit.facts.errors import UsageError, unknown_name
from optkit.satellites.translation.tables import FlagRow, Tool, table

_TASKS = ("detect", "segment", "classify", "pose", "obb", "semantic", "depth")


@dataclass(frozen=True)
class Word:
    """One flag of a command. `text`: as the user wrote it; `value`: None if it has none."""

    flag: str
    row: FlagRow
    value: str | None
    text: str


def words(tool: Tool, command: str) -> list[Word]:
    """The flags of a command, with or without the name of its program in front. Raises UsageError
    for an unknown flag, with the nearest ones, and for a value that is missing or too many."""
    where = f"--{tool}"
    try:
        parts = shlex.split(command)
    except ValueError as error:
        hint = "close the quotation marks"
        raise UsageError(str(error).lower(), where=where, hint=hint) from None
    readers = {"trtexec": _trtexec, "ultralytics": _ultralytics, "modelopt": _modelopt}
    return [_checked(word, where) for word in readers[tool](parts, where)]


def _checked(word: Word, where: str) -> Word:
    if word.row.value == "switch" and word.value is not None:
        raise UsageError(
            "this flag has no value", where=f"{where} {word.text}", hint=f"write {word.flag} alone"
        )
    if word.row.value not in ("switch", "optional") and not word.value:
        separator = " " if where == "--modelopt" else "="
        raise UsageError(
            "this flag needs a value",
            where=f"{where} {word.text}",
            hint=f"e.g. {word.flag}{separator}VALUE",
        )
    return word


def _trtexec(parts: list[str], where: str) -> Iterator[Word]:
    """`--flag` and `--flag=value`."""
    known = table("trtexec")
    if parts and parts[0].rpartition("/")[2].startswith("trtexec"):
        parts = parts[1:]
    for part in parts:
        flag, equals, value = part.partition("=")
        if not flag.startswith("-"):
            hint = "trtexec's values follow an equals sign, e.g. --onnx=model.onnx"
            raise UsageError(f"{part!r} is not a flag", where=where, hint=hint)
        if flag not in known:
            raise unknown_name("flag of trtexec", flag, known, where=where)
        yield Word(flag, known[flag], value if equals else None, part)


def _ultralytics(parts: list[str], where: str) -> Iterator[Word]:
    """`yolo [task] export`, then `name=value`; the name of a boolean alone means true."""
    known = table("ultralytics")
    for index, part in enumerate(parts):
        name, equals, value = part.partition("=")
        if not equals and (part == "export" or part in _TASKS or (index == 0 and part == "yolo")):
            continue
        name = name.removeprefix("--")
        if name not in known:
            raise unknown_name("argument of `yolo export`", name, known, where=where)
        if not equals and known[name].value == "boolean":
            value = "True"
        yield Word(name, known[name], value, part)


def _modelopt(parts: list[str], where: str) -> Iterator[Word]:
    """Options as argparse reads them: `--name value`, `--name=value`, and any prefix of a name that
    only one option has."""
    known = table("modelopt")
    place = 0
    if parts and parts[0].rpartition("/")[2].startswith("python"):
        place = 3 if parts[1:2] == ["-m"] else 2
    while place < len(parts):
        name, equals, value = parts[place].partition("=")
        flag = _completed(name, known, where)
        row, end = known[flag], place + 1
        values = [value] if equals else []
        most = {"switch": 0, "optional": 1, "names": len(parts), "patterns": len(parts)}
        while (
            not equals
            and end < len(parts)
            and len(values) < most.get(row.value, 1)
            and not parts[end].startswith("--")
        ):
            values.append(parts[end])
            end += 1
        if end < len(parts) and not parts[end].startswith("-"):
            raise UsageError(
                f"{parts[end]!r} belongs to no option", where=f"{where} {flag}", hint="remove it"
            )
        yield Word(flag, row, " ".join(values) or None, shlex.join(parts[place:end]))
        place = end


def _completed(name: str, known: Mapping[str, FlagRow], where: str) -> str:
    """The option that begins with `name`."""
    longer = [flag for flag in known if name.startswith("--") and flag.startswith(name)]
    if name in known:
        return name
    if len(longer) != 1:
        raise unknown_name("option of modelopt.onnx.quantization", name, known, where=where)
    return longer[0]

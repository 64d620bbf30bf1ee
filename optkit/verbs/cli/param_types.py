"""The kinds of values that options take: lists, names that a shell completes, numbers with a unit.

A number without a unit has the unit that the option's help names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click

from optkit.facts.errors import UsageError, with_nearest_file

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    Type = click.ParamType[Any]
else:
    Type = click.ParamType  # older releases of click have no type parameter


class Several(Type):
    """Values of one kind between commas. The option also takes `multiple` and `joined`, so that
    "a,b" means the same as giving the option twice."""

    def __init__(self, item: Type) -> None:
        self.item = item
        self.name = item.name

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[object, ...]:
        parts = [part.strip() for part in str(value).split(",")]
        if not all(parts):
            self.fail(f"{value!r} has an empty place between its commas", param, ctx)
        return tuple(self.item.convert(part, param, ctx) for part in parts)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        items = self.item.shell_complete(ctx, param, last)
        for item in items:
            item.value = f"{before}{comma}{item.value}"
        return items


def joined(
    context: click.Context, parameter: click.Parameter, values: Iterable[tuple[object, ...]]
) -> tuple[object, ...]:
    """The values of all lists of an option, each value once."""
    return tuple(dict.fromkeys(value for part in values for value in part))


class Name(Type):
    """A text. A shell completes it from `table` ("module:object": names, or a function that lists
    them). If no name fits and `file` is true, the shell completes file names."""

    name = "name"

    def __init__(self, table: str | None = None, *, file: bool = False) -> None:
        self.table = table
        self.file = file

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        table = () if self.table is None else resolve_name(self.table)
        names = [
            name
            for name in (table() if callable(table) else table)
            if name.startswith(incomplete.lower())
        ]
        if not names and self.file:
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(name) for name in names]


class OneOf(click.Choice):  # type: ignore[type-arg]  # older releases have no type parameter
    """One of a few words. Raises UsageError that lists them."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return str(super().convert(value, param, ctx))
        except click.BadParameter:
            names = param.opts if param else [""]
            where = names[0] if names[0].startswith("-") else names[0].upper()
            raise UsageError(
                f"unknown value {value!r}",
                where=where,
                hint=f"choose one of: {', '.join(self.choices)}",
            ) from None


DEVICE = Name("optkit.ground.devices:names")
PRECISION = Name("optkit.facts.precisions:PRECISIONS")
RECIPE = Name("optkit.ground.shipped:recipe_names", file=True)
SOURCE = Name("optkit.ground.shipped:source_names", file=True)
TASK = Name("optkit.ground.shipped:task_names", file=True)
FILE = Name(file=True)


class Quantity(Type):
    """A number, with one of these units or without a unit. Raises UsageError for other text."""

    def __init__(
        self, name: str, units: Mapping[str, float], example: str, least: float = 0.0
    ) -> None:
        self.name = name
        self.units = units
        self.example = example
        self.least = least

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        parts = re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+) ?([a-z%]*)", value.strip().lower())
        number = -1.0
        if parts is not None and parts[2] in self.units:
            number = float(parts[1]) * self.units[parts[2]]
        if not self.least <= number < 2**63:
            where = param.opts[0] if param else None
            message = f"{value!r} is not a {self.name}"
            raise UsageError(message, where=where, hint=f"write it like {self.example}")
        return number


class Size(Quantity):
    """Bytes, in powers of 1024, whatever the spelling of the unit: K, KB and KiB are the same."""

    def __init__(self, least: int = 1) -> None:
        units = {"": 1, "b": 1} | {
            f"{unit}{ending}": 2.0**power
            for unit, power in (("k", 10), ("m", 20), ("g", 30), ("t", 40))
            for ending in ("", "b", "ib")
        }
        super().__init__("size", units, "512M or 2GiB", least)

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return int(super().convert(value, param, ctx))


class SizeOrFolder(Size):
    """Bytes, or the path of a folder that exists."""

    def convert(  # type: ignore[override]
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | Path:
        return Path(value) if Path(value).is_dir() else super().convert(value, param, ctx)


class Existing(click.Path):
    """A path that exists: a file, a folder, or either. Raises UsageError with a hint otherwise."""

    def __init__(self, hint: str, *, file: bool = False, folder: bool = False) -> None:
        super().__init__(exists=True, path_type=Path, file_okay=file, dir_okay=folder)
        self.hint = hint

    def convert(  # type: ignore[override]
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        path = Path(value)
        if (self.file_okay and path.is_file()) or (self.dir_okay and path.is_dir()):
            return path
        what = " or ".join(
            name for name, okay in (("file", self.file_okay), ("folder", self.dir_okay)) if okay
        )
        hint = self.hint
        if not path.exists():
            hint = with_nearest_file(path, hint)
        where = f"{param.opts[0]} {value}" if isinstance(param, click.Option) else value
        problem = f"it is not a {what}" if path.exists() else f"no such {what}"
        raise UsageError(problem, where=where, hint=hint)


_BUILT = "as `optkit build` prints it: artifacts/NAME-TARGET-PRECISION"
ARTIFACT = Existing(f"name the folder of an artifact, {_BUILT}", folder=True)
BUILT = Existing(f"name the folder of an artifact or of a fleet, {_BUILT}", folder=True)
EITHER = Existing(
    f"name a model.onnx, or the folder of an artifact, {_BUILT}; `optkit export` makes an ONNX "
    "graph of a Python model",
    file=True,
    folder=True,
)
PEM = Existing("name the PEM file of the key or the certificate", file=True)


class NewFile(click.Path):
    """A file that the command writes. Raises StorageError if it cannot be written, before the
    command works for it."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)
        self.name = "file"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Path:  # type: ignore[override]
        path = Path(value)
        resolve_name("optkit.verbs.cli.result_files:check")(
            path, param.opts[0] if param else "file"
        )
        return path


_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4, "min": 6e4, "h": 3.6e6, "d": 8.64e7}


class Milliseconds(Quantity):
    """Milliseconds from "20ms", "0.5s", "20"."""

    def __init__(self) -> None:
        super().__init__("time", {"": 1.0, **_MS}, "20ms or 0.5s", least=1e-12)


class Seconds(Quantity):
    """Seconds from "90", "90s", "10m", "1.5h"."""

    def __init__(self, least: float = 1e-3, example: str = "90s or 10m") -> None:
        super().__init__("time", {"": 1e3, **_MS}, example, least * 1e3)

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        return super().convert(value, param, ctx) / 1e3


class TokenCount(Type):
    """A number of tokens, or a text with several that --serve reads: 128..1024, 300~1200."""

    name = "tokens"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        if ".." in str(value) or "~" in str(value):
            return str(value)
        return click.IntRange(min=1).convert(value, param, ctx)


SHARE = Quantity("share", {"": 1.0, "%": 0.01}, "60%")
COUNT = Quantity("number", {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}, "70b", least=1e-9)

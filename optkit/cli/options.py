"""Options that several commands share, and how a declared command calls its function.

The modules in `optkit.cli.commands` declare commands and import only this module, so that --help is
fast. The work of a command is a function in another module of `optkit.cli`, named in `calls`. That
module, and the types of the function's arguments, are imported when the command runs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from pkgutil import resolve_name

import click

from optkit.errors import UsageError

Function = Callable[..., object]
Decorator = Callable[[Function], Function]

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def calls(place: str) -> Decorator:
    """A decorator: the command is the function `place`, "module:name". The decorated function gives
    the command its name and its help."""

    def decorate(declared: Function) -> Function:
        @functools.wraps(declared)
        def command(**given: object) -> object:
            return resolve_name(place)(**given)

        return command

    return decorate


def together(*parameters: Decorator) -> Decorator:
    """A decorator that gives a command these parameters, in this order."""

    def decorate(command: Function) -> Function:
        for parameter in reversed(parameters):
            command = parameter(command)
        return command

    return decorate


def filling(kind: str, name: str, *parameters: Decorator) -> Decorator:
    """A decorator that gives a command these parameters, each with the name of a field of the
    dataclass `kind` ("module:name"), and passes them to it as one object, `name`."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def filled(**given: object) -> object:
            build = resolve_name(kind)
            names = [field.name for field in fields(build) if field.name in given]
            values = {field: given.pop(field) for field in names}
            return function(**{name: build(**values)}, **given)

        return together(*parameters)(filled)

    return decorate


def parse_size(text: str, least: int = 1) -> int:
    """Bytes from "512M", "2GiB", "1073741824". Raises UsageError for less than `least`."""
    digits = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = digits[-1:] if digits[-1:] in _UNITS and digits else ""
    try:
        value = float(digits.removesuffix(unit)) * _UNITS[unit]
    except ValueError:
        value = -1
    if not least <= value < 2**63:
        raise UsageError(f"{text!r} is not a size", hint="write it like 512M or 2GiB")
    return int(value)


def _size(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    return None if value is None else parse_size(value)


_TIMES = {"": 1.0, "us": 1e-3, "ms": 1.0, "s": 1e3}
_SPANS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def scaled(text: str, units: dict[str, float], where: str, hint: str) -> float:
    """A number with one of these units as its suffix. Raises UsageError."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]*)", text.strip().lower())
    if found is None or found[2] not in units or not float(found[1]):
        raise UsageError(f"{text!r} is not a number with a known unit", where=where, hint=hint)
    return float(found[1]) * units[found[2]]


def milliseconds(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> float | None:
    """Milliseconds from "20ms", "0.5s", "20". Raises UsageError."""
    return None if value is None else scaled(value, _TIMES, "--latency", "write it like 20ms")


def seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Seconds from "90", "90s", "10m", "1.5h". Raises UsageError."""
    if value is None:
        return None
    return scaled(value, _SPANS, parameter.opts[0], "write it like 90s or 10m")


def _address(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    from optkit.execute.ray_cluster import checked  # loads logging

    return None if value is None else checked(value)


job = filling(
    "optkit.request:Request", "request",
    click.argument("model", required=False),
    click.option("--recipe", metavar="NAME|PATH", help="The recipe; default: the project's."),
    click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE",
                 help="Override a recipe value, e.g. gates.max_drop=1%."),
    click.option("--task", metavar="NAME",
                 help="Task of a Hugging Face model; default: that of its config.json."),
    click.option("--adapter", metavar="DIR",
                 help="A PEFT LoRA adapter, merged into a Hugging Face model."),
    click.option("--trust-remote-code", is_flag=True,
                 help="Run the Python code in the folder of a Hugging Face model."),
    click.option("--calibration", metavar="PATH|NAME",
                 help="Calibration data (text, arrays, a folder of pictures or "
                 "recordings) or a source."),
    click.option("--eval", "eval_task", metavar="NAME|FILE.py",
                 help="The evaluation task; its args: --set eval.args.KEY=VALUE."),
    click.option("--eval-data", metavar="PATH", help="The data for the evaluation task."),
    click.option("--shapes", metavar="NAME:AxBxC,...", help="Fixed input shapes."),
    click.option("--min-shapes", metavar="NAME:AxBxC,...", help="Smallest input shapes."),
    click.option("--opt-shapes", metavar="NAME:AxBxC,...", help="Shapes to tune for."),
    click.option("--max-shapes", metavar="NAME:AxBxC,...", help="Largest input shapes."),
)  # fmt: skip
"""MODEL, recipe, overrides and shapes: what is to be worked on."""

pair = together(
    click.option("--target", required=True, metavar="NAME", help="A device."),
    click.option("--precision", default="int8", show_default=True, metavar="NAME"),
)

new_folder = click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR",
                          help="Folder for the files; must not exist yet.")  # fmt: skip

targets = click.option(
    "--target", "targets", multiple=True, required=True, metavar="NAME",
    help="A device, see `optkit targets`; repeat for several.",
)  # fmt: skip

_WORK = (
    click.option("--cache", type=click.Path(path_type=Path), metavar="DIR",
                 help="The store; default $OPTKIT_CACHE or the user's cache folder."),
    click.option("--remote", metavar="URL",
                 help="Share finished steps with other machines through this remote, e.g. "
                 "s3://bucket/folder; default $OPTKIT_REMOTE, or none."),
    click.option("--memory", callback=_size, metavar="SIZE",
                 help="Memory limit of a step, e.g. 4G; default: half of the free memory."),
    click.option("--timeout", callback=seconds, metavar="TIME",
                 help="Time limit of a step, e.g. 10m; default 1h."),
)  # fmt: skip
_ON = click.option("--on", "executor", callback=_address, metavar="ray|ray://HOST:PORT",
                   help="Run the steps on the nodes of a Ray cluster.")  # fmt: skip

work = filling("optkit.workspace:Workspace", "workspace", *_WORK)
"""Cache, remote and limits: where and within which bounds."""

work_anywhere = filling("optkit.workspace:Workspace", "workspace", *_WORK, _ON)
"""The same, and --on: a cluster that does the work."""

strict = click.option(
    "--strict", is_flag=True,
    help="Exit 3 also for an inconclusive gate, a latency measured under bad conditions, and "
    "suspect calibration data.",
)  # fmt: skip
"""--strict: what is in doubt counts as failed."""

artifact = together(
    click.option("--out", type=click.Path(path_type=Path), default=Path("artifacts"),
                 show_default=True, metavar="DIR", help="Write the artifact to this folder."),
    strict,
)  # fmt: skip
"""--out, --strict: where an artifact goes, and how its gates end the command."""

junit = click.option("--junit", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
                     help="Write the gates as JUnit XML, a case each.")  # fmt: skip
"""--junit: the gates for a CI system."""

output = filling(
    "optkit.cli.terminal:Output", "output",
    click.option("--json", is_flag=True, help="Print one JSON object on stdout."),
    click.option("-q", "--quiet", is_flag=True, help="Show no progress."),
    click.option("-v", "--verbose", is_flag=True,
                 help="Show cache hits, every rewritten node, logs and tracebacks."),
)  # fmt: skip
"""--json, --quiet, --verbose."""

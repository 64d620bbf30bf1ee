"""Option groups that several commands share: each fills one typed object."""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from optkit.cli.terminal import Terminal
from optkit.errors import UsageError
from optkit.request import Request
from optkit.workspace import Workspace

if TYPE_CHECKING:
    from optkit.recipe import Recipe

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


@dataclass(frozen=True)
class Output:
    """How a command tells what it does: `json`, one object on stdout; `quiet`, no progress;
    `verbose`, cache hits, every rewritten node, logs and tracebacks."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False

    def terminal(self) -> Terminal:
        return Terminal(quiet=self.quiet, verbose=self.verbose)


def filling(kind: type, name: str, *parameters: Decorator) -> Decorator:
    """A decorator that gives a command these parameters, each called like a field of the dataclass
    `kind`, and passes them to it as one object, `name`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def filled(**given: Any) -> Any:
            names = [field.name for field in fields(kind) if field.name in given]
            own = {field: given.pop(field) for field in names}
            return function(**{name: kind(**own)}, **given)

        command: Callable[..., Any] = filled
        for parameter in reversed(parameters):
            command = parameter(command)
        return command

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
    """A number with one of these units behind it. Raises UsageError."""
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
    from optkit.execute.ray_cluster import checked

    return None if value is None else checked(value)


job = filling(
    Request, "request",
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


def targets(function: F) -> F:
    """--target, once or more often."""
    return click.option(
        "--target", "targets", multiple=True, required=True, metavar="NAME",
        help="A device, see `optkit targets`; repeat for several.",
    )(function)  # fmt: skip


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

work = filling(Workspace, "workspace", *_WORK)
"""Cache, remote and limits: where and within which bounds."""

work_anywhere = filling(Workspace, "workspace", *_WORK, _ON)
"""The same, and --on: a cluster that does the work."""


def artifact(function: F) -> F:
    """--out, --strict: where an artifact goes, and how its gates end the command."""
    for option in reversed(
        (
            click.option("--out", type=click.Path(path_type=Path), default=Path("artifacts"),
                         show_default=True, metavar="DIR",
                         help="Write the artifact to this folder."),
            strict,
        )
    ):  # fmt: skip
        function = option(function)
    return function


def strict(function: F) -> F:
    """--strict: what is in doubt counts as failed."""
    return click.option("--strict", is_flag=True,
                        help="Exit 3 also for an inconclusive gate, a latency measured under "
                        "bad conditions, and suspect calibration data.")(function)  # fmt: skip


def junit(function: F) -> F:
    """--junit: the gates for a CI system."""
    return click.option("--junit", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
                        help="Write the gates as JUnit XML, a case each.")(function)  # fmt: skip


output = filling(
    Output, "output",
    click.option("--json", is_flag=True, help="Print one JSON object on stdout."),
    click.option("-q", "--quiet", is_flag=True, help="Show no progress."),
    click.option("-v", "--verbose", is_flag=True,
                 help="Show cache hits, every rewritten node, logs and tracebacks."),
)  # fmt: skip
"""--json, --quiet, --verbose."""


def beside_a_model(request: Request) -> dict[str, str | bool | None]:
    """What was said of the model and its data beside MODEL and --set, by option."""
    return {
        "--recipe": None if request.recipe is None else str(request.recipe),
        "--task": request.task,
        "--adapter": request.adapter,
        "--trust-remote-code": request.trust_remote_code,
        "--calibration": request.calibration,
        "--eval": request.eval_task,
        "--eval-data": request.eval_data,
        "--shapes": request.shapes,
        "--min-shapes": request.min_shapes,
        "--opt-shapes": request.opt_shapes,
        "--max-shapes": request.max_shapes,
    }


def recipe(request: Request, workspace: Workspace, output: Output, *, dry: bool = False) -> Recipe:
    """The recipe that a request means. Shapes may need the model to be read, which is kept in the
    store, unless `dry`."""
    from optkit import api

    own = replace(workspace, executor=None)
    # a folder only where it is needed: a killed command leaves it behind
    with tempfile.TemporaryDirectory() if dry else nullcontext() as folder:
        if folder is not None:
            own = replace(own, cache=folder, remote="")
        with output.terminal() as terminal:
            return api.resolve(request, workspace=replace(own, listener=terminal))


def reporting(workspace: Workspace, terminal: Terminal) -> Workspace:
    """The workspace, whose steps are shown on the terminal."""
    from optkit.cli.terminal import keep_stdout

    if workspace.executor is not None:  # Ray prints there, and so may its daemons
        keep_stdout()
    return replace(workspace, listener=terminal)

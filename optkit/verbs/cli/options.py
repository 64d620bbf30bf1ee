"""Options that several commands share, and how a declared command calls its function.

The modules in `optkit.cli.commands` declare commands and import only this module and `param_types`,
so that --help is fast. The work of a command is a function in another module of `optkit.cli`, named
in `api_calls`. That module, and the types of the function's arguments, are imported when the
command runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import click

from optkit.verbs.cli import param_types

Function = Callable[..., object]
Decorator = Callable[[Function], Function]

HEADINGS = ("Model", "Other tools", "Data", "Shapes", "Decoder", "Sampling",
             "Speculative decoding", "Target", "Search", "Limits", "Serving", "Cost",
             "Where it runs", "Output")  # fmt: skip
"""The headings of options in help, in this order."""

_heading_of: dict[click.Parameter, str] = {}


def heading(parameter: click.Parameter) -> str:
    """The heading under which help shows an option."""
    return _heading_of.get(parameter, "Output")


class _WithExamples(click.Command):
    """A command whose examples, the lines of the epilog, come last in its help."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.epilog:
            lines = self.epilog.splitlines()
            with formatter.section("Examples" if len(lines) > 1 else "Example"):
                for line in lines:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class CommandGroup(_WithExamples, click.Group):
    """Commands under one name."""


class Command(_WithExamples):
    """A command whose help has its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {name: [] for name in HEADINGS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, click.Option) and record is not None:
                rows[heading(parameter)].append(record)
        shown = [name for name in HEADINGS if rows[name]]
        for name in shown:
            with formatter.section(name if len(shown) > 1 else "Options"):
                formatter.write_dl(rows[name])


def command(*examples: str, name: str | None = None) -> Callable[[Function], click.Command]:
    """A decorator: the function is a command, with these lines as examples in its help."""
    return click.command(name, cls=Command, epilog="\n".join(examples))


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


def under(heading: str, *parameters: Decorator) -> Decorator:
    """A decorator that gives a command these options, which help shows under this heading."""

    def decorate(command: Function) -> Function:
        for parameter in reversed(parameters):
            command = parameter(command)
            _heading_of[vars(command)["__click_params__"][-1]] = heading
        return command

    return decorate


def option_under(heading: str, *names: str, **settings: Any) -> Decorator:
    """A decorator that gives a command this option, which help shows under this heading."""
    return under(heading, click.option(*names, **settings))


def filling(kind: str, name: str, *parameters: Decorator) -> Decorator:
    """A decorator that gives a command these parameters, each with the name of a field of the
    dataclass `kind` ("module:name"). The command gets them as one object, `name`."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def filled(**given: object) -> object:
            build = resolve_name(kind)
            names = [field.name for field in fields(build) if field.name in given]
            values = {field: given.pop(field) for field in names}
            return function(**{name: build(**values)}, **given)

        return together(*parameters)(filled)

    return decorate


def _address(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    from optkit.ground.execute.ray_cluster import checked  # loads logging

    return None if value is None else checked(value)


job = filling(
    "optkit.facts.request:Request", "request",
    click.argument("model", required=False, type=param_types.FILE),
    under(
        "Model",
        click.option("--recipe", type=param_types.RECIPE, metavar="NAME|PATH",
                     help="The recipe; default: the project's."),
        click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE",
                     help="Override a recipe value, e.g. gates.max_drop=1%."),
        click.option("--task", metavar="NAME",
                     help="Task of a Hugging Face model; default: that of its config.json."),
        click.option("--adapter", type=param_types.FILE, metavar="DIR",
                     help="A PEFT LoRA adapter, merged into a Hugging Face model."),
        click.option("--trust-remote-code", "--trust", "trust_remote_code", is_flag=True,
                     help="Run the Python code in the folder of a Hugging Face model, or that of "
                     "a graph's library of operators (model.custom_ops)."),
    ),
    under(
        "Data",
        click.option("--calibration", type=param_types.SOURCE, metavar="PATH|NAME",
                     help="Calibration data (text, arrays, a folder of pictures or "
                     "recordings) or a source."),
        click.option("--calib", "ranges", type=param_types.FILE, metavar="FILE",
                     help="Ranges of activations that another tool has chosen: a calibration "
                     "cache of TensorRT or encodings of AIMET."),
        click.option("--eval", "eval_task", type=param_types.TASK, metavar="NAME|FILE.py",
                     help="The evaluation task; its args: --set eval.args.KEY=VALUE."),
        click.option("--eval-data", type=param_types.FILE, metavar="PATH",
                     help="The data for the evaluation task."),
    ),
    under(
        "Shapes",
        click.option("--shapes", metavar="NAME:AxBxC,...", help="Fixed input shapes."),
        click.option("--min-shapes", metavar="NAME:AxBxC,...", help="Smallest input shapes."),
        click.option("--opt-shapes", metavar="NAME:AxBxC,...", help="Shapes to tune for."),
        click.option("--max-shapes", metavar="NAME:AxBxC,...", help="Largest input shapes."),
    ),
)  # fmt: skip
"""MODEL, recipe, overrides and shapes: the model to work on."""

other_tools = filling(
    "optkit.satellites.translation:ToolCommand",
    "command",
    under(
        "Other tools",
        click.option(
            "--trtexec",
            metavar="'FLAGS'",
            help="Flags of trtexec 10 or 11, translated into options of optkit.",
        ),
        click.option(
            "--ultralytics", metavar="'ARGUMENTS'", help="The same for arguments of `yolo export`."
        ),
        click.option(
            "--modelopt",
            metavar="'OPTIONS'",
            help="The same for options of `python -m modelopt.onnx.quantization`.",
        ),
    ),
)
"""The command of another tool, which is translated."""

one_target = option_under(
    "Target",
    "-t",
    "--target",
    required=True,
    type=param_types.DEVICE,
    help="A device, see `optkit targets`.",
)
"""--target, for one device."""

pair = together(
    one_target,
    option_under(
        "Target",
        "-p",
        "--precision",
        default="int8",
        show_default=True,
        type=param_types.PRECISION,
        help="The precision, such as int8 or fp16.",
    ),
)
"""--target and --precision, for one of each."""

targets = option_under(
    "Target",
    "-t",
    "--target",
    "targets",
    multiple=True,
    required=True,
    metavar="NAME,...",
    type=param_types.Several(param_types.DEVICE),
    callback=param_types.joined,
    help="Devices, see `optkit targets`; a list, or the option several times.",
)
"""--target, for one or several devices."""


def precisions(text: str, default: tuple[str, ...] = ()) -> Decorator:
    """--precision, for one or several precisions; `text` is its help."""
    return option_under(
        "Target",
        "-p",
        "--precision",
        "precisions",
        multiple=True,
        metavar="NAME,...",
        default=default,
        show_default=bool(default),
        type=param_types.Several(param_types.PRECISION),
        callback=param_types.joined,
        help=text,
    )


def batches(text: str) -> Decorator:
    """--batch, for one or several batch sizes; `text` is its help."""
    return option_under(
        "Shapes",
        "--batch",
        "batches",
        multiple=True,
        metavar="N,...",
        type=param_types.Several(click.IntRange(min=1)),
        callback=param_types.joined,
        help=text,
    )


latency = functools.partial(click.option, "--latency", "limit_ms", type=param_types.Milliseconds())

out = functools.partial(click.option, "-o", "--out", type=click.Path(path_type=Path))

new_folder = out(required=True, metavar="DIR", help="Folder for the files; must not exist yet.")

store = functools.partial(
    click.option,
    "--cache",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The store; default $OPTKIT_CACHE or the user's cache folder.",
)

_PLACE = (
    store(),
    click.option(
        "--remote",
        metavar="URL",
        help="Share finished steps with other machines through this remote, e.g. "
        "s3://bucket/folder; default $OPTKIT_REMOTE, or none.",
    ),
)
_BOUNDS = under(
    "Limits",
    click.option(
        "--memory",
        type=param_types.Size(),
        help="Memory of a step, e.g. 4G (without a unit: bytes); default: half of the free memory.",
    ),
    click.option(
        "--timeout",
        type=param_types.Seconds(),
        help="Time of a step, e.g. 10m (without a unit: seconds); default 1h, but 12h "
        "for a compiler that times kernels on the device.",
    ),
)
_FRESH = click.option(
    "--fresh", is_flag=True, help="Run your code although what it `depends` on is unchanged."
)
_ON = click.option(
    "--on",
    "executor",
    callback=_address,
    metavar="ray|ray://HOST:PORT",
    help="Run the steps on the nodes of a Ray cluster.",
)

_WORK = ("optkit.ground.workspace:Workspace", "workspace", _BOUNDS)
work = filling(*_WORK, under("Where it runs", *_PLACE, _FRESH))
"""Cache, remote and limits."""

work_anywhere = filling(*_WORK, under("Where it runs", *_PLACE, _FRESH, _ON))
"""The same, --fresh, and --on: a cluster that runs the steps."""

strict = option_under(
    "Limits",
    "--strict",
    is_flag=True,
    help="Exit 3 also for an inconclusive gate, a latency measured under bad conditions, and "
    "suspect calibration data.",
)
"""--strict: a doubtful result counts as failed."""

artifact = together(
    out(
        default=Path("artifacts"),
        show_default=True,
        metavar="DIR",
        help="Write the artifact to this folder.",
    ),
    strict,
)
"""--out, --strict: the folder of the artifact, and the exit code of undecided gates."""

junit = click.option(
    "--junit", type=param_types.NewFile(), help="Write each gate as a test case, in JUnit XML."
)
"""--junit: the gates for a CI system."""

html = click.option(
    "--html",
    type=param_types.NewFile(),
    help="Also write it as a page: one file that loads no other.",
)
"""--html: the result as a page."""

output = filling(
    "optkit.verbs.cli.command_output:Output",
    "output",
    click.option("--json", is_flag=True, help="Print one JSON object on stdout."),
    click.option("-q", "--quiet", is_flag=True, help="Show no progress."),
    click.option(
        "-v",
        "--verbose",
        is_flag=True,
        help="Show cache hits, every rewritten node, logs and tracebacks.",
    ),
)
"""--json, --quiet, --verbose."""

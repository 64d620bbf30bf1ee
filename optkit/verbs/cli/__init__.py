"""The command line. A command parses its arguments, calls the API and prints. Results go to stdout,
everything else to stderr."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
from pathlib import Path
from pkgutil import resolve_name
from types import FrameType
from typing import NoReturn

import click
from click.core import ParameterSource

from optkit.facts.errors import OptkitError, UsageError
from optkit.verbs.cli.command_output import keep_stderr, put_json, show_error, told_as
from optkit.verbs.cli.commands import artifact_use, builds, estimates, this_host

_GROUP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=_GROUP)
@click.version_option(package_name="optkit", message="%(prog)s %(version)s")
def optkit() -> None:
    """Turn a trained PyTorch model into a verified deploy artifact for the GPU or CPU you name.

    \b
    optkit build -t l4 -p int8,fp8                 build artifacts
    optkit targets                                 the devices it knows
    optkit inspect artifacts/digits-vit-l4-int8    what an artifact holds

    Exit codes: 0 ok, 1 bug, 2 usage, 3 gate failed, 4 target or toolchain missing, 5 input refused,
    6 native crash, timeout or out of memory, 7 integrity, 8 disk or IO, 130/143 signals.
    """


for command in (
    builds.build,
    builds.finish,
    builds.tune,
    estimates.plan,
    builds.export,
    builds.fuse,
    builds.quantize,
    builds.compile_,
    estimates.bench,
    estimates.eval_,
    artifact_use.generate,
    this_host.monitor,
    artifact_use.inspect,
    artifact_use.explain,
    artifact_use.diff,
    artifact_use.package,
    artifact_use.sign,
    artifact_use.verify,
    artifact_use.attest,
    this_host.targets,
    this_host.devices,
    this_host.doctor,
    this_host.completion,
    this_host.schema,
    this_host.mcp,
    this_host.cache,
    this_host.init,
):
    optkit.add_command(command)

_FAILED = {
    "build": "optkit.show.report.build_result:failed",
    "tune": "optkit.satellites.tuning.tune_document:failed",
    "plan": "optkit.verbs.api._plan:failed",
}
"""Commands that print their result object also after a failure → the function that writes it from
an error."""


def main(argv: list[str] | None = None) -> NoReturn:
    """Entry point of the `optkit` command. Always exits, with the documented codes."""
    _received.clear()
    signal.signal(signal.SIGTERM, _stopped)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may ignore it
        signal.signal(signal.SIGINT, _stopped)
    # Imports and results create objects that live to the end. Looking for cycles in them after
    # every 700 is 7 % of the time of a build that finds every step in the store.
    gc.set_threshold(50_000)
    argv = sys.argv[1:] if argv is None else argv
    sys.exit(_run(argv))


def _run(argv: list[str]) -> int:
    keep_stderr()
    verbose = "--verbose" in argv or "-v" in argv
    try:
        code = optkit.main(args=argv, prog_name="optkit", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as asked:
        return asked.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        sys.stderr.write(f"{error.format_message()}\n")
        return UsageError.exit_code
    except click.UsageError as error:
        told: OptkitError = _usage(error)
    except (KeyboardInterrupt, click.Abort):
        return _ended_by(signal.SIGINT)
    except Exception as error:
        if _received:  # numpy, for one, turns it into an ImportError while it is imported
            return _ended_by(_received[0])
        told = told_as(error, verbose=verbose)
    show_error(told, verbose=verbose)
    if "--json" in argv and told.where != "stdout":
        with contextlib.suppress(OptkitError):  # the first error decides
            _put_failure(argv[0], told)
    return told.exit_code


def _put_failure(command: str, error: OptkitError) -> None:
    """Print the JSON object of a command that failed: its result object if it has one, otherwise
    only the error."""
    if command in _FAILED:
        put_json(resolve_name(_FAILED[command])(error))
    else:
        from optkit.facts.documents.result import ERROR, FailedCommand, StepFailure

        failure = StepFailure.from_object(error)
        put_json(FailedCommand(schema=ERROR, status="error", error=failure))


def _usage(error: click.UsageError) -> UsageError:
    """What is wrong on the command line. Of a command without target, model and recipe the model is
    told: nothing can be built of a target."""
    missing = error.param if isinstance(error, click.MissingParameter) else None
    if missing is not None and "--target" in missing.opts:
        hint = "name the device, e.g. -t l4 or -t cpu; `optkit targets` lists the devices"
        if error.ctx is None or _names_a_model(error.ctx):
            return UsageError(error.format_message(), hint=hint)
        from optkit.ground.recipe.resolution import BEGINNINGS  # loads pydantic

        problem = "no model, no recipe and no --target"
        return UsageError(problem, where="command line", hint=f"{BEGINNINGS}\n{hint}")
    hint = f"see `{error.ctx.command_path} --help`" if error.ctx else "see `optkit --help`"
    return UsageError(error.format_message(), hint=hint)


def _names_a_model(context: click.Context) -> bool:
    """Whether the command line names what to build, or the project does. Also true for a command
    that builds nothing."""
    from optkit.ground import places

    named = ("model", "recipe", "trtexec", "ultralytics", "modelopt")
    given = (context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in named)
    if "recipe" not in context.params or any(given):
        return True
    try:
        return places.default_recipe(Path.cwd()) is not None
    except OptkitError:  # of a pyproject.toml that names one
        return True


def _ended_by(number: int) -> int:
    """The exit code of a command that a signal ended."""
    if number == signal.SIGINT:
        sys.stderr.write("interrupted; finished steps are kept: run the same command to continue\n")
    return 128 + number


_received: list[int] = []
"""The signals that asked this command to end."""


def _stopped(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)

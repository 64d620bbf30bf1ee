"""Commands about this host, its programs and its files: `targets`, `devices`, `doctor`, `monitor`,
`init`, `cache`."""

from __future__ import annotations

from pathlib import Path

import click

from optkit.cli import options


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@options.calls("optkit.cli.hardware:targets")
def targets() -> None:
    """List the devices that optkit knows; with NAME, one device, each figure with its source."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@options.calls("optkit.cli.hardware:devices")
def devices() -> None:
    """List the GPUs and the CPU of this machine, and the targets that they match."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@options.calls("optkit.cli.hardware:doctor")
def doctor() -> None:
    """Check what is installed and usable here; exit 4 when nothing can be built."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--pid", type=click.IntRange(min=1), metavar="N", help="Watch this process instead.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="With --pid: for how long; default until it ends, or until Ctrl-C.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Length of a sample in seconds.",
)
@options.output
@options.calls("optkit.cli.monitor:monitor")
def monitor() -> None:
    """Run COMMAND and say what limits it: its CPU, its disk, its GPU, or nothing.

    \b
    optkit monitor -- python train.py

    The command keeps its standard streams and gets the signals that optkit gets; optkit exits with
    its exit code. The verdict goes to stderr. With --json one object goes to stdout, and the
    command's stdout goes to stderr.
    """  # fmt: skip


@click.command()
@click.argument("model")
@click.option("--weights", metavar="FILE", help="A safetensors file for what the factory returns.")
@click.option("--calibration", metavar="PATH|NAME", help="Calibration data, or a source.")
@click.option("--eval", "evaluation", metavar="NAME|FILE.py", help="The evaluation task.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("optkit.yaml"),
    show_default=True,
    help="The recipe to write.",
)
@options.calls("optkit.cli.content:init")
def init() -> None:
    """Write a commented recipe for MODEL (model.onnx, model.pt2 or file.py:factory).

    The input names come from `forward`, which is read from the file without running it. The command
    looks for weights in the folder of the model. A recipe with the name optkit.yaml is the default
    recipe of its folder.
    """


@click.group()
def cache() -> None:
    """Manage the store of finished steps: list, verify, trim, clear."""


_folder = click.option(
    "--cache",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The store; default $OPTKIT_CACHE or the user's cache folder.",
)


@cache.command("ls")
@_folder
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@options.calls("optkit.cli.cache:ls")
def ls() -> None:
    """List the entries: step, size, last use."""


@cache.command("verify")
@_folder
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@options.calls("optkit.cli.cache:verify")
def verify() -> None:
    """Verify every entry. A corrupt one moves to quarantine (exit 7); a build makes it again."""


@cache.command("gc")
@_folder
@click.option(
    "--max-size",
    default="10G",
    show_default=True,
    metavar="SIZE",
    callback=lambda c, p, v: options.parse_size(v),
    help="Largest size of the store.",
)
@options.calls("optkit.cli.cache:gc")
def gc() -> None:
    """Remove abandoned work, quarantine, and the least recently used entries beyond --max-size.

    Entries that were used within the last hour, or that a running command uses, stay.
    """


@cache.command("clear")
@_folder
@click.option(
    "--step",
    metavar="NAME",
    help="Only the results of this step, e.g. bench, so that latencies are measured again.",
)
@options.calls("optkit.cli.cache:clear")
def clear() -> None:
    """Remove everything in the store that no running command uses."""

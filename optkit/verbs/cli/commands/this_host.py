"""Commands about this host, its programs and its files: `targets`, `devices`, `doctor`,
`completion`, `schema`, `mcp`, `monitor`, `init`, `cache`."""

from __future__ import annotations

from pathlib import Path

import click

from optkit.verbs.cli import options, param_types


@options.command("optkit targets", "optkit targets l4")
@click.argument("name", required=False, type=param_types.DEVICE)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@options.calls("optkit.verbs.cli.hardware:targets")
def targets() -> None:
    """List the devices that optkit knows; with NAME, one device, each figure with its source."""


@options.command("optkit devices", "optkit devices --measure --share l4.json")
@click.option(
    "--measure", is_flag=True, help="Time kernels on the first GPU; at most about two minutes."
)
@click.option(
    "--share",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --measure: write the times there too, for the maintainers of optkit.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@options.calls("optkit.verbs.cli.hardware:devices")
def devices() -> None:
    """List the GPUs and the CPU of this machine, and the targets that they match.

    With --measure, products, convolutions, attention and copies run on the first GPU, through torch
    or ONNX Runtime. Their times are kept in $OPTKIT_CONFIG or the user's configuration folder, and
    `plan`, `build` and `tune` predict this card from them. The shared file has sizes, times, the
    names of the card and the versions of driver and library, and nothing else.
    """


@options.command("optkit doctor", "optkit doctor quantized.onnx -t l4 --repaired repaired.onnx")
@options.job
@options.option_under(
    "Model",
    "--float",
    "float_model",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The ONNX file from which MODEL was quantized; default: MODEL without Q/DQ.",
)
@options.option_under(
    "Target",
    "-t",
    "--target",
    default="l4",
    show_default=True,
    type=param_types.DEVICE,
    help="The device for which MODEL is compiled.",
)
@click.option(
    "--repaired",
    "out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the repaired graph to this new file.",
)
@options.work
@options.output
@options.calls("optkit.verbs.cli.hardware:doctor")
def doctor() -> None:
    """Check what is installed and usable here; exit 4 when nothing can be built.

    With MODEL, an ONNX graph that another tool has quantized: which tool, what it asks for, what
    would land on the target before and after the repairs that TensorRT needs, and what the repairs
    change.
    """


@options.command(
    "optkit completion bash > ~/.local/share/bash-completion/completions/optkit",
    'optkit completion zsh > "${fpath[1]}/_optkit"',
    "optkit completion fish > ~/.config/fish/completions/optkit.fish",
)
@click.argument("shell", type=param_types.OneOf(["bash", "zsh", "fish"]))
@options.calls("optkit.verbs.cli.hardware:completion")
def completion() -> None:
    """Print the script that completes optkit's commands, options and names in SHELL.

    The lines below install it for new shells (for bash: once the folder exists). To try it in this
    shell: eval "$(optkit completion bash)".
    """


@options.command("optkit mcp")
@options.work
@options.calls("optkit.verbs.cli.mcp:serve")
def mcp() -> None:
    """Serve targets, plan, build, explain, inspect and diff as tools for agents, over stdin and
    stdout (Model Context Protocol).

    The tools have your rights: like the command line they read and write files, and run the Python
    code of a model. Needs the extra mcp.
    """


@options.command("optkit schema recipe > recipe.schema.json", "optkit schema result")
@click.argument(
    "name", required=False, metavar="[NAME]", type=param_types.Name("optkit.verbs.cli.schema:names")
)
@options.calls("optkit.verbs.cli.schema:schema")
def schema() -> None:
    """Print the JSON schema of the document NAME, or of a recipe; without NAME, list the names.

    An editor that knows the schema of a recipe completes its keys and marks mistakes: write
    "# yaml-language-server: $schema=recipe.schema.json" as its first line.
    """


@click.command(
    cls=options.Command,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="optkit monitor -- python train.py\noptkit monitor --pid 1234 --seconds 10m",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--pid", type=click.IntRange(min=1), metavar="N", help="Watch this process instead.")
@click.option(
    "--seconds",
    type=param_types.Seconds(),
    help="With --pid: for how long, e.g. 10m (without a unit: seconds); default until it ends, or "
    "until Ctrl-C.",
)
@click.option(
    "--interval",
    type=param_types.Seconds(least=0.1, example="1s, at least 0.1s"),
    default="1s",
    show_default=True,
    help="Length of a sample (without a unit: seconds).",
)
@options.output
@options.calls("optkit.verbs.cli.monitor:monitor")
def monitor() -> None:
    """Run COMMAND and say what limits it: its CPU, its disk, its GPU, or nothing.

    The command keeps its standard streams and gets the signals that optkit gets; optkit exits with
    its exit code. The verdict goes to stderr. With --json one object goes to stdout, and the
    command's stdout goes to stderr.
    """


@options.command(
    "optkit init model.py:create",
    "optkit init model.onnx --trtexec '--fp16 --optShapes=image:8x3x224x224'",
)
@click.argument("model", required=False, type=param_types.FILE)
@click.option(
    "--weights",
    type=param_types.FILE,
    metavar="FILE",
    help="A safetensors file for what the factory returns.",
)
@click.option(
    "--calibration",
    type=param_types.SOURCE,
    metavar="PATH|NAME",
    help="Calibration data, or a source.",
)
@click.option(
    "--eval",
    "evaluation",
    type=param_types.TASK,
    metavar="NAME|FILE.py",
    help="The evaluation task.",
)
@options.out(default=Path("optkit.yaml"), show_default=True, help="The recipe to write.")
@options.other_tools
@options.calls("optkit.verbs.cli.content:init")
def init() -> None:
    """Write a commented recipe for MODEL (model.onnx, model.pt2 or file.py:factory). The command of
    another tool may name MODEL too.

    The inputs come from the .onnx file, with dtypes, shapes and names of dynamic axes; for Python,
    the names come from the `forward` of the class that the factory returns, which is read from the
    file without running it. What is guessed is marked in the recipe. The command looks
    for weights in the folder of the model. A recipe with the name optkit.yaml is the default recipe
    of its folder.
    """


@click.group(
    cls=options.CommandGroup,
    epilog="optkit cache ls\noptkit cache gc --max-size 20G\noptkit cache clear --step bench",
)
def cache() -> None:
    """Manage the store of finished steps: list, verify, trim, clear."""


_folder = options.store("folder")


@cache.command("ls")
@_folder
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@options.calls("optkit.verbs.cli.cache:ls")
def ls() -> None:
    """List the entries: step, size, last use."""


@cache.command("verify")
@_folder
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@options.calls("optkit.verbs.cli.cache:verify")
def verify() -> None:
    """Verify every entry. A corrupt one moves to quarantine (exit 7); a build makes it again."""


@cache.command("gc")
@_folder
@click.option(
    "--max-size",
    default="10G",
    show_default=True,
    type=param_types.Size(),
    help="Largest size of the store (without a unit: bytes).",
)
@options.calls("optkit.verbs.cli.cache:gc")
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
@options.calls("optkit.verbs.cli.cache:clear")
def clear() -> None:
    """Remove everything in the store that no running command uses."""

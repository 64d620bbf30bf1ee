"""Commands that write artifacts, or the files of one stage of a build: `build`, `finish`, `tune`,
`export`, `fuse`, `quantize`, `compile`."""

from __future__ import annotations

from pathlib import Path

import click

from optkit.facts.precisions import PRECISIONS
from optkit.verbs.cli import options, param_types

_PRECISIONS = " or ".join(", ".join(PRECISIONS).rsplit(", ", 1))


@options.command(
    "optkit build -t l4 -p int8,fp8",
    "optkit build model.py:create -t l4,h100 -p int8 -o artifacts",
    "optkit build model.onnx -t l4 --trtexec '--fp16 --optShapes=image:8x3x224x224'",
)
@options.job
@options.other_tools
@options.targets
@options.precisions(
    f"{_PRECISIONS}; a list, or the option several times. "
    "Default: that of the other tool's command or graph, else int8."
)
@options.artifact
@options.option_under(
    "Where it runs",
    "--defer",
    is_flag=True,
    help="Do not compile or measure here; `optkit finish` does it on a host with the device.",
)
@click.option(
    "--dry-run", is_flag=True, help="Show steps, cache hits and estimates; write nothing."
)
@click.option(
    "--embed-eval",
    default="0",
    type=param_types.Size(least=0),
    help="Put the evaluation samples, with their labels, into the artifact if they are not larger "
    "than this (without a unit: bytes). Default: none.",
)
@click.option(
    "--embed-pictures",
    is_flag=True,
    help="Draw the up to six samples on which a detector or a segmentation loses most into the "
    "report, as small pictures with their annotations. Default: figures only.",
)
@options.junit
@options.work_anywhere
@options.output
@options.calls("optkit.verbs.cli.build:build")
def build() -> None:
    """Build a verified artifact of MODEL for each target and precision.

    MODEL: model.onnx, model.pt2, file.py:factory, package.module:factory, a Hugging Face folder or
    org/name. Without it: --recipe, else the project's default recipe (optkit.yaml, or
    [tool.optkit] recipe in pyproject.toml).
    """


@options.command(
    "optkit finish artifacts/digits-vit-l4-int8",
    "optkit finish artifacts/my-llama-l4-int4 --eval perplexity --eval-data held-out.txt",
)
@click.argument("artifact", type=click.Path(path_type=Path))
@options.under(
    "Data",
    click.option(
        "--eval",
        "task",
        type=param_types.TASK,
        metavar="NAME|FILE.py",
        help="A task with its samples, instead of those of the build.",
    ),
    click.option(
        "--eval-data",
        "data",
        type=click.Path(exists=True, path_type=Path),
        metavar="PATH",
        help="The data for this task.",
    ),
    click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Another arg of this task, e.g. eval.args.length=512.",
    ),
)
@options.strict
@options.junit
@options.work
@options.output
@options.calls("optkit.verbs.cli.finish:finish")
def finish() -> None:
    """Complete ARTIFACT on this machine, which has its device: compile what is pending, measure
    latency and accuracy, check the gates again. It replaces the artifact in one operation.

    Accuracy is scored on the samples in ARTIFACT, or on those that the store has of its build. If
    neither has them, name a task with --eval.
    """


_budget = options.under(
    "Limits",
    click.option("--max-drop", metavar="PERCENT",
                 help="Limit on the drop of the metric, e.g. 0.5%."),
    click.option("--min-sqnr", metavar="DB", help="Limit on the SQNR of the outputs, e.g. 40."),
    click.option("--max-latency", type=param_types.Milliseconds(),
                 help="Limit at the tuned batch, e.g. 1.5ms (without a unit: milliseconds)."),
    click.option("--max-size", type=param_types.Size(),
                 help="Limit on the size of the engine, e.g. 20M (without a unit: bytes)."),
)  # fmt: skip

_search = options.under(
    "Search",
    click.option("--trials", type=click.IntRange(min=1), metavar="N",
                 help="Candidates to try at most; default: 24."),
    click.option("--time", "seconds", type=param_types.Seconds(),
                 help="Stop the search after this time, e.g. 10m (without a unit: seconds); the "
                 "best candidate is then built."),
    click.option("--seed", type=int, default=0, show_default=True, metavar="S",
                 help="The seed of the search."),
    click.option("--parallel", type=click.IntRange(min=1), metavar="K",
                 help="With --on: trials at a time; default: the cluster's cores, at most "
                 "--trials / 4."),
)  # fmt: skip


@options.command("optkit tune -t l4 --max-drop 0.5%", "optkit tune -t cpu -p int8,int4 --time 10m")
@options.job
@options.one_target
@options.precisions(
    "Precisions that layers may have besides the carrier; a list, or the option several times.",
    default=("int8",),
)
@_budget
@_search
@options.artifact
@options.work_anywhere
@options.output
@options.calls("optkit.verbs.cli.tune:tune")
def tune() -> None:
    """Find the fastest assignment of precisions to the layers of MODEL within a budget.

    Limits that are not given are those of the recipe's gates. The search builds the best candidate
    and writes its recipe and the Pareto front next to it. To continue a search, run it again.
    """


@options.command("optkit export model.py:create -o graph")
@options.job
@options.new_folder
@options.work
@options.output
@options.calls("optkit.verbs.cli.stage_commands:export")
def export() -> None:
    """Export MODEL to ONNX (opset 21 or newer), and compare its outputs with those of MODEL."""


@options.command("optkit fuse model.onnx -o fused")
@options.job
@options.new_folder
@options.work
@options.output
@options.calls("optkit.verbs.cli.stage_commands:fuse")
def fuse() -> None:
    """Fuse the graph of MODEL into its `standard` form, and log each rule applied or declined.

    Each rule has a line, and each reason for declining; --verbose and --json name every node.
    """


@options.command("optkit quantize -t l4 -p int8 -o quantized")
@options.job
@options.pair
@options.new_folder
@options.strict
@options.work
@options.output
@options.calls("optkit.verbs.cli.stage_commands:quantize")
def quantize() -> None:
    """Quantize MODEL to a Q/DQ graph, by the placement rules of the target's backend."""


@options.command("optkit compile -t l4 -p fp16 -o engine", name="compile")
@options.job
@options.pair
@options.new_folder
@options.work
@options.output
@options.calls("optkit.verbs.cli.stage_commands:compile_")
def compile_() -> None:
    """Compile MODEL to an engine for the target, and list its fused layers and landing."""

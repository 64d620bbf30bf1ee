"""Commands that give figures and write no artifact: `plan`, `bench`, `eval`."""

from __future__ import annotations

from pathlib import Path

import click

from optkit.cli import options

_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def _count(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Parameters from "70b", "1.1B", "350M". Raises UsageError."""
    return (
        None if value is None else options.scaled(value, _SCALES, "--params", "write it like 70b")
    )


_SIZE = click.IntRange(min=1)
_sizes = options.filling(
    "optkit.cli.plan:Sizes", "sizes",
    click.option("--params", callback=_count, metavar="N",
                 help="Plan a decoder without a model: its parameters, e.g. 70b; needs --layers, "
                 "--kv-heads, --head-dim."),
    click.option("--layers", type=_SIZE, metavar="N", help="Decoder layers."),
    click.option("--kv-heads", type=_SIZE, metavar="N", help="Heads of keys and values."),
    click.option("--head-dim", type=_SIZE, metavar="N", help="Width of a head."),
    click.option("--heads", type=_SIZE, metavar="N",
                 help="Query heads; default: computed from the other sizes."),
    click.option("--hidden", type=_SIZE, metavar="N",
                 help="Width of a layer; default: computed from the other sizes."),
    click.option("--vocab", type=_SIZE, metavar="N", help="Size of the vocabulary; default 32000."),
    click.option("--tied", is_flag=True,
                 help="The embedding and the vocabulary projection are one table."),
)  # fmt: skip


@click.command()
@options.job
@options.targets
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    metavar="NAME",
    help="Repeat for several; default: those of fp16, int8, fp8, int4 that the target has.",
)
@click.option(
    "--batch",
    "batches",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="N",
    help="Repeat for several; default: 1, 8, 64.",
)
@_sizes
@click.option(
    "--prompt",
    type=click.IntRange(min=1),
    default=1024,
    show_default=True,
    metavar="TOKENS",
    help="For a decoder: tokens read per sequence.",
)
@click.option(
    "--new",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    metavar="TOKENS",
    help="For a decoder: tokens written per sequence.",
)
@click.option(
    "--latency",
    "limit_ms",
    callback=options.milliseconds,
    metavar="TIME",
    help="Limit for one call (for a decoder: one token), e.g. 20ms.",
)
@click.option(
    "--throughput",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="Needed samples per second (for a decoder: written tokens).",
)
@click.option(
    "--prices",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="YAML with your prices: l4: {usd_per_hour, provider, as_of}.",
)
@click.option(
    "--train",
    "methods",
    multiple=True,
    type=click.Choice(["full", "lora", "qlora"]),
    help="Also predict the memory of training; repeat for several.",
)
@click.option(
    "--estimate",
    type=click.Choice(["itemised", "quick"]),
    default="itemised",
    show_default=True,
    help="quick: training memory by a rule of thumb, seven times the weights.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a roofline plot, .html or .svg.",
)
@options.work
@options.output
@options.calls("optkit.cli.plan:plan")
def plan() -> None:
    """Predict latency, memory and cost of MODEL on each target, and what would help.

    Every figure is predicted, with an interval; docs/plan.md has the errors of past predictions.
    """


@click.command()
@options.job
@click.option("--target", metavar="NAME", help="A device; not with --against.")
@click.option("--precision", metavar="NAME", help="Default: int8.")
@click.option(
    "--batch",
    "batches",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="N",
    help="Repeat for several; default: the recipe's, or with --against the tuned batch.",
)
@click.option(
    "--latency",
    "limit_ms",
    callback=options.milliseconds,
    metavar="TIME",
    help="Name the best batch within this limit for one call, e.g. 20ms.",
)
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="ARTIFACT",
    help="Compare MODEL, an artifact, with this artifact; both are timed in one run.",
)
@click.option(
    "--max-slowdown",
    metavar="SHARE",
    help="With --against: exit 3 if the whole interval is beyond this limit, e.g. 5%.",
)
@options.strict
@options.junit
@click.option(
    "--trusted",
    is_flag=True,
    help="With --against: open engines from another machine; only if you know the author.",
)
@options.work
@options.output
@options.calls("optkit.cli.bench:bench")
def bench() -> None:
    """Measure the latency of MODEL and its baseline; predict it for a target that is not here.

    \b
    optkit bench --target cpu --batch 1 --batch 8 --batch 32     a sweep, and its knee
    optkit bench new/ --against old/ --max-slowdown 5%           a check for CI
    """


@click.command("eval")
@options.job
@options.pair
@options.strict
@options.junit
@options.work
@options.output
@options.calls("optkit.cli.stages:eval_")
def eval_() -> None:
    """Measure task score, drop against the baseline and fidelity to FP32, and check their gates.

    With --set eval.stop_early=true it stops before the last sample, once the verdict is certain.
    """

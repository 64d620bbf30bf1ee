"""Commands that give figures and write no artifact: `plan`, `bench`, `eval`."""

from __future__ import annotations

from pathlib import Path

import click

from optkit.verbs.cli import options, param_types

_COUNT = click.IntRange(min=1)

_sizes = options.filling(
    "optkit.verbs.cli.plan:Sizes", "sizes",
    options.under(
        "Decoder",
        click.option("--params", type=param_types.COUNT, metavar="N",
                     help="Plan a decoder without a model: its parameters, e.g. 70b; needs "
                     "--layers, --kv-heads, --head-dim."),
        click.option("--layers", type=_COUNT, metavar="N", help="Decoder layers."),
        click.option("--kv-heads", type=_COUNT, metavar="N", help="Heads of keys and values."),
        click.option("--head-dim", type=_COUNT, metavar="N", help="Width of a head."),
        click.option("--heads", type=_COUNT, metavar="N",
                     help="Query heads; default: computed from the other sizes."),
        click.option("--hidden", type=_COUNT, metavar="N",
                     help="Width of a layer; default: computed from the other sizes."),
        click.option("--vocab", type=_COUNT, metavar="N",
                     help="Size of the vocabulary; default 32000."),
        click.option("--tied", is_flag=True,
                     help="The embedding and the vocabulary projection are one table."),
    ),
)  # fmt: skip

_tokens = options.under(
    "Decoder",
    click.option(
        "--prompt",
        type=_COUNT,
        metavar="TOKENS",
        help="Tokens read per sequence; default: 1024, less where the model has fewer positions.",
    ),
    click.option(
        "--new",
        type=_COUNT,
        metavar="TOKENS",
        help="Tokens written per sequence; default: 256, likewise.",
    ),
)

_needs = options.under(
    "Limits",
    options.latency(help="Limit for one call (for a decoder: one token), e.g. 20ms (without a "
                    "unit: milliseconds)."),
    click.option("--throughput", type=click.FloatRange(min=0, min_open=True), metavar="N",
                 help="Needed samples per second (for a decoder: written tokens)."),
    click.option("--load", metavar="RATE|SHARE",
                 help="What is served on average: 120/s, 3req/s (for a decoder: of --new tokens "
                 "each), or 30% of --throughput (without it: of what the devices can do)."),
)  # fmt: skip

_costs = options.filling(
    "optkit.verbs.cli.plan:Costs", "costs",
    options.under(
        "Cost",
        click.option("--prices", type=click.Path(path_type=Path), metavar="FILE",
                     help="YAML with your prices: l4: {usd_per_hour, spot_usd_per_hour, "
                     "purchase_usd, watts, provider, as_of}."),
        click.option("--spot", type=param_types.SHARE, metavar="SHARE",
                     help="Discount of spot devices, e.g. 60%; --prices overrides it."),
        click.option("--electricity", type=click.FloatRange(min=0, min_open=True), metavar="USD",
                     help="US dollars per kWh, for devices with a purchase price."),
        click.option("--stored", type=param_types.SizeOrFolder(), metavar="SIZE|FOLDER",
                     help="Size of a sample in storage, e.g. 110K, or a folder with a file for "
                     "each: what storage must deliver."),
    ),
)  # fmt: skip


@options.command(
    "optkit plan -t l4,h100 -p fp16,int8 --latency 20ms",
    "optkit plan --params 70b --layers 80 --kv-heads 8 --head-dim 128 -t h100",
)
@options.job
@options.targets
@options.precisions(
    "A list, or the option several times; default: those of fp16, int8, fp8, int4 that the target "
    "has."
)
@options.batches("A list, or the option several times; default: 1, 8, 64.")
@_sizes
@_tokens
@_needs
@_costs
@click.option(
    "--train",
    "methods",
    multiple=True,
    type=param_types.Several(param_types.OneOf(["full", "lora", "qlora"])),
    callback=param_types.joined,
    metavar="full,lora,qlora",
    help="Also predict the memory of training, by one or several of these methods.",
)
@click.option(
    "--estimate",
    type=param_types.OneOf(["itemised", "quick"]),
    default="itemised",
    show_default=True,
    help="quick: training memory by a rule of thumb, seven times the weights.",
)
@click.option(
    "--plot",
    type=param_types.NewFile(),
    help="Write a page (.html), or its drawings alone (.svg): cost over latency, roofline.",
)
@options.work
@options.output
@options.calls("optkit.verbs.cli.plan:plan")
def plan() -> None:
    """Predict latency, memory and cost of MODEL on each target, and what would help.

    Every figure is predicted, with an interval; docs/studies/prediction.md has the errors
    of past predictions.
    `--target all` plans every GPU, in those precisions that it has.
    """


_pair = options.under(
    "Target",
    click.option("-t", "--target", type=param_types.DEVICE, help="A device; not with --against."),
    click.option("-p", "--precision", type=param_types.PRECISION, help="Default: int8."),
)

_slowdown = options.under(
    "Limits",
    options.latency(
        help="Name the best batch within this limit for one call, e.g. 20ms (without "
        "a unit: milliseconds)."
    ),
    click.option(
        "--max-slowdown",
        metavar="SHARE",
        help="With --against: exit 3 if the whole interval is beyond this limit, e.g. 5%.",
    ),
)

_other = options.under(
    "Model",
    click.option(
        "--against",
        type=click.Path(path_type=Path),
        metavar="ARTIFACT",
        help="Compare MODEL, an artifact, with this artifact; both are timed in one run.",
    ),
    click.option(
        "--trusted",
        is_flag=True,
        help="With --against: open engines from another machine; only if you know the author.",
    ),
)


@options.command(
    "optkit bench -t cpu --batch 1,8,32                    a sweep, and its knee",
    "optkit bench new/ --against old/ --max-slowdown 5%    a check for CI",
)
@options.job
@_other
@_pair
@options.batches(
    "A list, or the option several times; default: the recipe's, or with --against the tuned batch."
)
@_slowdown
@options.strict
@options.junit
@options.work
@options.output
@options.calls("optkit.verbs.cli.bench:bench")
def bench() -> None:
    """Measure the latency of MODEL and its baseline; predict it for a target that is not here."""


@options.command("optkit eval -t cpu -p int8 --eval-data held-out.txt", name="eval")
@options.job
@options.pair
@options.strict
@options.junit
@options.work
@options.output
@options.calls("optkit.verbs.cli.stage_commands:eval_")
def eval_() -> None:
    """Measure task score, drop against the baseline and fidelity to FP32, and check their gates.

    With --set eval.stop_early=true it stops before the last sample, once the verdict is certain.
    """

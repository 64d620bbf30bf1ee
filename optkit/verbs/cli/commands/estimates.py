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
        type=param_types.TokenCount(),
        metavar="TOKENS",
        help="Tokens read per sequence; default: 1024, less where the model has fewer positions. "
        "With --serve also a range 128..1024, or median and 95th percentile 300~1200.",
    ),
    click.option(
        "--new",
        type=param_types.TokenCount(),
        metavar="TOKENS",
        help="Tokens written per sequence; default: 256, likewise.",
    ),
)

_serving = options.filling(
    "optkit.verbs.cli.plan_question:ServingChoice", "serving",
    options.under(
        "Serving",
        click.option("--serve", type=click.FloatRange(min=0, min_open=True), metavar="N",
                     help="Count the GPUs that serve N requests per second, at random moments; "
                     "with --trace, its requests at this rate."),
        click.option("--trace", type=param_types.Existing("a CSV or JSON lines file", file=True),
                     metavar="FILE", help="The requests: arrival in seconds, prompt and output in "
                     "tokens, perhaps prefix."),
        click.option("--ttft", type=param_types.Milliseconds(), metavar="TIME",
                     help="Limit of the time to the first token, e.g. 500ms."),
        click.option("--tpot", type=param_types.Milliseconds(), metavar="TIME",
                     help="Limit of the time per output token after it, e.g. 50ms."),
        click.option("--percentile", type=click.FloatRange(50, 99.9), metavar="P",
                     help="Percent of the requests that must hold the limits; default 95."),
        click.option("--batching", type=param_types.OneOf(["static", "dynamic", "continuous"]),
                     help="static: full batches; dynamic: also after --delay; default continuous: "
                     "requests join and leave between passes."),
        click.option("--chunk", type=click.IntRange(min=0), metavar="TOKENS",
                     help="Tokens per pass when prompts are read in chunks beside decoding; "
                     "default 2048; 0: whole prompts first."),
        click.option("--max-batch", type=_COUNT, metavar="N",
                     help="Sequences of a copy at once; default 256."),
        click.option("--delay", type=param_types.Milliseconds(), metavar="TIME",
                     help="Wait of dynamic batching for a full batch; default 100ms."),
        click.option("--block", type=_COUNT, metavar="TOKENS",
                     help="Block of the paged cache; default 16."),
        click.option("--shared", type=param_types.SHARE, metavar="SHARE",
                     help="Of each prompt, what it begins with in common; of a trace, within a "
                     "prefix."),
        click.option("--split", is_flag=True,
                     help="Prompts are read on other GPUs than answers are written."),
        click.option("--tp", type=_COUNT, metavar="N",
                     help="GPUs that share each layer; default: what takes the fewest."),
        click.option("--pp", type=_COUNT, metavar="N",
                     help="Stages of layers on GPUs one after another; default 1."),
        click.option("--speculate", metavar="K,A[,C]",
                     help="K drafted tokens per pass, of which a share A is accepted, each for C "
                     "of a pass (default 0.05)."),
        click.option("--seed", type=click.IntRange(min=0),
                     help="Of the random requests; default 0."),
    ),
)  # fmt: skip

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
    "optkit plan my-llama -t l4,h100 --serve 20 --prompt 300~1200 --ttft 500ms --tpot 50ms",
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
@_serving
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
@options.calls("optkit.verbs.cli.plan_question:plan")
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

"""`optkit plan`: what a model would take on targets, before anything is built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from optkit.cli import options
from optkit.errors import OptkitError, StorageError, UsageError, from_json
from optkit.request import Request
from optkit.workspace import Workspace

if TYPE_CHECKING:
    from optkit.decoder import DecoderSizes
    from optkit.documents.plan import Plan

_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_SHOWN = (1, 8, 64)  # batches of the table where none is named


def _count(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Parameters from "70b", "1.1B", "350M". Raises UsageError."""
    return (
        None if value is None else options.scaled(value, _SCALES, "--params", "write it like 70b")
    )


@dataclass(frozen=True)
class _Sizes:
    """A decoder without a model, as the options describe it."""

    params: float | None
    layers: int | None
    kv_heads: int | None
    head_dim: int | None
    heads: int | None
    hidden: int | None
    vocab: int | None
    tied: bool

    def decoder(self, request: Request) -> DecoderSizes | None:
        """What --params and its sizes describe together; None without them."""
        from optkit.decoder import DecoderSizes

        given = [name for name, value in vars(self).items() if value]
        if self.params is None:
            if given:
                option = f"--{given[0].replace('_', '-')}"
                raise UsageError("sizes of a decoder need --params", where=option)
            return None
        if request.model is not None or request.recipe is not None:
            raise UsageError(
                "give either a model or the sizes of a decoder, not both", where="--params"
            )
        if self.layers is None or self.kv_heads is None or self.head_dim is None:
            raise UsageError(
                "a decoder needs --layers, --kv-heads and --head-dim", where="--params",
                hint="config.json: num_hidden_layers, num_key_value_heads, head_dim",
            )  # fmt: skip
        return DecoderSizes(
            self.params, self.layers, self.kv_heads, self.head_dim, self.heads, self.hidden,
            vocabulary=self.vocab, tied=self.tied,
        )  # fmt: skip


_SIZE = click.IntRange(min=1)
_sizes = options.filling(
    _Sizes, "sizes",
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
def plan(
    targets: tuple[str, ...],
    precisions: tuple[str, ...],
    batches: tuple[int, ...],
    prompt: int,
    new: int,
    limit_ms: float | None,
    throughput: float | None,
    prices: Path | None,
    methods: tuple[str, ...],
    estimate: str,
    plot: Path | None,
    sizes: _Sizes,
    request: Request,
    workspace: Workspace,
    output: options.Output,
) -> int:
    """Predict latency, memory and cost of MODEL on each target, and what would help.

    Every figure is predicted, with an interval; docs/plan.md has the errors of past predictions.
    """
    from optkit import api
    from optkit.cli import terminal
    from optkit.documents.plan import Plan

    if plot is not None and plot.suffix not in (".html", ".svg"):
        raise UsageError("a plot is .html or .svg", where="--plot")
    decoder = sizes.decoder(request)
    with output.terminal() as ears:
        found = api.plan(
            recipe=None if decoder else options.recipe(request, workspace, output),
            target=targets,
            precision=precisions,
            batches=batches,
            decoder=decoder,
            prompt=prompt,
            new_tokens=new,
            latency_ms=limit_ms,
            throughput=throughput,
            prices=prices,
            training=methods,
            quick=estimate == "quick",
            partial=True,
            workspace=options.reporting(workspace, ears),
        )
    planned = Plan.from_json(found)
    if plot is not None:
        _draw(planned, plot)
    if output.json:
        terminal.put_json(found)
    else:
        _show(planned, batches or _SHOWN)
    if planned.error is None:
        return 0
    error = from_json(planned.error.to_json())
    terminal.show_error(error)
    return error.exit_code


def result_of(error: OptkitError) -> dict[str, Any]:
    """The object of a plan that never came to a figure."""
    from optkit.api._plan import failed

    return failed(error).to_json()


def _draw(plan: Plan, path: Path) -> None:
    """Write the plot. Raises UsageError when nothing could be predicted."""
    from optkit.report.plan import to_html, to_svg

    if not any(row.latency for row in plan.results):
        raise UsageError("there is nothing to plot", where="--plot")
    text = to_html(plan) if path.suffix == ".html" else to_svg(plan)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"it cannot be written: {error.strerror}", where=str(path)) from error


def _show(plan: Plan, batches: tuple[int, ...]) -> None:
    """Tables of at most 80 columns, then advice."""
    from optkit.cli import terminal
    from optkit.cli.planned import lines

    for line in lines(plan, batches):
        terminal.put(line)

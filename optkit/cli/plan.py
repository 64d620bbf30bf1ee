"""`optkit plan`: what a model would take on targets, before anything is built."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from optkit.cli import options
from optkit.errors import OptkitError, StorageError, UsageError, from_json

if TYPE_CHECKING:
    from optkit.decoder import DecoderSizes

_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_SHOWN = (1, 8, 64)  # batches of the table where none is named


def _count(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Parameters from "70b", "1.1B", "350M". Raises UsageError."""
    return (
        None if value is None else options.scaled(value, _SCALES, "--params", "write it like 70b")
    )


@click.command()
@options.job
@options.targets
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    metavar="NAME",
    help="Repeat for several; default: fp16, int8, fp8, int4 where the target can.",
)
@click.option(
    "--batch",
    "batches",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="N",
    help="Repeat for several; default: 1, 8, 64.",
)
@click.option(
    "--params",
    callback=_count,
    metavar="N",
    help="Plan a decoder without a model: its parameters, e.g. 70b; needs --layers, "
    "--kv-heads, --head-dim.",
)
@click.option("--layers", type=click.IntRange(min=1), metavar="N")
@click.option("--kv-heads", type=click.IntRange(min=1), metavar="N")
@click.option("--head-dim", type=click.IntRange(min=1), metavar="N")
@click.option("--heads", type=click.IntRange(min=1), metavar="N", help="Default: from the others.")
@click.option("--hidden", type=click.IntRange(min=1), metavar="N", help="Default: from the others.")
@click.option("--vocab", type=click.IntRange(min=1), metavar="N", help="Default: 32000.")
@click.option("--tied", is_flag=True, help="The embedding is the vocabulary projection too.")
@click.option(
    "--prompt",
    type=click.IntRange(min=1),
    default=1024,
    show_default=True,
    metavar="TOKENS",
    help="Of a decoder: tokens read per sequence.",
)
@click.option(
    "--new",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    metavar="TOKENS",
    help="Of a decoder: tokens written per sequence.",
)
@click.option(
    "--latency",
    "limit_ms",
    callback=options.milliseconds,
    metavar="TIME",
    help="A limit for one call (of a decoder: one token), e.g. 20ms.",
)
@click.option(
    "--throughput",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="Samples (of a decoder: written tokens) per second that are needed.",
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
    help="Memory of training too; repeat for several.",
)
@click.option(
    "--estimate",
    type=click.Choice(["itemised", "quick"]),
    default="itemised",
    show_default=True,
    help="quick: training by the rule of thumb, weights times seven.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A roofline plot, .html or .svg.",
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
    params: float | None,
    layers: int | None,
    kv_heads: int | None,
    head_dim: int | None,
    heads: int | None,
    hidden: int | None,
    vocab: int | None,
    tied: bool,
    **shared: Any,
) -> int:
    """Predict latency, memory and cost of MODEL on each target, and what would help.

    Every figure is predicted, with an interval; docs/plan.md has the errors of past predictions.
    """
    from optkit import api
    from optkit.cli import terminal

    if plot is not None and plot.suffix not in (".html", ".svg"):
        raise UsageError("a plot is .html or .svg", where="--plot")
    request = options.gather(shared)
    sizes = {"layers": layers, "kv_heads": kv_heads, "head_dim": head_dim, "heads": heads,
             "hidden": hidden, "vocabulary": vocab, "tied": tied or None}  # fmt: skip
    decoder = _decoder(params, sizes, request)
    with request.terminal() as ears:
        found = api.plan(
            recipe=None if decoder else options.recipe(request),
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
            workspace=options.workspace(request, ears),
        )
    if plot is not None:
        _draw(found, plot)
    if request.json:
        terminal.put_json(found)
    else:
        _show(found, batches or _SHOWN)
    if found["error"] is None:
        return 0
    error = from_json(found["error"])
    terminal.show_error(error)
    return error.exit_code


def result_of(error: OptkitError) -> dict[str, Any]:
    """The object of a plan that never came to a figure."""
    from optkit.api._plan import failed

    return failed(error)


def _decoder(
    params: float | None, sizes: dict[str, int | None], request: options.Request
) -> DecoderSizes | None:
    """What --params and its sizes describe together; None without them."""
    from optkit.decoder import DecoderSizes

    given = [name for name, value in sizes.items() if value is not None]
    if params is None:
        if given:
            raise UsageError(
                "sizes describe a decoder: they need --params", where=_option(given[0])
            )
        return None
    if request.model is not None or request.recipe is not None:
        raise UsageError("a model and a description of one exclude each other", where="--params")
    layers, kv_heads, head_dim = (sizes[name] for name in ("layers", "kv_heads", "head_dim"))
    if layers is None or kv_heads is None or head_dim is None:
        raise UsageError(
            "a decoder needs --layers, --kv-heads and --head-dim", where="--params",
            hint="config.json: num_hidden_layers, num_key_value_heads, head_dim",
        )  # fmt: skip
    return DecoderSizes(params, layers, kv_heads, head_dim, sizes["heads"], sizes["hidden"],
                        vocabulary=sizes["vocabulary"], tied=bool(sizes["tied"]))  # fmt: skip


def _option(name: str) -> str:
    return "--" + {"vocabulary": "vocab"}.get(name, name).replace("_", "-")


def _draw(found: dict[str, Any], path: Path) -> None:
    """Write the plot. Raises UsageError when nothing could be predicted."""
    from optkit.report.plan import to_html, to_svg

    if not any(row["latency"] for row in found["results"]):
        raise UsageError("there is nothing to plot", where="--plot")
    text = to_html(found) if path.suffix == ".html" else to_svg(found)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"it cannot be written: {error.strerror}", where=str(path)) from error


def _show(found: dict[str, Any], batches: tuple[int, ...]) -> None:
    """Tables of at most 80 columns, then advice."""
    from optkit.cli import terminal
    from optkit.cli.planned import lines

    for line in lines(found, batches):
        terminal.put(line)

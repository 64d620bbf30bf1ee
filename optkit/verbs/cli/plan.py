"""`optkit plan`: predicts latency, memory and cost of a model on targets, before a build."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from optkit.facts.documents.plan import Plan
from optkit.facts.errors import UsageError, from_json
from optkit.facts.request import Request
from optkit.ground.decoder import DecoderSizes
from optkit.ground.workspace import Workspace
from optkit.show.report.plan_page import BATCHES, to_html, to_svg
from optkit.verbs import api
from optkit.verbs.cli import api_calls, command_output, result_files
from optkit.verbs.cli.command_output import Output
from optkit.verbs.cli.planned import lines


@dataclass(frozen=True)
class Sizes:
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
                "a decoder needs --layers, --kv-heads and --head-dim",
                where="--params",
                hint="add them; a model's config.json calls them num_hidden_layers, "
                "num_key_value_heads and head_dim",
            )
        return DecoderSizes(
            self.params,
            self.layers,
            self.kv_heads,
            self.head_dim,
            self.heads,
            self.hidden,
            vocabulary=self.vocab,
            tied=self.tied,
        )


@dataclass(frozen=True)
class Costs:
    """What devices cost, and how large a sample is in storage."""

    prices: Path | None
    spot: float | None
    electricity: float | None
    stored: int | Path | None


def plan(
    targets: tuple[str, ...],
    precisions: tuple[str, ...],
    batches: tuple[int, ...],
    prompt: int | None,
    new: int | None,
    limit_ms: float | None,
    throughput: float | None,
    load: str | None,
    methods: tuple[str, ...],
    estimate: str,
    plot: Path | None,
    sizes: Sizes,
    costs: Costs,
    request: Request,
    workspace: Workspace,
    output: Output,
) -> int:
    if plot is not None:
        check_plot(plot)
    decoder = sizes.decoder(request)
    with output.terminal() as ears:
        planned = api.plan(
            recipe=None if decoder else api_calls.recipe(request, workspace, output),
            target=targets,
            precision=precisions,
            batches=batches,
            decoder=decoder,
            prompt=prompt,
            new_tokens=new,
            latency_ms=limit_ms,
            throughput=throughput,
            load=load,
            prices=costs.prices,
            spot=costs.spot,
            electricity=costs.electricity,
            stored=costs.stored,
            training=methods,
            quick=estimate == "quick",
            partial=True,
            workspace=api_calls.reporting(workspace, ears),
        )
    if plot is not None:
        _draw(planned, plot)
    if output.json:
        command_output.put_json(planned)
    else:
        _show(planned, batches or BATCHES)
    if planned.error is None:
        return 0
    error = from_json(planned.error.to_json())
    command_output.show_error(error)
    return error.exit_code


def check_plot(plot: Path) -> None:
    """Raises UsageError for a file of another kind than page or drawing."""
    if plot.suffix not in (".html", ".svg"):
        raise UsageError(
            f"optkit cannot write this kind of file: {plot.suffix or 'no file name extension'}",
            where=f"--plot {plot}",
            hint="name a file that ends with .html or .svg, "
            f"for example: --plot {plot.with_suffix('.svg') if plot.name else 'cost.svg'}",
        )


def _draw(plan: Plan, path: Path) -> None:
    """Write the plot. Raises UsageError when nothing could be predicted."""
    if not any(row.latency for row in plan.results):
        raise UsageError("there is nothing to plot", where="--plot")
    result_files.write(path, to_html(plan) if path.suffix == ".html" else to_svg(plan))


def _show(plan: Plan, batches: tuple[int, ...]) -> None:
    """Tables of at most 80 columns, then advice."""

    for line in lines(plan, batches):
        command_output.put_figures(line)

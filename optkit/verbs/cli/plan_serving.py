"""`optkit plan --serve`: how many devices serve a load of requests within limits."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from optkit.craft.prediction import cost
from optkit.craft.prediction.planned_model import Decoding
from optkit.facts.documents.plan import PlannedDecoder
from optkit.facts.errors import InputRefused, ToolchainMissing, UsageError, from_json
from optkit.facts.request import Request
from optkit.ground.decoder import CONFIG
from optkit.ground.workspace import Workspace
from optkit.show.report.serving_page import to_html, to_svg
from optkit.verbs.api import plan_pairs, plan_subject
from optkit.verbs.api.plan_subject import PlanSubject
from optkit.verbs.cli import api_calls, command_output, result_files
from optkit.verbs.cli.command_output import Output
from optkit.verbs.cli.plan import Sizes, check_plot
from optkit.verbs.cli.plan_question import ServingChoice
from optkit.verbs.cli.serving_lines import lines

if TYPE_CHECKING:
    from optkit.satellites.serving import ServedLoad, ServingPolicy, ServingQuestion

_PROMPT, _NEW = "1024", "256"


def plan_serving(
    serving: ServingChoice,
    prompt: str | None,
    new: str | None,
    prices: Path | None,
    targets: tuple[str, ...],
    precisions: tuple[str, ...],
    plot: Path | None,
    sizes: Sizes,
    request: Request,
    workspace: Workspace,
    output: Output,
) -> int:
    if find_spec("simpy") is None:
        raise ToolchainMissing(
            "the package simpy is not installed",
            where="--serve",
            hint="pip install 'optkit[serve]'",
        )
    from optkit.satellites.serving import answer

    if plot is not None:
        check_plot(plot)
    if not targets:
        raise UsageError("no target is given", where="--target", hint="see `optkit targets`")
    load = _load(serving, prompt, new)
    question = _question(serving, load, _subject(sizes, request, workspace, output, load))
    known = cost.NO_PRICES if prices is None else cost.read_prices(prices)
    pairs = [
        (device, number, cost.price_of(device, known.rents))
        for device in plan_pairs.devices(targets)
        for number in plan_pairs.precisions(device, precisions)
    ]
    with output.terminal() as ears:
        planned = answer(question, pairs, plan_pairs.check, ears)
    if plot is not None and planned.error is None:
        result_files.write(plot, to_html(planned) if plot.suffix == ".html" else to_svg(planned))
    if output.json:
        command_output.put_json(planned)
    else:
        for line in lines(planned):
            command_output.put_figures(line)
    if planned.error is None:
        return 0
    error = from_json(planned.error.to_json())
    command_output.show_error(error)
    return error.exit_code


def _question(serving: ServingChoice, load: ServedLoad, subject: PlanSubject) -> ServingQuestion:
    """Raises UsageError for another model than a decoder, or one with too few positions."""
    from optkit.satellites.serving import ServingNeeds, ServingQuestion

    model, facts = subject.model, subject.facts
    if not isinstance(facts, PlannedDecoder) or not isinstance(model, Decoding) or model.encoder:
        raise UsageError(
            "it is no decoder, so it has no time per token",
            where=facts.name,
            hint="without --serve, --throughput counts the devices for so many samples per second",
        )
    if model.positions is not None and load.longest > model.positions:
        raise UsageError(
            f"a request has up to {load.longest:,} tokens, but the model has "
            f"{model.positions:,} positions",
            where="--prompt",
            hint="shorter prompts or answers",
        )
    first, token = (
        None if limit is None else limit / 1e3 for limit in (serving.ttft, serving.tpot)
    )
    needs = ServingNeeds(first, token, serving.percentile or 95.0)
    policy = _policy(serving)
    return ServingQuestion(facts, model.shape, load, policy, needs, serving.tp, serving.pp or 1)


def _load(serving: ServingChoice, prompt: str | None, new: str | None) -> ServedLoad:
    """Raises UsageError for two loads, InputRefused for a trace that is none."""
    from optkit.satellites.serving import ServedLoad, TokenLengths, read_trace

    shared, seed = serving.shared or 0.0, serving.seed or 0
    if not 0 <= shared < 1:
        raise UsageError("a share is at least 0 % and less than 100 %", where="--shared")
    if serving.trace is None:
        assert serving.serve is not None
        lengths = (
            TokenLengths.parse(prompt or _PROMPT, "--prompt"),
            TokenLengths.parse(new or _NEW, "--new"),
        )
        return ServedLoad(serving.serve, *lengths, shared, seed)
    for option, value in (("--prompt", prompt), ("--new", new)):
        if value is not None:
            raise UsageError("a trace has the lengths itself", where=option)
    arrivals = tuple(read_trace(serving.trace, shared))
    span = arrivals[-1].at
    if span <= 0:
        raise InputRefused(
            "all its requests arrive at once, so it has no rate", where=f"--trace {serving.trace}"
        )
    load = ServedLoad((len(arrivals) - 1) / span, shared=shared, seed=seed, trace=arrivals)
    return load if serving.serve is None else load.at(serving.serve)


def _subject(
    sizes: Sizes, request: Request, workspace: Workspace, output: Output, load: ServedLoad
) -> PlanSubject:
    """The decoder: by its sizes, by the config.json of a folder, or as any other model."""
    prompt, new = (max(1, round(tokens)) for tokens in load.means)
    described = sizes.decoder(request)
    if described is not None:
        return plan_subject.described(described, prompt, new)
    if request.recipe is None and request.model is not None:
        file = Path(request.model)
        file = file / CONFIG if file.is_dir() else file
        if file.name == CONFIG and file.is_file():
            return plan_subject.configured(file.read_bytes(), str(file), prompt, new)
    with output.terminal() as ears:
        recipe = api_calls.recipe(request, workspace, output)
        here = api_calls.reporting(workspace, ears)
        return plan_subject.load(None, None, recipe, here, prompt, new)


def _policy(serving: ServingChoice) -> ServingPolicy:
    """Raises UsageError for a policy that contradicts itself."""
    from optkit.satellites.serving import BATCHING, Drafting, ServingPolicy

    plain = ServingPolicy()
    batching = next((one for one in BATCHING if one == serving.batching), plain.batching)
    chunk = plain.chunk if serving.chunk is None else serving.chunk or None
    drafting = serving.speculate and Drafting.parse(serving.speculate, "--speculate")
    return ServingPolicy(
        batching,
        chunk if batching == "continuous" else None,
        serving.max_batch or plain.max_batch,
        plain.delay if serving.delay is None else serving.delay / 1e3,
        serving.block or plain.block,
        serving.split,
        drafting or None,
    )

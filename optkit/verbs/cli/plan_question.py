"""`optkit plan`: one model on targets, or with --serve and --trace a load of requests."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from optkit.facts.errors import UsageError


@dataclass(frozen=True)
class ServingChoice:
    """The options of serving; None: not given."""

    serve: float | None
    trace: Path | None
    ttft: float | None
    tpot: float | None
    percentile: float | None
    batching: str | None
    chunk: int | None
    max_batch: int | None
    delay: float | None
    block: int | None
    shared: float | None
    split: bool
    tp: int | None
    pp: int | None
    speculate: str | None
    seed: int | None

    @property
    def given(self) -> list[str]:
        names = (field.name for field in fields(self))
        return [f"--{name.replace('_', '-')}" for name in names if getattr(self, name)]


# Options that answer other questions, by the names of their values.
_OTHERS = {
    "batches": "--batch",
    "limit_ms": "--latency",
    "throughput": "--throughput",
    "load": "--load",
    "methods": "--train",
}


def plan(
    serving: ServingChoice, prompt: int | str | None, new: int | str | None, **rest: Any
) -> int:
    """Raises UsageError for options that do not belong together."""
    if serving.serve is None and serving.trace is None:
        if serving.given:
            raise UsageError(
                "it needs the load of a server",
                where=serving.given[0],
                hint="add --serve with requests per second, or --trace FILE",
            )
        from optkit.verbs.cli.plan import plan as of_calls

        return of_calls(prompt=_one(prompt, "--prompt"), new=_one(new, "--new"), **rest)
    given = [option for name, option in _OTHERS.items() if rest.pop(name)]
    if rest.pop("estimate") != "itemised":
        given.append("--estimate")
    costs = rest.pop("costs")
    given += [f"--{name}" for name in ("spot", "electricity", "stored") if getattr(costs, name)]
    if given:
        raise UsageError(
            "it is not for a load of requests",
            where=given[0],
            hint="limits of a server are --ttft and --tpot",
        )
    from optkit.verbs.cli.plan_serving import plan_serving

    return plan_serving(
        serving,
        None if prompt is None else str(prompt),
        None if new is None else str(new),
        prices=costs.prices,
        **rest,
    )


def _one(tokens: int | str | None, option: str) -> int | None:
    """Raises UsageError for several lengths."""
    if isinstance(tokens, str):
        raise UsageError(f"{tokens!r}: several lengths need --serve", where=option)
    return tokens

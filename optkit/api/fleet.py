"""One model for several targets and precisions: shared work once, an artifact per pair, one report.

    artifacts/digits-vit-l4-int8/      artifacts/digits-vit-h100-fp8/      …
    artifacts/digits-vit-fleet/        fleet.json, report.html, report.md

A pair that fails or is impossible stops only itself. What pairs have in common (export, fusion,
calibration, the quantized graph of one backend) is one step in the store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from optkit import pipeline, target
from optkit.api.building import EMBED_EVAL, build_one, load
from optkit.errors import OptkitError
from optkit.exchange import replacing
from optkit.execute.runner import Record, Runner
from optkit.prediction.cost import price_of
from optkit.recipe import Recipe
from optkit.report import fleet as documents
from optkit.report import result
from optkit.store import write_durably

Pair = tuple[str, str]
"""Names of a target and a precision."""


@dataclass(frozen=True)
class Fleet:
    """A finished fleet: its document (optkit.fleet/v1), and its folder."""

    document: dict[str, Any]
    path: Path


def build_fleet(
    *,
    recipe: Recipe,
    pairs: Sequence[Pair],
    out: Path,
    runner: Runner,
    told: Callable[[Pair, Exception], OptkitError],
    embed_eval: int = EMBED_EVAL,
    deferred: bool = False,
) -> Fleet:
    """Build every pair, one after the other, and write the fleet's folder `out/<model>-fleet`.

    told: is given what ended a pair, and returns the error that stands in its result. Raises
    StorageError, where the folder cannot be written.
    """
    results, steps, artifacts = [], [], {}
    for pair in pairs:
        own = replace(runner, records=[])
        name = " ".join(pair)
        try:
            built = build_one(recipe=recipe, target=pair[0], precision=pair[1], out=out,
                              runner=own, embed_eval=embed_eval, deferred=deferred)  # fmt: skip
        except Exception as error:  # also a bug ends this pair only, and not its neighbours
            results.append(
                result.failed(told(pair, error), model=recipe.name, target=pair[0],
                              precision=pair[1])
            )  # fmt: skip
        else:
            results.append(built.result)
            artifacts[name] = {"path": str(built.path), "digest": load(built.path).digest}
        steps += [_step(name, record) for record in own.records]
    document = documents.compose(
        recipe.name,
        results,
        artifacts=artifacts,
        targets={name: _target(name) for name in dict.fromkeys(name for name, _ in pairs)},
        steps=steps,
        versions=pipeline.tool_versions(),
    )
    return Fleet(document, _write(document, out / f"{recipe.name}-fleet"))


def _write(document: dict[str, Any], place: Path) -> Path:
    files = {
        "report.html": documents.to_html(document),
        "report.md": documents.to_markdown(document),
        "fleet.json": f"{json.dumps(document, indent=1)}\n",
    }
    place.parent.mkdir(parents=True, exist_ok=True)
    with replacing(place) as folder:
        for name, text in files.items():
            write_durably(folder / name, text.encode("utf-8", "replace"))
    return place


def _step(pair: str, record: Record) -> dict[str, Any]:
    return {"pair": pair, **asdict(record)}


def _target(name: str) -> dict[str, Any]:
    found = target.target(name)
    price = price_of(found, {})
    return {"title": found.title, "price": price and price.to_json()}

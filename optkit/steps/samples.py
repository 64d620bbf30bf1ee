"""Steps that spool samples: from a source or task of the user, or random ones."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from optkit.errors import InputRefused, located, nearest
from optkit.steps.comparing import random_feed
from optkit.steps.files import Inputs, Params, Progress, outside


def collect(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Run a sample source or a task and spool what it yields, checked against the inputs.

    params: function, args, limit, inputs, labelled, optional (axes that may be empty); path,
    memory, folders (where each arg's relative path starts), model (the folder of its tokenizer and
    processor, or None).
    """
    from optkit import content
    from optkit.data import reads, spool
    from optkit.recipe import infos_from_json

    path = Path(params["path"])
    infos = infos_from_json(params["inputs"])
    with located(str(path)), reads.record() as record:
        module = content.load_module(path)
        function = content.member(module, params["function"], path)
        if params["labelled"]:
            content.member(module, "score", path)
        args = _placed(function, params)
        scoring = _scoring(module, params["args"]) if params["labelled"] else {}
        offered = {"model": params["model"], "inputs": {info.name: info for info in infos}}
        written = spool.write(
            content.guarded(function, _bound(function, args, scoring, offered), path),
            out,
            infos,
            limit_samples=params["limit"],
            memory_bytes=params["memory"],
            progress=progress,
            optional=params["optional"],
        )
        metric = content.metric(module, path, params["args"]) if params["labelled"] else None
    if params["labelled"] and not written.labelled:
        raise InputRefused(
            "samples() yields no labels", where=str(path), hint="yield pairs: feed, labels"
        )
    return {
        "info": written.to_json(),
        "metric": metric,
        "scoring": scoring,
        "reads": outside(record.to_json(), out),
    }


def _placed(function: Callable[..., Any], params: Params) -> dict[str, Any]:
    """The args, those of parameters that are annotated as Path as paths from where they stand."""
    args = dict(params["args"])
    for name, parameter in inspect.signature(function).parameters.items():
        is_path = re.search(r"\bPath\b", str(parameter.annotation))
        if is_path and isinstance(args.get(name), str):
            args[name] = Path(params["folders"][name]) / args[name]
    return args


def _scoring(module: ModuleType, args: Mapping[str, Any]) -> dict[str, Any]:
    """The args that the task's other functions name."""
    from optkit import content

    found: dict[str, Any] = {}
    for name, positional in content.HOOKS.items():
        function = getattr(module, name, None)
        if callable(function):
            found |= content.taken(function, args, positional)
    return found


def _bound(
    function: Callable[..., Any],
    args: Mapping[str, Any],
    scoring: Mapping[str, Any],
    offered: Mapping[str, Any],
) -> dict[str, Any]:
    """The arguments of a sample source. Raises InputRefused for one that nobody takes, and for one
    that is missing."""
    from optkit import content

    parameters = inspect.signature(function).parameters
    own = content.taken(function, args)
    for name in args:
        if name not in own and name not in scoring:
            known = [one for one in parameters if one not in offered]
            close = nearest(name, known)
            hint = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(known)}"
            raise InputRefused(f"{function.__name__}() takes no argument {name!r}", hint=hint)
    found = {name: value for name, value in offered.items() if name in parameters} | own
    for name, parameter in parameters.items():
        needed = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if needed and parameter.default is parameter.empty and name not in found:
            told = f"{function.__name__}() needs the argument {name!r}"
            raise InputRefused(told, hint=f"give it in args, e.g. args: {{{name}: ...}}")
    return found


def random(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Seeded random inputs, for a model that comes with no samples at all.

    params: inputs, axes.
    """
    from optkit.data import spool
    from optkit.recipe import infos_from_json

    infos = infos_from_json(params["inputs"])
    feeds = (random_feed(params, "opt", seed) for seed in range(8))
    written = spool.write(
        feeds, out, infos, limit_samples=None, memory_bytes=1 << 28, progress=progress,
        optional=[name for name, axis in params["axes"].items() if not axis["min"]],
    )  # fmt: skip
    return {"info": written.to_json(), "metric": None}

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from itertools import chain, islice
from pathlib import Path
from types import ModuleType
from typing import Any

from optkit.facts.errors import InputRefused, located, nearest
from optkit.ground import user_code
from optkit.ground.data import parts, spool_writer
from optkit.ground.execute.step import Progress
from optkit.road.steps.collect import Collect, CollectedSamples


def run(step: Collect, out: Path, progress: Progress) -> CollectedSamples:
    path = step.path
    infos, both = (tuple(spec.info for spec in specs) for specs in (step.specs, step.whole))
    with located(step.where):
        module = user_code.load_module(path)
        function = _source(module, step)
        if step.labelled:
            user_code.member(module, "score", path)
        paths = _paths(function, step)
        args = dict(step.args) | paths
        scoring = _scoring(module, step.args) if step.labelled else {}
        told = {info.name: info for info in both or infos}
        offered = {"model": step.model and str(step.model), "inputs": told}
        items = user_code.guarded(function, _bound(function, args, scoring, offered), path)
        first = list(islice(items, 1))
        whole = bool(both and first) and parts.is_whole(first[0], both, infos)
        written = spool_writer.write(
            chain(first, items),
            out,
            both if whole else infos,
            limit_samples=step.limit,
            memory_bytes=step.memory,
            progress=progress,
            optional=step.optional,
            fill=step.labelled,
        )
        metric = user_code.metric(module, path, step.args) if step.labelled else None
    if step.labelled and not written.labelled:
        raise InputRefused(
            "samples() yields no labels", where=str(path), hint="yield pairs: feed, labels"
        )
    return CollectedSamples(
        info=written,
        metric=metric,
        scoring=scoring,
        agreement=callable(getattr(module, "agreement", None)),
        loops=callable(getattr(module, "run", None)),
        whole=whole,
        paths=tuple(paths),
        warnings=_left_out(written),
    )


def _left_out(written: spool_writer.SpoolInfo) -> tuple[str, ...]:
    if not written.left_out:
        return ()
    return (f"{written.left_out} samples are left out: they do not fill the model's fixed batch",)


def _source(module: ModuleType, step: Collect) -> Callable[..., Any]:
    try:
        return user_code.member(module, step.function, step.path)
    except InputRefused as error:
        error.hint = f"define {step.function}() in it"
        if not step.labelled:
            error.hint += f", or name another function: {step.path.name}:FUNCTION"
        raise


def _paths(function: Callable[..., object], step: Collect) -> dict[str, object]:
    """The args that are paths, relative to the folders of the step: a Path for a parameter that is
    annotated as Path; a text for one without an annotation, if its text looks like a path and names
    an existing file or folder there."""
    found: dict[str, object] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        text = step.args.get(name)
        if not isinstance(text, str):
            continue
        path = step.folders[name] / text
        if re.search(r"\bPath\b", str(parameter.annotation)):
            found[name] = path
        elif parameter.annotation is parameter.empty and ("/" in text or path.suffix):
            found |= {name: str(path)} if path.exists() else {}
    return found


def _scoring(module: ModuleType, args: Mapping[str, object]) -> dict[str, object]:
    """The args that the other functions of the task have as parameters."""
    found: dict[str, object] = {}
    for name, positional in user_code.HOOKS.items():
        function = getattr(module, name, None)
        if callable(function):
            found |= user_code.taken(function, args, positional)
    return found


def _bound(
    function: Callable[..., object],
    args: Mapping[str, object],
    scoring: Mapping[str, object],
    offered: Mapping[str, object],
) -> dict[str, object]:
    """The arguments of a sample source. Raises InputRefused for an arg without a parameter, and for
    a missing arg."""
    parameters = inspect.signature(function).parameters
    own = user_code.taken(function, args)
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

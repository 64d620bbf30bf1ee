"""Steps that spool samples: from a source or task of the user, or random ones."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from optkit.errors import InputRefused, located, nearest
from optkit.steps.comparing import random_feed
from optkit.steps.files import GRAPH, Inputs, Params, Progress, cpu, recording

if TYPE_CHECKING:
    from optkit.data.spool import Spool, SpoolInfo
    from optkit.runtimes import Session
    from optkit.tensors import Feed


def collect(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Run a sample source or a task and spool what it yields, checked against the inputs.

    params: function, args, limit, inputs, labelled, optional (axes that may be empty); `whole`, of
    one part of an encoder-decoder: the inputs of the whole model, which the source is told and may
    give instead; path, named (where an error in the samples is), memory, folders (where each arg's
    relative path starts), model (the folder of its tokenizer and processor, or None); roots and
    store: see `recording`.
    """
    from optkit import user_code
    from optkit.data import parts, reads, spool
    from optkit.recipe import infos_from_json

    path = Path(params["path"])
    infos, both = (infos_from_json(params.get(key, [])) for key in ("inputs", "whole"))
    recorded = reads.record(**recording(inputs, params, out))
    with located(params["named"]), recorded as record:
        module = user_code.load_module(path)
        function = user_code.member(module, params["function"], path)
        if params["labelled"]:
            user_code.member(module, "score", path)
        paths = _paths(function, params["args"])
        args = dict(params["args"])
        args |= {name: Path(params["folders"][name]) / args[name] for name in paths}
        scoring = _scoring(module, params["args"]) if params["labelled"] else {}
        told = {info.name: info for info in both or infos}
        offered = {"model": params["model"], "inputs": told}
        items = user_code.guarded(function, _bound(function, args, scoring, offered), path)
        first = list(islice(items, 1))
        whole = bool(both and first) and parts.is_whole(first[0], both, infos)
        written = spool.write(
            chain(first, items),
            out,
            both if whole else infos,
            limit_samples=params["limit"],
            memory_bytes=params["memory"],
            progress=progress,
            optional=params["optional"],
            fill=params["labelled"],
        )
        metric = user_code.metric(module, path, params["args"]) if params["labelled"] else None
    if params["labelled"] and not written.labelled:
        raise InputRefused(
            "samples() yields no labels", where=str(path), hint="yield pairs: feed, labels"
        )
    return {
        "info": written.to_json(),
        "metric": metric,
        "scoring": scoring,
        "agreement": callable(getattr(module, "agreement", None)),
        "whole": whole,
        "paths": paths,
        "warnings": _left_out(written),
        "reads": record.to_json(),
    }


def _left_out(written: SpoolInfo) -> list[str]:
    if not written.left_out:
        return []
    return [f"{written.left_out} samples are left out: they do not fill the model's fixed batch"]


def _paths(function: Callable[..., Any], args: Mapping[str, Any]) -> list[str]:
    """The args of parameters that are annotated as Path."""
    annotated = inspect.signature(function).parameters.items()
    wanted = (name for name, one in annotated if re.search(r"\bPath\b", str(one.annotation)))
    return [name for name in wanted if isinstance(args.get(name), str)]


def _scoring(module: ModuleType, args: Mapping[str, Any]) -> dict[str, Any]:
    """The args that the task's other functions name."""
    from optkit import user_code

    found: dict[str, Any] = {}
    for name, positional in user_code.HOOKS.items():
        function = getattr(module, name, None)
        if callable(function):
            found |= user_code.taken(function, args, positional)
    return found


def _bound(
    function: Callable[..., Any],
    args: Mapping[str, Any],
    scoring: Mapping[str, Any],
    offered: Mapping[str, Any],
) -> dict[str, Any]:
    """The arguments of a sample source. Raises InputRefused for one that nobody takes, and for one
    that is missing."""
    from optkit import user_code

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


def divide(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Samples of a whole encoder-decoder → those of one part of it. With an input `encoder`, its
    FP32 graph, they are the decoder's, which have what that graph returns for them.

    params: inputs (the part's), optional (axes that may be empty); memory.
    """
    from optkit.data import parts, spool
    from optkit.recipe import infos_from_json

    samples = spool.Spool(inputs["samples"])
    with ExitStack() as stack:
        if "encoder" in inputs:
            session = stack.enter_context(cpu(inputs["encoder"] / GRAPH, pooled=False))
            items = _encoded(session, samples)
        else:
            items = (
                (parts.of_encoder(spool.counting(feed, feed, labels)), labels)
                for feed, labels in samples
            )
        written = spool.write(
            items,
            out,
            infos_from_json(params["inputs"]),
            limit_samples=len(samples),
            memory_bytes=params["memory"],
            progress=progress,
            optional=params["optional"],
            fill=samples.labelled,
        )
    return {"info": written.to_json()}


def draw(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Some of the evaluation samples, at random: those from `start` to `stop` of the drawn order.

    params: start, stop, optional (axes that may be empty), memory.
    """
    from optkit.benchmarking import sequential as looks
    from optkit.data import spool

    samples = spool.Spool(inputs["samples"])
    numbers = looks.order(len(samples))[params["start"] : params["stop"]]
    written = spool.write(
        samples.chosen(numbers.tolist()),
        out,
        samples.inputs,
        limit_samples=None,
        memory_bytes=params["memory"],
        progress=progress,
        optional=params["optional"],
        fill=True,
    )
    return {"info": written.to_json()}


def _encoded(encoder: Session, samples: Spool) -> Iterator[tuple[Feed, Any]]:
    """The decoder's samples one by one, since the encoder returns much more than it takes; where
    its batch size is fixed, batch by batch."""
    from optkit.data import parts
    from optkit.data.spool import counting
    from optkit.tensors import batch_axis

    size = 1 if isinstance(batch_axis(samples.inputs), str) else None
    for feed, labels in samples.batches(size):
        made = parts.of_decoder(feed, encoder.run(parts.of_encoder(feed)))
        yield counting(made, feed, labels), labels


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

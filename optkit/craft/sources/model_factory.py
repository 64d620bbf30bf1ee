"""An nn.Module from a Python factory, with weights from a safetensors file or the factory's own."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from optkit.craft.sources import (
    export_failures,
    timm_config,
    toolchain,
    torch_module,
    ultralytics_heads,
)
from optkit.craft.sources.export_log import ExportLog
from optkit.facts.errors import InputRefused, OptkitError, UsageError, nearest
from optkit.facts.tensors import AxisRange, Feed, InputSpec
from optkit.ground import user_code
from optkit.ground.recipe import torch_checkpoint
from optkit.ground.runtimes import Progress, Session

if TYPE_CHECKING:
    from torch import nn

_COMPARED = 64  # values of a parameter that are compared
_OTHER_SEED = 0x5EED
_MISMATCH = re.compile(
    r"size mismatch for (\S+): copying a param with shape torch\.Size\((.*)\) from checkpoint, the "
    r"shape in current model is torch\.Size\((.*)\)\."
)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_OTHER_MODEL = (
    "give the arguments of the model that was trained, model: {args: {...}} in the recipe, or the "
    "weights that this model saved"
)
_PREFIXES = ("module.", "_orig_mod.", "model.", "state_dict.")
"""Prefixes that wrappers add to names: DistributedDataParallel, torch.compile, Lightning."""


def export(
    factory: str,
    args: Mapping[str, object],
    weights: Path | None,
    specs: Sequence[InputSpec],
    axes: Mapping[str, AxisRange],
    out: Path,
    *,
    session: Callable[[Path], Session],
    progress: Progress,
    given_weights: str | None = None,
    samples: Sequence[Feed] = (),
) -> ExportLog:
    """Write the graph of the module that `factory` returns to `out`. Raises the errors of `load`
    and `torch_module.export`."""
    progress("loading the model", 0.0)
    if weights is None:
        module, random = load_unweighted(factory, args)
    else:
        module, random = load(factory, args, weights, given_weights), None
    processor = timm_config.image_processor(module, specs)
    processor = processor or ultralytics_heads.image_processor(module)
    log = torch_module.export(
        module, specs, axes, out, session=session, progress=progress, owned=True, samples=samples
    )
    log = replace(log, image_processor=processor)
    if random is None:
        return log
    warnings = (*log.warnings, f"{random.problem} ({export_failures.some(random.names)})")
    return replace(log, untrained=random.problem, warnings=warnings)


def load(
    factory: str, args: Mapping[str, object], weights: Path | None, given_weights: str | None = None
) -> nn.Module:
    """Call `factory` ("file.py:name" or "package.module:name"), load safetensors into the module.
    `given_weights`: the user's own file, if `weights` is a copy of it; hints name this file.

    Raises InputRefused for code that fails and weights that do not fit, UsageError for arguments
    the factory does not take, ToolchainMissing without torch.
    """
    toolchain.require()
    module = _created(factory, args)
    if weights is not None:
        _load_weights(module, weights, given_weights or str(weights))
    return module


@dataclass(frozen=True)
class RandomParameters:
    """The parameters that a factory leaves random, and the problem in one clause."""

    names: tuple[str, ...]
    problem: str


def load_unweighted(
    factory: str, args: Mapping[str, object]
) -> tuple[nn.Module, RandomParameters | None]:
    """The model of `factory` without weights from a file, and its random parameters if any: those
    that differ under another seed of torch. They are searched only if the factory drew random
    numbers; then it is called twice. Raises the errors of `load`."""
    toolchain.require()
    import torch

    before = torch.get_rng_state()
    with _seeded_otherwise():
        seeded = torch.get_rng_state()
        module = _created(factory, args)
        if torch.equal(seeded, torch.get_rng_state()):
            torch.set_rng_state(before)
            return module, None
    others = _first_values(module)
    del module  # one copy of its weights at a time
    torch.set_rng_state(before)
    module = _created(factory, args)
    values = _first_values(module)
    names = tuple(name for name, first in values.items() if others.get(name) != first)
    if not names:
        return module, None
    problem = (
        f"the model is not trained: there is no model.weights, and the factory leaves "
        f"{len(names)} of {len(values)} parameter tensors random"
    )
    return module, RandomParameters(names, problem)


@contextmanager
def _seeded_otherwise() -> Iterator[None]:
    """During the body, torch's generator has another seed, even if the body sets the seed."""
    import torch

    manual_seed = torch.manual_seed
    torch.manual_seed = lambda seed: manual_seed(seed ^ _OTHER_SEED)
    try:
        manual_seed(_OTHER_SEED)
        yield
    finally:
        torch.manual_seed = manual_seed


def _first_values(module: nn.Module) -> dict[str, bytes]:
    """The first values of each parameter: enough to recognise random ones."""
    from torch.nn.parameter import is_lazy

    return {
        name: parameter.detach().reshape(-1)[:_COMPARED].double().cpu().numpy().tobytes()
        for name, parameter in module.named_parameters()
        if not is_lazy(parameter) and not parameter.is_meta
    }


def _created(factory: str, args: Mapping[str, object]) -> nn.Module:
    from torch import nn

    create = user_code.load_factory(factory)
    _check_args(create, args, factory)
    try:
        with user_code.beside(factory):
            module = create(**args)
    except OptkitError:
        raise
    except Exception as error:
        raise InputRefused(
            f"{type(error).__name__}: {error}",
            where=export_failures.line(error) or factory,
            hint=_remedy(error),
        ) from error
    if not isinstance(module, nn.Module):
        raise InputRefused(
            f"the factory returned {type(module).__name__}, not an nn.Module",
            where=factory,
            hint="let it return the model itself; its weights can be a file, model.weights",
        )
    return module


def _remedy(error: Exception) -> str:
    """What helps a factory that failed."""
    if re.search("cuda|nvidia", str(error), re.IGNORECASE):
        return (
            "leave the model on the CPU in the factory (without .cuda() and .to('cuda')), and load "
            "weights with map_location='cpu': the export needs no GPU"
        )
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"create {str(error.filename)!r}, or correct its path in this line"
    return "correct this line: the factory must return the model"


def _check_args(create: Callable[..., object], args: Mapping[str, object], factory: str) -> None:
    try:
        signature = inspect.signature(create)
    except (TypeError, ValueError):  # a callable without a signature
        return
    try:
        signature.bind(**args)
    except TypeError as error:
        known = list(signature.parameters)
        close = [near for name in args if name not in known for near in nearest(name, known)]
        missing = [
            one.name
            for one in signature.parameters.values()
            if one.default is one.empty and one.kind in _NAMED and one.name not in args
        ]
        hint = f"it takes ({', '.join(map(str, signature.parameters.values()))})"
        if missing:
            keys = ", ".join(f"{name}: ..." for name in missing)
            hint += f"; give each of them in the recipe, model: {{args: {{{keys}}}}}"
        hint = f"did you mean {' or '.join(close)}?" if close else hint
        raise UsageError(
            f"the factory's arguments do not fit: {error}", where=factory, hint=hint
        ) from error


def _load_weights(module: nn.Module, path: Path, given: str) -> None:
    """Load strictly: every parameter and buffer of the module, no others, with the same shapes.
    `given`: the file as the user named it."""
    from safetensors import SafetensorError
    from safetensors.torch import load_model

    try:
        missing, unexpected = load_model(module, path, strict=False)
    except (OSError, SafetensorError) as error:
        raise InputRefused(
            f"not a safetensors file: {error}", where=str(path), hint="save with safetensors"
        ) from error
    except RuntimeError as error:  # load_state_dict lists the shapes that differ
        lines = [line.strip() for line in str(error).splitlines()[1:]] or [str(error)]
        shapes = [_MISMATCH.sub(r"\1 is \2 in the file and \3 in the model", one) for one in lines]
        raise _misfit("; ".join(shapes[:5]), path, _OTHER_MODEL) from error
    if missing or unexpected:
        parts = (("the model needs", missing), ("the model has no", unexpected))
        problem = "; ".join(f"{what} {export_failures.some(keys)}" for what, keys in parts if keys)
        prefix = _prefix(missing, unexpected)
        hint = _OTHER_MODEL if prefix is None else _renaming(given, prefix)
        raise _misfit(problem, path, hint)


def _prefix(missing: Collection[str], unexpected: Collection[str]) -> str | None:
    """The common prefix of all names in the file, if the model needs the names without it."""
    for prefix in _PREFIXES if missing else ():
        bare = {name.removeprefix(prefix) for name in unexpected if name.startswith(prefix)}
        if len(bare) == len(unexpected) and bare >= set(missing):
            return prefix
    return None


def _renaming(given: str, prefix: str) -> str:
    """How to remove a wrapper's prefix from the names in a file."""
    code, file = torch_checkpoint.without_prefix(given, prefix)
    return (
        f"every name in the file begins with {prefix!r}, which a wrapper put there "
        f"(DistributedDataParallel, torch.compile, a trainer). Give --set model.weights={file}, "
        f"a new file without this prefix; write it in Python:\n{code}"
    )


def _misfit(message: str, path: Path, hint: str) -> InputRefused:
    return InputRefused(f"the weights do not fit: {message}", where=str(path), hint=hint)

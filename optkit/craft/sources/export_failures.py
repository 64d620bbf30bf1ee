"""Explains export failures of torch: which module, which line of the user's code, and what to do.

torch's messages contain little of this, but its traceback does: frames of nn.Module calls, frames
outside torch, and, during the translation of operators, the current fx node.
"""

from __future__ import annotations

import keyword
import linecache
import re
import traceback
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from optkit.facts.errors import ExportFailed
from optkit.facts.tensors import Feed, InputSpec

if TYPE_CHECKING:
    from torch import fx, nn

_LISTED = 5
_DATA_DEPENDENT = "data-dependent expression "
_PACKED = (
    "give the padded batch to the recurrence without pack_padded_sequence. In one direction, the "
    "outputs of the real steps are the same; a bidirectional model has to be built for one "
    "sequence at a time, with 1 as the batch in the shapes of `inputs`"
)
_REPLACE = "replace the operation by ones that ONNX has, or compute it outside the model"
_PARAMETRIZED = (
    "store the weight that it computes: torch.nn.utils.parametrize.remove_parametrizations(module, "
    "'weight') in the factory, after the weights are loaded"
)
_CUT = re.compile(r"ceil\(L\[.*?\]\.size\(\)\[\d+\] / (\d+)\) == (\d+)")
_NOT_DIVISIBLE = re.compile(r"(\d+) is not divisible by (\d+)")
_NUMBER = re.compile(r"\d+")
_MISSING = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.]+)'")
_ATTRIBUTE = re.compile(r"\.(\w+)")  # in the code that torch writes for a graph
_DERIVED = re.compile(r"(\w+) = (\d+)\*_\1\b")
_SUGGESTED = re.compile(r"Suggested fixes:\s*(.+?)\s*(\n\n|$)", re.DOTALL)


def call(
    error: Exception, module: nn.Module, feed: Feed, specs: Sequence[InputSpec]
) -> ExportFailed:
    """The model itself fails on the inputs of a feed."""
    message = first_line(error)
    undivided = _NOT_DIVISIBLE.search(message)
    axes = _axes_of(undivided[1] if undivided else message, feed, specs)
    listed = "; ".join(f"{', '.join(places)} ({axis})" for axis, places in axes.items())
    hint = "the model must run on the inputs as declared: compare their shapes, dtypes and range"
    if axes and undivided:
        hint = (
            f"the model takes only multiples of {undivided[2]}, and not all sizes that are "
            f"declared: here {listed}. Add `multiple: {undivided[2]}` where axes are declared, or "
            "let forward pad the input to the next multiple (torch.nn.functional.pad)"
        )
    elif len(axes) > 1:
        hint = f"{hint}. Of the sizes in the message, {listed}: axes that agree need the same name"
    return ExportFailed(f"{_module(error, module)} failed: {message}", where=line(error), hint=hint)


def _axes_of(message: str, feed: Feed, specs: Sequence[InputSpec]) -> dict[str, list[str]]:
    """The dynamic axes whose sizes in a feed are in the message of an error, each with its places.
    Different axes have different sizes in tracing."""
    numbers = {int(number) for number in _NUMBER.findall(message)}
    axes: dict[str, list[str]] = {}
    for spec in specs:
        sizes = feed[spec.info.name].shape
        for i, (axis, size) in enumerate(zip(spec.info.shape, sizes, strict=True)):
            if isinstance(axis, str) and size in numbers:
                axes.setdefault(axis, []).append(f"axis {i} of {spec.info.name!r} is {size}")
    return axes


def capture(error: Exception, module: nn.Module) -> ExportFailed:
    """torch.export cannot follow the model."""
    text = str(error)
    if is_data_dependent(error):
        return ExportFailed(
            f"{_module(error, module)} branches on the values of a tensor, which are only known "
            "at run time",
            where=line(error),
            hint="replace `if` and `while` on tensors: torch.where(CONDITION, A, B) computes A and "
            "B and selects, torch.cond computes only one of them",
        )
    if fixes_sizes(error):
        reasons = [line.strip(" -") for line in text.splitlines() if line.startswith("  - ")]
        suggested = _SUGGESTED.search(text)
        advice = f" torch suggests: {' '.join(suggested[1].split())}." if suggested else ""
        return ExportFailed(
            f"an axis cannot vary as declared: {' '.join(reasons) or first_line(error)}",
            where=line(error),
            hint=_recurrence(module)
            or _pieces(text)
            or _multiple(text)
            or f"narrow the axis, or fix its size, where axes are declared.{advice}",
        )
    return ExportFailed(
        f"torch cannot capture {_module(error, module)}: {first_line(error)}",
        where=line(error),
        hint=_PACKED
        if any(_packs(frame) for frame, _ in _frames(error))
        else "torch.export must be able to follow forward(); see its documentation",
    )


def is_data_dependent(error: Exception) -> bool:
    """Whether torch.export met a branch on the values of a tensor."""
    return _DATA_DEPENDENT in str(error)


def fixes_sizes(error: Exception) -> bool:
    """Whether torch.export met a condition that not all declared sizes satisfy."""
    return "Constraints violated" in str(error)


def _recurrence(module: nn.Module) -> str | None:
    """The remedy for a recurrence that torch.export unrolls, so that the number of its steps is
    fixed; None if the model has none."""
    from torch import nn

    if any(isinstance(part, nn.LSTM) and part.proj_size for part in module.modules()):
        return (
            "torch.export fixes the number of steps of nn.LSTM with proj_size, for which ONNX has "
            "no operator: fix the size of the axis where axes are declared, or replace proj_size "
            "by an nn.Linear in the model"
        )
    return None


def _pieces(text: str) -> str | None:
    """The remedy for an axis that the model cuts into pieces of a fixed size, as the ghost batch
    norm of TabNet does; None if it does not."""
    match = _CUT.search(text)
    if match is None:
        return None
    size, count = int(match[1]), int(match[2])
    return (
        f"the model cuts the axis into pieces of {size}, and their number depends on its size: "
        f"where axes are declared, give a range from {size * (count - 1) + 1} to {size * count}, "
        f"in which it is {count}"
    )


def _multiple(text: str) -> str | None:
    """The remedy for an axis of which the model takes only multiples, such as the width of a U-Net
    whose maps meet again; None if torch does not suggest one."""
    suggested = _SUGGESTED.search(text)
    match = suggested and _DERIVED.search(suggested[1])
    if not match:
        return None
    axis, number = match[1], match[2]
    return (
        f"the model takes only multiples of {number}: where axes are declared, add `multiple: "
        f"{number}` to {axis}, with multiples of it as min, opt and max"
    )


def _packs(frame: FrameType) -> bool:
    """Whether a function of torch packs a padded batch, or a recurrence reads a packed one."""
    packed = frame.f_locals.get("batch_sizes") is not None
    return packed or frame.f_code.co_name == "pack_padded_sequence"


def conversion(error: Exception) -> ExportFailed:
    """The captured program has no ONNX form."""
    root = _root(error)
    code = root.text or "" if isinstance(root, SyntaxError) else ""
    word = next(filter(keyword.iskeyword, _ATTRIBUTE.findall(code)), None)
    if word is not None:
        return ExportFailed(
            f"a part of the model has the name {word!r}, a keyword of Python, for which torch "
            f"writes code that it cannot compile: {code.strip()}",
            hint="rename this module or key of an nn.ModuleDict, also in the weights",
        )
    missing = _MISSING.search(str(error))
    what = f"ONNX has no operator for {missing[1]}" if missing else first_line(root)
    path, place, operator = _translated(error)
    told = "" if missing or operator is None else f"{operator}: "
    return ExportFailed(
        f"{path} cannot be translated: {told}{what}",
        where=place,
        hint=_PARAMETRIZED if "parametrizations." in path else _REPLACE,
    )


def _module(error: BaseException, root: nn.Module) -> str:
    """ "encoder.layer.3 (Attention)": the innermost module whose call was under way."""
    from torch import nn

    names = {id(module): name for name, module in root.named_modules()}
    for frame, _ in reversed(list(_frames(error))):
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module) and id(module) in names:
            return f"{names[id(module)] or 'the model'} ({type(module).__name__})"
    return f"the model ({type(root).__name__})"


def line(error: BaseException) -> str | None:
    """ "model.py:12: if x.sum() > 0", the innermost line outside torch and optkit."""
    for frame, number in reversed(list(_frames(error))):
        if not frame.f_code.co_filename.startswith(_ours()):
            return _shown(frame.f_code.co_filename, number)
    return None


def _translated(error: BaseException) -> tuple[str, str | None, str | None]:
    """Module path, source line and operator of the fx node that was being translated."""
    from torch import fx

    for frame, _ in reversed(list(_frames(error))):
        node = frame.f_locals.get("node")
        if isinstance(node, fx.Node):
            return *module_and_line(node), str(node.target)
    return "the model", None, None


def module_and_line(node: fx.Node) -> tuple[str, str | None]:
    """ "encoder.pool (Pool)" and "model.py:12: return self.pool(x)", of a node that torch
    captured."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path, kind = stack[-1] if stack else ("", "the model")
    name = kind if isinstance(kind, str) else kind.__qualname__
    frames = re.findall(r'File "(.+)", line (\d+)', node.meta.get("stack_trace") or "")
    lines = [_shown(file, int(n)) for file, n in frames if not file.startswith(_ours())]
    return f"{path or 'the model'} ({name.rpartition('.')[2]})", lines[-1] if lines else None


def _ours() -> tuple[str, ...]:
    """Code in which no line is the user's: torch, optkit, generated code."""
    import torch

    return (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]), "<")


def _shown(file: str, number: int) -> str:
    code = linecache.getline(file, number).strip().rstrip(":")
    return f"{file}:{number}" + (f": {code}" if code else "")


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Frames of the error and of its causes, outermost first."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) and cause not in chain:
        chain.append(cause)
    for link in chain:
        yield from traceback.walk_tb(link.__traceback__)


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def some(names: Collection[str]) -> str:
    """The first five, and the number of the others."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(sorted(names)[:_LISTED]) + more


def first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__

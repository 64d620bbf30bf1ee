"""What a module's forward leaves behind in it.

A forward may keep values for the next call, for example the anchors of a detector and the shape for
which they hold. torch.export follows the code for all sizes, so such a value of one size makes the
axis static, and the code that computes the value is missing in the graph.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """After the body, every part has the tensors, shapes and buffers that it had before: what was
    added is removed, and what was replaced is back.

    Other attributes stay, because they may say what else the body did, such as the flag that hooks
    are installed. So does a part that the body initialized (`nn.LazyLinear`), and what changed
    inside of a list or a dictionary.
    """
    before = [
        (part, type(part), dict(vars(part)), dict(part._buffers)) for part in module.modules()
    ]
    try:
        yield
    finally:
        for part, kind, attributes, buffers in before:
            if type(part) is kind:
                _restore(vars(part), attributes)
                _restore(part._buffers, buffers)


def changed(module: nn.Module, run: Callable[[], object]) -> list[str]:
    """What a run changes in the parts of a module, each with the line that names it: buffers,
    attributes, and the content of lists and dictionaries."""
    before = {path: _held(part) for path, part in module.named_modules()}
    run()
    found = []
    for path, part in module.named_modules():
        now, was = _held(part), before.get(path, {})
        names = [name for name in now if name not in was or not _equal(was[name], now[name])]
        found += [f"{f'{path}.' if path else ''}{name}{_line(part, name)}" for name in names]
    return found


def _held(part: nn.Module) -> dict[str, object]:
    """Copies of what a part holds besides weights and parts."""
    own = {name: value for name, value in vars(part).items() if name[:1] != "_"}
    return {name: _copied(value) for name, value in (own | part._buffers).items()}


def _copied(value: object) -> object:
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return copy.copy(value) if isinstance(value, list | dict | set | deque) else value


def _equal(a: object, b: object) -> bool:
    import torch

    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())
    if isinstance(a, list | tuple | deque) and isinstance(b, list | tuple | deque):
        return len(a) == len(b) and all(map(_equal, a, b))
    return a is b or (type(a) is type(b) and not isinstance(a, torch.Tensor) and bool(a == b))


def _line(part: nn.Module, name: str) -> str:
    """ " (model.py:12: self.calls += 1)": the line of forward that writes it, if it is found."""
    writes = re.compile(rf"\.{re.escape(name)}(\[.*\])?(\s*[-+*/@|&]?=[^=]|\.(append|\w+_)\()")
    try:
        lines, first = inspect.getsourcelines(type(part).forward)
        file = inspect.getsourcefile(type(part).forward)
    except (OSError, TypeError):  # code that was typed in
        return ""
    for number, line in enumerate(lines, start=first):
        if writes.search(line):
            return f" ({file}:{number}: {line.strip()})"
    return ""


def _restore(now: dict[str, Any], before: dict[str, Any]) -> None:
    for name in now.keys() | before.keys():
        old, new = before.get(name), now.get(name)
        if old is new or not (_is_data(old) or _is_data(new)):
            continue
        if name in before:
            now[name] = old
        else:
            del now[name]


def _is_data(value: object) -> bool:
    """Whether it is a tensor, a shape, or several of them."""
    import torch

    if isinstance(value, tuple | list):
        return bool(value) and all(type(part) is int or _is_data(part) for part in value)
    return isinstance(value, torch.Tensor)

"""Branches of a model on its own buffers, such as `if self.initialized:`.

torch.export knows no values while it captures a model, so it refuses every branch on a tensor. A
buffer does not depend on the inputs, and does not change in evaluation: what is computed from
buffers and numbers alone is known, and so is which branch runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.overrides import TorchFunctionMode

_LARGEST = 4096  # values of a buffer on which a model may branch
_ASKED = frozenset({"__bool__", "__int__", "__float__", "__index__", "item", "tolist"})


@contextmanager
def decided(module: nn.Module) -> Iterator[None]:
    """During the body, the values of tensors that depend on small buffers of the module alone are
    known inside its forward, also while it is captured."""
    mode = _mode(module)
    forward = module.forward

    @wraps(forward)
    def knowing(*args: Any, **kwargs: Any) -> Any:
        with mode():
            return forward(*args, **kwargs)

    replaced = vars(module).get("forward")
    module.forward = knowing
    try:
        yield
    finally:
        if replaced is None:
            del module.forward
        else:
            module.forward = replaced


def _mode(module: nn.Module) -> type[TorchFunctionMode]:
    """While the mode is on, it computes beside each function of torch what is known of its result:
    from buffers of the module and numbers alone."""
    from torch.overrides import TorchFunctionMode

    real = {
        name: buffer.detach().clone()
        for name, buffer in module.named_buffers()
        if buffer.numel() <= _LARGEST
    }

    class Known(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            # by identity; the tensor is held, so that no other one gets its identity
            self.found: dict[int, tuple[Tensor, Tensor | None]] = {}

        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            given = dict(kwargs or {})
            name = getattr(func, "__name__", "")
            values = self._values([*args, *given.values()])
            if values is None:
                if name.endswith("_") and not name.endswith("__"):  # in place, by an unknown value
                    self.found[id(args[0])] = (args[0], None)
                return func(*args, **given)
            result = _computed(func, args, given, values)
            if name in _ASKED:
                return result
            returned = func(*args, **given)
            if _is_tensor(returned) and _is_tensor(result):
                self.found[id(returned)] = (returned, result)
            return returned

        def _values(self, given: list[Any]) -> dict[int, Tensor] | None:
            """The values of the tensors among the arguments, by identity; None if there are none,
            or if one is not known."""
            buffers = {id(one): real.get(name) for name, one in module.named_buffers()}
            buffers |= {one: value for one, (_, value) in self.found.items()}
            values = {id(one): buffers.get(id(one)) for one in given if _is_tensor(one)}
            known = {one: value for one, value in values.items() if value is not None}
            nested = any(
                isinstance(one, list | tuple) and any(map(_is_tensor, one)) for one in given
            )
            return known if known and len(known) == len(values) and not nested else None

    return Known


def _computed(func: Any, args: Any, kwargs: dict[str, Any], values: dict[int, Tensor]) -> Any:
    """The function on values in place of the tensors of a capture."""
    from torch.utils._python_dispatch import _disable_current_modes

    def value(one: Any) -> Any:
        return values[id(one)].clone() if _is_tensor(one) else one

    with _disable_current_modes():
        return func(*map(value, args), **{name: value(one) for name, one in kwargs.items()})


def _is_tensor(one: object) -> bool:
    import torch

    return isinstance(one, torch.Tensor)

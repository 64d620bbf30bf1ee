"""Classes that modules have while they are trained.

Such a class is derived from the float class of the module, so the module keeps its attributes, and
the code that asks for its class finds it. Its forward has the signature of the float class: a
trainer may drop the columns of a dataset that the signature does not name.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch import nn


def derive(module: nn.Module, first: type[nn.Module], prefix: str) -> None:
    """Change the module to a class with the bases `first` and its own class, whose name is that of
    its own class after the prefix."""
    plain = type(module)

    @wraps(plain.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return first.forward(self, *args, **kwargs)

    module.__class__ = type(f"{prefix}{plain.__name__}", (first, plain), {"forward": forward})


def restore(module: nn.Module) -> None:
    """The reverse of `derive`."""
    module.__class__ = type(module).__bases__[1]

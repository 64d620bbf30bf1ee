"""What a module's forward leaves behind in it.

A forward may keep values for the next call, for example the anchors of a detector and the shape for
which they hold. torch.export follows the code for all sizes, so such a value of one size makes the
axis static, and the code that computes the value is missing in the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

_TABLES = ("_parameters", "_buffers", "_modules")


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """After the body, every part has the attributes and buffers that it had before: what was added
    is removed, and what was replaced is back. A part that the body initialized (`nn.LazyLinear`)
    keeps its new state. Changes inside of lists and dictionaries stay."""
    before = [
        (part, type(part), dict(vars(part)), dict(part._buffers)) for part in module.modules()
    ]
    try:
        yield
    finally:
        for part, kind, attributes, buffers in before:
            if type(part) is not kind:
                continue
            own = vars(part)
            for name in own.keys() - attributes.keys():
                del own[name]
            own.update(attributes)
            if part._buffers.keys() != buffers.keys() or any(
                part._buffers[name] is not value for name, value in buffers.items()
            ):
                part._buffers.clear()
                part._buffers.update(buffers)

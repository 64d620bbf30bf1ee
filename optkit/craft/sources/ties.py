"""torch.topk with the order of ONNX: of equal values, the one with the lower index is first.

torch does not specify which of several equal values it takes. With untrained weights the places of
a picture often have equal scores, and a detector that takes the best ones (RT-DETR) has other
objects in its rows, although the graph is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import Tensor
    from torch.export import ExportedProgram


def lower_index_first(program: ExportedProgram) -> AbstractContextManager[object]:
    """During the body, torch.topk takes the first of equal values. Nothing changes for a program
    without it."""
    import torch

    graphs = (part.graph for part in program.graph_module.modules() if hasattr(part, "graph"))
    if any(node.target is torch.ops.aten.topk.default for one in graphs for node in one.nodes):
        return _mode()()
    return nullcontext()


@cache
def _mode() -> type[AbstractContextManager[object]]:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class LowerIndexFirst(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self,
            func: Any,
            types: Sequence[type],
            args: Sequence[Any] = (),
            kwargs: Mapping[str, Any] | None = None,
        ) -> Any:
            called = _topk if func is torch.ops.aten.topk.default else func
            return called(*args, **(kwargs or {}))

    return LowerIndexFirst


def _topk(
    x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """The arguments of torch's operator; the result is always sorted."""
    values, indices = x.sort(dim=dim, descending=largest, stable=True)
    if x.dim() == 0:  # has no axis
        return values, indices
    return values.narrow(dim, 0, k), indices.narrow(dim, 0, k)

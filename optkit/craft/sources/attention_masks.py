"""torch's own transformer layers, computed as they are written for every mask.

`nn.TransformerEncoder` and `nn.TransformerDecoder` look at the numbers of a mask to find out
whether it is causal, which torch.export cannot follow. In evaluation they may also take fused
kernels that leave padding out and write zeros in its place; the graph computes these places like
all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from optkit.craft.sources.export_check import ModelOutputs, Reference, difference

if TYPE_CHECKING:
    from torch import nn


FUSED = (
    "where a mask hides tokens, torch's fused kernels give other values (0) than its own layers "
    "without them and than the graph: nothing may read these places. All other places agree"
)


@contextmanager
def fused() -> Iterator[None]:
    """During the body, the layers may take fused kernels, as they do for a user."""
    import torch

    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(True)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def told(module: nn.Module, reference: Reference, expected: ModelOutputs) -> tuple[str, ...]:
    """What a user is told if the fused kernels give other values where a mask hides tokens."""
    from torch import nn

    kinds = (nn.TransformerEncoderLayer, nn.MultiheadAttention)
    cases = [case for case in expected.cases if case.trial.masks == "prefix"]
    if not cases or not any(isinstance(part, kinds) for part in module.modules()):
        return ()
    with fused():
        for case in cases:
            outputs = reference(case.feed)
            if any(difference(case.outputs[name], outputs[name])[1] for name in outputs):
                return (FUSED,)
    return ()


@contextmanager
def as_given() -> Iterator[None]:
    """During the body, a mask counts as causal only if the caller says so, and the layers take no
    fused kernel."""
    import torch
    from torch.nn.modules import transformer

    detect, fused = transformer._detect_is_causal_mask, torch.backends.mha.get_fastpath_enabled()

    def told(mask: object, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True

    transformer._detect_is_causal_mask = told
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = detect
        torch.backends.mha.set_fastpath_enabled(fused)

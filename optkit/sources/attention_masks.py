"""torch's own transformer layers, computed as they are written for every mask.

`nn.TransformerEncoder` and `nn.TransformerDecoder` look at the numbers of a mask to find out
whether it is causal, which torch.export cannot follow. In evaluation they may also take fused
kernels that leave padding out and write zeros in its place; the graph computes these places like
all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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

"""Windows: how a convolution reads its input [C, *spatial], as patches [positions, groups, K].

    K = C / groups · Π kernel, channels first: a kernel [O, C / groups, *kernel] is then a matrix
    [O, K] by its layout, and the convolution is patches @ matrixᵀ in each group (im2col)

Zeros that pad the input are part of a patch, because the product sums over them too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, order=True)
class Window:
    """The attributes of an ONNX Conv that determine its patches, one number per spatial axis
    (`pads`: all begins, then all ends; `auto_pad` other than NOTSET replaces them)."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int = 1
    auto_pad: str = "NOTSET"

    @property
    def taps(self) -> int:
        """Elements of the kernel."""
        return int(np.prod(self.kernel))

    def size(self, channels: int) -> int:
        """K: the numbers of one patch in one group."""
        return channels // self.groups * self.taps

    def padding(self, spatial: tuple[int, ...]) -> list[tuple[int, int]]:
        """(begin, end) per spatial axis of an input of this size. With SAME_UPPER and SAME_LOWER
        the output has ceil(size / stride) positions, an odd zero at the end or at the begin."""
        if self.auto_pad in ("NOTSET", "VALID"):
            pads = self.pads if self.auto_pad == "NOTSET" else (0,) * 2 * len(spatial)
            return list(zip(pads[: len(spatial)], pads[len(spatial) :], strict=True))
        by_axis = []
        for size, reach, stride in zip(spatial, self._reach, self.strides, strict=True):
            total = max((-(-size // stride) - 1) * stride + reach - size, 0)
            begin = total // 2 if self.auto_pad == "SAME_UPPER" else total - total // 2
            by_axis.append((begin, total - begin))
        return by_axis

    def view(self, x: np.ndarray) -> np.ndarray:
        """Patches of x [n, C, *spatial] as [n, C, *positions, *kernel]: a view of the padded x."""
        pads = self.padding(x.shape[2:])
        padded = np.pad(x, [(0, 0), (0, 0), *pads]) if np.any(pads) else x  # pad always copies
        axes = tuple(range(2, x.ndim))
        windows = np.lib.stride_tricks.sliding_window_view(padded, self._reach, axes)
        steps = (slice(None, None, step) for step in (*self.strides, *self.dilations))
        patches: np.ndarray = windows[(slice(None), slice(None), *steps)]
        return patches

    @property
    def _reach(self) -> tuple[int, ...]:
        """Elements from the first to the last that the kernel touches."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

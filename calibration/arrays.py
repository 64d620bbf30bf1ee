"""Arrays as calibration samples: .npz or .safetensors, one array per model input.

calibration: {source: arrays, args: {path: samples.npz}}
"""

from __future__ import annotations

from optkit.data.arrays import samples

__all__ = ["samples"]

"""Pictures as calibration samples: a folder, through the model's image processor.

calibration: {source: images, args: {path: pictures}}
calibration: {source: images, args: {path: pictures, size: 224, mean: 0.5, std: 0.5}}
"""

from __future__ import annotations

from optkit.data.images import samples

__all__ = ["samples"]

"""Mean average precision of oriented boxes on pictures annotated as for YOLO.

eval: {task: obb, args: {path: data.yaml, preprocessing: letterbox, size: 1024}}
"""

from __future__ import annotations

from optkit.benchmarking.detection import combine, each, slices, weighted
from optkit.benchmarking.oriented import drawn, metric, score
from optkit.data.detection import oriented as samples

__all__ = ["combine", "drawn", "each", "metric", "samples", "score", "slices", "weighted"]

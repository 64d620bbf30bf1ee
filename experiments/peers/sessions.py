"""ONNX Runtime sessions of the comparison: the same options for everyone, plus what one asks for.

An artifact may ask for `disabled_optimizers` (list of names) or a `level` (ORT_ENABLE_BASIC, ...);
what it asked for stands in the tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime as ort

THREADS = 2


def session(model: Path, asked: dict[str, Any]) -> ort.InferenceSession:
    """Two intra-op threads that sleep when idle, all optimizations unless asked otherwise."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if "level" in asked:
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, asked["level"])
    return ort.InferenceSession(
        str(model),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=asked.get("disabled_optimizers", []),
    )

"""Calibration: run samples through the FP32 graph once and keep statistics of the tapped values.

Memory does not grow with the number of samples: a batch's values are counted and dropped.
"""

from optkit.calibration.collect import observe
from optkit.calibration.observer import Observer

__all__ = ["Observer", "observe"]

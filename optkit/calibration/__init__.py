"""Calibration: run samples through the FP32 graph and keep statistics of the tapped values.

Memory does not grow with the number of samples: a part's values are counted and dropped.

fills       constants that are no data, followed through the graph
part        what of a value in one part of the data is data
observer    streaming observers of one value
cutting     feeds into parts that fit in the memory
checkpoint  the state of a run on disk
collect     the loop
"""

from optkit.calibration.collect import observe
from optkit.calibration.cutting import SpooledFeeds
from optkit.calibration.fills import Fills, fills

__all__ = ["Fills", "SpooledFeeds", "fills", "observe"]

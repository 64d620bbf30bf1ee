"""Calibration: run samples through the FP32 graph and collect statistics of the observed values.

Memory does not grow with the number of samples: the values of each part are counted and then
dropped.

    fills       constants that are not data (mask fills), followed through the graph
    part        the elements of a value that are data, in one part of the samples
    observer    streaming observers of one value
    feeds       division of feeds into parts that fit in memory
    segments    values that wait between the segments of a graph
    checkpoint  the state of a run on disk
    collect     the loop
"""

from optkit.craft.calibration.collect import observe
from optkit.craft.calibration.feeds import SpooledFeeds
from optkit.craft.calibration.fills import Fills, fills

__all__ = ["Fills", "SpooledFeeds", "fills", "observe"]

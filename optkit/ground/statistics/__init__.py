"""Statistics: the results of calibration for each observed value, in one safetensors file that can
be merged.

    bins     histograms whose edges do not depend on data
    sums     sums that do not depend on the order of their terms
    windows  patches of the inputs of convolutions
    values   one value: extremes, histogram, numbers per channel, rows, moments
    model_statistics  all values of a model, with the identity of the data; merging
    file     the file
"""

from optkit.ground.statistics.bins import count_bins, edges
from optkit.ground.statistics.file import load, save
from optkit.ground.statistics.model_statistics import Statistics, data_digest, merge
from optkit.ground.statistics.values import (
    CHUNK,
    PATCHES,
    ROWS,
    Channels,
    MissingRange,
    Moments,
    Patches,
    SampledRows,
    Tap,
    ValueStatistics,
    merged_taps,
    of_expert,
)
from optkit.ground.statistics.windows import Window

__all__ = [
    "CHUNK",
    "PATCHES",
    "ROWS",
    "Channels",
    "MissingRange",
    "Moments",
    "Patches",
    "SampledRows",
    "Statistics",
    "Tap",
    "ValueStatistics",
    "Window",
    "count_bins",
    "data_digest",
    "edges",
    "load",
    "merge",
    "merged_taps",
    "of_expert",
    "save",
]

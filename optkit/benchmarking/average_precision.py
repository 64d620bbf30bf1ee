"""The public path of `optkit.craft.benchmarking.average_precision`."""

from optkit.craft.benchmarking.average_precision import *  # noqa: F403

"""The public path of `optkit.craft.benchmarking.intervals`."""

from optkit.craft.benchmarking.intervals import *  # noqa: F403

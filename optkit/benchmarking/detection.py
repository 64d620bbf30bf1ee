"""The public path of `optkit.craft.benchmarking.detection`."""

from optkit.craft.benchmarking.detection import *  # noqa: F403

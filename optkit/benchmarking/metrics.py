"""The public path of `optkit.craft.benchmarking.metrics`."""

from optkit.craft.benchmarking.metrics import *  # noqa: F403

"""The public path of `optkit.craft.benchmarking.pose`."""

from optkit.craft.benchmarking.pose import *  # noqa: F403

"""The public path of `optkit.craft.benchmarking.oriented`."""

from optkit.craft.benchmarking.oriented import *  # noqa: F403

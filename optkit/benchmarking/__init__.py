"""The public path of `optkit.craft.benchmarking`."""

from optkit.craft.benchmarking import *  # noqa: F403

"""The public path of `optkit.craft.benchmarking.drawings`."""

from optkit.craft.benchmarking.drawings import *  # noqa: F403

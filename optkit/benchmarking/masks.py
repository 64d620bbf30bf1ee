"""The public path of `optkit.craft.benchmarking.masks`."""

from optkit.craft.benchmarking.masks import *  # noqa: F403

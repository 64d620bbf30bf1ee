"""The public path of `optkit.satellites.generation.sampling`."""

from optkit.satellites.generation.sampling import *  # noqa: F403

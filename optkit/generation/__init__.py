"""The public path of `optkit.satellites.generation`."""

from optkit.satellites.generation import *  # noqa: F403

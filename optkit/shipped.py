"""The public path of `optkit.ground.shipped`."""

from optkit.ground.shipped import *  # noqa: F403

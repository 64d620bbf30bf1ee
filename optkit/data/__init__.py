"""The public path of `optkit.ground.data`."""

from optkit.ground.data import *  # noqa: F403

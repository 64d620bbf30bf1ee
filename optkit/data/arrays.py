"""The public path of `optkit.ground.data.arrays`."""

from optkit.ground.data.arrays import *  # noqa: F403

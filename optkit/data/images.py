"""The public path of `optkit.ground.data.images`."""

from optkit.ground.data.images import *  # noqa: F403

"""The public path of `optkit.ground.data.frames`."""

from optkit.ground.data.frames import *  # noqa: F403

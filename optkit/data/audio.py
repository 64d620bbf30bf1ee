"""The public path of `optkit.ground.data.audio`."""

from optkit.ground.data.audio import *  # noqa: F403

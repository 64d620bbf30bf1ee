"""The public path of `optkit.ground.data.detection`."""

from optkit.ground.data.detection import *  # noqa: F403

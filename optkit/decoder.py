"""The public path of `optkit.ground.decoder`."""

from optkit.ground.decoder import *  # noqa: F403

"""The public path of `optkit.ground.data.packing`."""

from optkit.ground.data.packing import *  # noqa: F403

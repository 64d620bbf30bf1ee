"""The public path of `optkit.ground.data.preprocessing`."""

from optkit.ground.data.preprocessing import *  # noqa: F403

"""The public path of `optkit.ground.data.reading`."""

from optkit.ground.data.reading import *  # noqa: F403

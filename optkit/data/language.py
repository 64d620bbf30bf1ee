"""The public path of `optkit.ground.data.language`."""

from optkit.ground.data.language import *  # noqa: F403

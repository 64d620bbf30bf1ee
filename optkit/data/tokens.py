"""The public path of `optkit.ground.data.tokens`."""

from optkit.ground.data.tokens import *  # noqa: F403

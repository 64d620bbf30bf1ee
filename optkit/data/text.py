"""The public path of `optkit.ground.data.text`."""

from optkit.ground.data.text import *  # noqa: F403

"""The public path of `optkit.ground.runtimes`."""

from optkit.ground.runtimes import *  # noqa: F403

"""The public path of `optkit.ground.data.rows`."""

from optkit.ground.data.rows import *  # noqa: F403

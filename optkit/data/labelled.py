"""The public path of `optkit.ground.data.labelled`."""

from optkit.ground.data.labelled import *  # noqa: F403

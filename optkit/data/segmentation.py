"""The public path of `optkit.ground.data.segmentation`."""

from optkit.ground.data.segmentation import *  # noqa: F403

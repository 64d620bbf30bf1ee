"""The public path of `optkit.satellites.qat`."""

from optkit.satellites.qat import *  # noqa: F403

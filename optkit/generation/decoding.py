"""The public path of `optkit.satellites.generation.decoding`."""

from optkit.satellites.generation.decoding import *  # noqa: F403

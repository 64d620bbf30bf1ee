"""The public path of `optkit.facts.errors`."""

from optkit.facts.errors import *  # noqa: F403

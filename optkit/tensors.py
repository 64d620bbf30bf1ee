"""The public path of `optkit.facts.tensors`."""

from optkit.facts.tensors import *  # noqa: F403

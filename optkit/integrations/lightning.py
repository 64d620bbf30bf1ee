"""The public path of `optkit.verbs.integrations.lightning`."""

from optkit.verbs.integrations.lightning import *  # noqa: F403

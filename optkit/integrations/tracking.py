"""The public path of `optkit.verbs.integrations.tracking`."""

from optkit.verbs.integrations.tracking import *  # noqa: F403

"""The public path of `optkit.verbs.integrations`."""

from optkit.verbs.integrations import *  # noqa: F403

"""The public path of `optkit.verbs.integrations.transformers`."""

from optkit.verbs.integrations.transformers import *  # noqa: F403

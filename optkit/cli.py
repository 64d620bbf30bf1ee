"""The public path of `optkit.verbs.cli`."""

from optkit.verbs.cli import main as main
from optkit.verbs.cli import optkit as optkit

"""What the commands are called, take and say of themselves; see `optkit.cli.options`."""

"""Names, options and help texts of the commands; see `optkit.cli.options`."""

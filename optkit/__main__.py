"""`python -m optkit` is the command `optkit`."""

from __future__ import annotations

from optkit.verbs.cli import main

if __name__ == "__main__":
    main()

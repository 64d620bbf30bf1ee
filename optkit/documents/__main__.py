"""`python -m optkit.documents NAME`: the JSON schema of a document."""

from __future__ import annotations

import json
import sys

from optkit.documents import schema

if __name__ == "__main__":
    sys.stdout.write(json.dumps(schema(*sys.argv[1:]), indent=1) + "\n")

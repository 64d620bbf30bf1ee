"""The comparison's scripts import each other by name, as they do when they are run."""

from __future__ import annotations

import sys
from pathlib import Path

PEERS = Path(__file__).resolve().parents[3] / "experiments" / "peers"
if str(PEERS) not in sys.path:
    sys.path.insert(0, str(PEERS))

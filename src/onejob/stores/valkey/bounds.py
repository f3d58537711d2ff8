"""Numbers that scripts are given, too (`scripts.py`): how much one call to the server does, which does nothing else meanwhile, and how
long a worker counts as alive.
"""

from __future__ import annotations

from typing import Final

PORTION: Final = 250
"""So many jobs one call deals with, at most."""
MOST_BYTES: Final = 2 * 1024**2
"""Past so many bytes of payloads, results and errors, the rest comes with the next call."""
GRACE: Final = 60_000
"""How long a worker that claims before its first beat counts as alive (ms)."""

"""How much one call to the server does: while a script runs, the server does nothing else. Scripts know these numbers, too."""

from __future__ import annotations

from typing import Final

PORTION: Final = 250
"""So many jobs one call deals with, at most."""
MOST_BYTES: Final = 2 * 1024**2
"""Past so many bytes of payloads, results and errors, the rest comes with the next call."""
GRACE: Final = 60_000
"""How long a worker that claims before its first beat counts as alive (ms)."""

"""What killed processes leave behind in the place of wake-up folders: sockets that nobody hears, empty folders.

Whoever starts to listen looks through it once. A socket is tried, because the number in its name may be that of
a process in another container.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Final

SUFFIX: Final = ".sock"
LONGEST: Final = 0.05
"""Seconds that a sweep takes at most: the rest is left to the next."""
LEAST_AGE: Final = 60.0
"""Seconds for which nothing must have changed in a folder: another process may just be moving in."""


def sweep(place: Path) -> None:
    """Remove from each folder the sockets of the dead, and the folder if nothing is left in it."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as prober:
        prober.setblocking(False)
        until = time.monotonic() + LONGEST
        for folder in takewhile(lambda _: time.monotonic() < until, _untouched(place)):
            with suppress(OSError):
                for path in folder.iterdir():
                    if path.suffix == SUFFIX and path.is_socket() and _is_dead(prober, str(path)):
                        path.unlink()
                folder.rmdir()  # stays unless it is empty


def _untouched(place: Path) -> Iterator[Path]:
    """The folders of ours that have lain still for a while."""
    before = time.time() - LEAST_AGE
    for folder in place.iterdir():
        with suppress(OSError):  # gone since it was listed
            about = folder.lstat()
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and about.st_mtime < before:
                yield folder


def _is_dead(prober: socket.socket, address: str) -> bool:
    """True if no process has this socket open any more; sends nothing to one that has."""
    try:
        prober.connect(address)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False

"""Where the next page of jobs starts, as text: before which number in each queue that has more.

Digits alone. A queue stands there by a few digits that are made from its name: where there are many, names would be long.
Queues that are not named have no more, or came into being since.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from onejob.core.errors import InvalidOption, shown

_NAME_DIGITS: Final = 12
_LENGTH_DIGITS: Final = 2


def written(positions: Mapping[str, int]) -> str:
    """Positions by the names of queues as a cursor."""
    return "".join(
        f"{tag(queue)}{len(str(number)):0{_LENGTH_DIGITS}}{number}" for queue, number in positions.items()
    )


def read(cursor: str) -> dict[str, int]:
    """Positions by the tags of queues."""
    positions: dict[str, int] = {}
    at = 0
    while at < len(cursor):
        start = at + _NAME_DIGITS + _LENGTH_DIGITS
        length = cursor[at + _NAME_DIGITS : start]
        end = start + int(length) if length.isdigit() else start
        number = cursor[start:end]
        if not number.isdigit() or end > len(cursor):
            raise InvalidOption(f"cursor=… must be the cursor of a page before, not {shown(cursor)}.")
        positions[cursor[at : at + _NAME_DIGITS]] = int(number)
        at = end
    return positions


def tag(queue: str) -> str:
    """The digits by which a cursor names a queue."""
    digest = int.from_bytes(blake2b(queue.encode(), digest_size=8).digest(), "big")
    return f"{digest % 10**_NAME_DIGITS:0{_NAME_DIGITS}}"

"""Dead letters: under which id and with which options the copy of a failed job waits.

The copy is made by the settlement that ends the original, and goes when either of the two is retried.
"""

from __future__ import annotations

import msgspec

from onejob.core.derived import derived_id
from onejob.core.options import decode_options, encode_options


def copy_id(original: bytes) -> bytes:
    """The id of a job's dead letter: made from the original's alone, so that to bury it twice makes one copy."""
    return derived_id(b"onejob dead letter", original)


def dead_letter_of(options: bytes | None, queue: str) -> str | None:
    """Where a job of this queue is buried if it fails; None if nowhere, or if its options cannot be read."""
    if options is None:
        return None
    try:
        dead_letter = decode_options(options).dead_letter
    except msgspec.MsgspecError:
        return None
    return None if dead_letter == queue else dead_letter


def with_dead_letter(options: bytes | None, dead_letter: str | None) -> bytes | None:
    """The same options with another dead-letter queue: none for a copy, so that it is never copied again.

    Options that cannot be read stay as they are.
    """
    try:
        decoded = decode_options(options)
    except msgspec.MsgspecError:
        return options
    return encode_options(msgspec.structs.replace(decoded, dead_letter=dead_letter))

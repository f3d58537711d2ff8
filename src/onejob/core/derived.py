"""Ids that are made from other ids alone, so that whoever makes one twice makes the same."""

from __future__ import annotations


def derived_id(purpose: bytes, origin: bytes) -> bytes:
    """A UUID of version 8 that keeps the first 48 bits of `origin`, a UUID too: its time of making."""
    import hashlib  # late: slow to load, and defining tasks needs no digest

    drawn = hashlib.sha256(purpose + b"\0" + origin).digest()
    made = bytearray(origin[:6] + drawn[:10])
    made[6] = 0x80 | made[6] & 0x0F
    made[8] = 0x80 | made[8] & 0x3F
    return bytes(made)

"""Ids as people and programs see them, and as they are stored."""

from __future__ import annotations

from onejob.core.job import JobId

_BYTES = 16


def id_to_bytes(id: str) -> bytes:
    """A job's id as 16 bytes; raises ValueError for what is none."""
    return bytes.fromhex(id.replace("-", ""))


def id_from_bytes(raw: bytes) -> JobId:
    """A job's id as people and programs see it."""
    return JobId(f"{raw[:4].hex()}-{raw[4:10].hex('-', 2)}-{raw[10:].hex()}")


def is_id(text: str) -> bool:
    """True if a text can be a job's id."""
    try:
        return len(id_to_bytes(text)) == _BYTES
    except ValueError:
        return False


def written_out(text: str) -> JobId | None:
    """An id as we write it, however its digits were given; None for what is none."""
    return id_from_bytes(id_to_bytes(text)) if is_id(text) else None

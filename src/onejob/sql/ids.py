"""Ids as people and programs see them, and as they are stored."""

from __future__ import annotations

from onejob.core.job import JobId

_BYTES = 16


def id_to_bytes(id: str) -> bytes:
    """A job's id as 16 bytes; raises ValueError for what is none."""
    return bytes.fromhex(id.replace("-", ""))


def id_from_bytes(raw: bytes) -> JobId:
    """A job's id as people and programs see it."""
    text = raw.hex(
        "-", 2
    )  # eight groups of four digits, of which an id joins the first two and the last three
    return JobId(f"{text[:4]}{text[5:29]}{text[30:34]}{text[35:]}")


def is_id(text: str) -> bool:
    """True if a text can be a job's id."""
    try:
        return len(id_to_bytes(text)) == _BYTES
    except ValueError:
        return False


def written_out(text: str) -> JobId | None:
    """An id as we write it, however its digits were given; None for what is none."""
    return id_from_bytes(id_to_bytes(text)) if is_id(text) else None

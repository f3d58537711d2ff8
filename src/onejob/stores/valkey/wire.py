"""Bytes on their way into a script. The server's Lua reads MessagePack, but of an older kind that has no bytes: they go as
text, which is bytes there. A plain `bytes` in an argument is refused by the server.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw

from onejob.sql.ids import id_to_bytes


def blob(data: bytes) -> Raw:
    """Bytes, as text of that length."""
    size = len(data)
    if size < 32:
        return Raw(bytes((0xA0 | size,)) + data)
    if size < 0x100:
        return Raw(bytes((0xD9, size)) + data)
    if size < 0x10000:
        return Raw(b"\xda" + size.to_bytes(2, "big") + data)
    return Raw(b"\xdb" + size.to_bytes(4, "big") + data)


def blob_or_false(data: bytes | None) -> Raw | bool:
    """The same; False for None."""
    return False if data is None else blob(data)


def blobs(some: Sequence[bytes]) -> list[Raw]:
    """Each of them."""
    return [blob(one) for one in some]


def id_blob(id: str) -> Raw:
    """An id, given as people and programs see it."""
    return Raw(b"\xb0" + id_to_bytes(id))

"""Payloads and results made smaller and read back, whoever wrote them.

Compressed bytes are told from JSON by their first two, so that nothing else says what is compressed. Stored
bytes are never trusted: unpacking stops at a limit, and all that is not exactly ours is refused.
"""

from __future__ import annotations

import zlib
from typing import Final

from onejob.core.options import MAX_PAYLOAD

SMALLEST: Final = 256
"""Fewer bytes than this are not worth the work."""
LEVEL: Final = 6
MOST_PACKED: Final = MAX_PAYLOAD // SMALLEST
"""Lines that can be worth the work in one payload. To unpack a line takes time, however little is in it."""

_GZIP: Final = zlib.MAX_WBITS | 16
_MAGIC: Final = b"\x1f\x8b"
_NEXT_PACKED: Final = b"\n" + _MAGIC
_STEP: Final = 16 * 1024
_TOO_BIG: Final = f"the compressed data holds more than the {MAX_PAYLOAD} bytes that a payload may have"


class NotUnpackable(ValueError):
    """Bytes that look compressed are not what `compressed` writes; the message says why."""


def compressed(data: bytes) -> bytes:
    """The data as gzip if that saves a tenth of it or more, else as it is; the same data, the same bytes."""
    if len(data) < SMALLEST:
        return data
    engine = zlib.compressobj(LEVEL, zlib.DEFLATED, _GZIP)  # writes no time into the header
    packed = engine.compress(data) + engine.flush()
    return packed if len(packed) * 10 <= len(data) * 9 else data


def unpacked(data: bytes, limit: int = MAX_PAYLOAD) -> bytes:
    """What was stored, uncompressed: lines of JSON, each of which may have been compressed by itself.

    At most `limit` bytes in all; never allocates much more than that, whatever the data claims to hold.
    """
    if _MAGIC not in data:  # JSON holds no raw control characters but the newline between its lines
        return data
    pieces: list[bytes] = []
    size, at, packed = -1, 0, 0
    while at <= len(data):
        if data.startswith(_MAGIC, at):
            packed += 1
            if packed > MOST_PACKED:
                raise NotUnpackable(f"more than {MOST_PACKED} lines of it are compressed")
            piece, at = _unpack(data, at, max(limit - size - 1, 0))
            if at < len(data) and data[at] != 0x0A:
                raise NotUnpackable(f"{len(data) - at} bytes stand behind the end of the compressed data")
        else:
            end = data.find(_NEXT_PACKED, at)
            end = len(data) if end < 0 else end
            piece, at = data[at:end], end
        pieces.append(piece)
        size += len(piece) + 1
        if size > limit:
            raise NotUnpackable(_TOO_BIG)
        at += 1
    return b"\n".join(pieces)


def _unpack(data: bytes, at: int, limit: int) -> tuple[bytes, int]:
    """The content of the gzip member that starts at a place, and the place behind it."""
    engine = zlib.decompressobj(_GZIP)
    content = bytearray()
    while not engine.eof:
        piece = data[at : at + _STEP]
        if not piece:
            raise NotUnpackable("the compressed data is cut short")
        try:
            content += engine.decompress(piece, limit + 1 - len(content))
        except zlib.error as error:
            raise NotUnpackable(f"the compressed data is damaged ({error})") from None
        at += len(piece) - len(engine.unconsumed_tail) - len(engine.unused_data)
        if len(content) > limit:
            raise NotUnpackable(_TOO_BIG)
    return bytes(content), at

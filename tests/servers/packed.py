"""MessagePack of the old kind, as the server's Lua writes it: what Python calls bytes is all text there."""

from __future__ import annotations

import struct
from typing import Any

_NUMBERS = {
    0xCA: ">f",
    0xCB: ">d",
    **dict(zip(range(0xCC, 0xD0), (">B", ">H", ">I", ">Q"), strict=True)),
    **dict(zip(range(0xD0, 0xD4), (">b", ">h", ">i", ">q"), strict=True)),
}
_SIZES = {0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC4: 1, 0xC5: 2, 0xC6: 4, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


def unpacked(data: bytes) -> Any:
    """The one value that these bytes are; anything left over is an error."""
    value, end = _value(data, 0)
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes too many")
    return value


def _value(data: bytes, at: int) -> tuple[Any, int]:
    kind = data[at]
    at += 1
    if kind < 0x80:
        return kind, at
    if kind >= 0xE0:
        return kind - 0x100, at
    if kind in _CONSTANTS:
        return _CONSTANTS[kind], at
    if kind in _NUMBERS:
        (number,) = struct.unpack_from(_NUMBERS[kind], data, at)
        return number, at + struct.calcsize(_NUMBERS[kind])
    if kind < 0xC0:
        size = kind & (0x1F if kind >= 0xA0 else 0x0F)
    else:
        width = _SIZES[kind]
        size = int.from_bytes(data[at : at + width], "big")
        at += width
    if kind < 0x90 or kind in (0xDE, 0xDF):
        pairs, at = _values(data, at, 2 * size)
        return dict(zip(pairs[::2], pairs[1::2], strict=True)), at
    if kind < 0xA0 or kind in (0xDC, 0xDD):
        return _values(data, at, size)
    if at + size > len(data):
        raise ValueError("it ends too early")
    return data[at : at + size], at + size


def _values(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    found: list[Any] = []
    for _ in range(count):
        value, at = _value(data, at)
        found.append(value)
    return found, at

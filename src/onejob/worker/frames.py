"""What a worker and its processes say to each other: small typed messages behind their length.

The worker reads them as bytes from a stranger: typed, bounded, and never unpickled.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from onejob.core.job import Claimed
from onejob.core.options import MAX_PAYLOAD
from onejob.current import AbortReason
from onejob.references import Reference, Script

MAX_FRAME: Final = MAX_PAYLOAD + 128 * 1024
"""A payload or a result, and what stands around it."""
PREFIX: Final = 4


class Boot(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The first message: how the worker's own interpreter is set up."""

    path: list[str]
    argv: list[str]
    script: Script | None
    levels: dict[str, int]
    """The levels of its loggers, by name."""
    measure: bool
    """Whether the memory in use is wanted with each end."""


class Start(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Run this job. `curve` is its named retry curve, if another process can find it."""

    claimed: Claimed
    function: Reference
    curve: Reference | None
    compresses: bool


class Abort(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Let the handler see that it should stop."""

    reason: AbortReason


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Break the handler off and end."""


class Loaded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The function has been imported, for the first time here, and is about to be called."""


class Progress(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The newest `progress`, encoded."""

    data: bytes


class Line(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A log record."""

    logger: str
    level: int
    text: str
    fields: dict[str, str | int | float | bool | None]


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The handler returned; `memory` is what the process now uses (bytes, 0 if unknown)."""

    result: bytes | None
    memory: int


class Broken(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The handler raised. `retry_in` is None if the curve is not known there."""

    error: str
    retry_in: int | None
    final: bool
    memory: int


class Slept(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The handler asked to run again later."""

    delay: int
    memory: int


ToChild: TypeAlias = Boot | Start | Abort | Stop
FromChild: TypeAlias = Loaded | Progress | Line | Ended | Broken | Slept
End: TypeAlias = Ended | Broken | Slept

read_to_child = msgspec.msgpack.Decoder(ToChild).decode
read_from_child = msgspec.msgpack.Decoder(FromChild).decode
_encoder = msgspec.msgpack.Encoder()


def framed(message: ToChild | FromChild) -> bytes:
    """A message behind its length."""
    buffer = bytearray(PREFIX)
    _encoder.encode_into(message, buffer, PREFIX)
    buffer[:PREFIX] = (len(buffer) - PREFIX).to_bytes(PREFIX)
    return bytes(buffer)


class Unframer:
    """Cuts a stream of bytes into messages."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that these bytes complete; `ValueError` for one that is too long."""
        buffer = self._buffer
        buffer += data
        whole: list[bytes] = []
        at = 0
        while len(buffer) - at >= PREFIX:
            size = int.from_bytes(buffer[at : at + PREFIX])
            if size > MAX_FRAME:
                raise ValueError(f"a message of {size} bytes exceeds {MAX_FRAME}")
            if len(buffer) - at < PREFIX + size:
                break
            whole.append(bytes(buffer[at + PREFIX : at + PREFIX + size]))
            at += PREFIX + size
        if at:
            del buffer[:at]
        return whole

"""What a worker and its processes say to each other: small typed messages behind their length.

The worker reads them as bytes from a stranger: typed, bounded, and never unpickled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

import msgspec

from onejob.core.chain import MAX_BLOCKERS
from onejob.core.job import Claimed, JobId
from onejob.core.lane import LanePlan
from onejob.core.options import MAX_PAYLOAD
from onejob.current import AbortReason
from onejob.references import Reference, Script
from onejob.store import Blocker

MAX_FRAME: Final = 2 * MAX_PAYLOAD + 40 * MAX_BLOCKERS + 128 * 1024
"""A result, the payload of the next job and the ids of its blockers, and what stands around them."""
MAX_GIVEN: Final = MAX_PAYLOAD
"""How many bytes of outputs of blockers go into one message, unless a single one has more."""
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


class Given(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Some of the chains for which the job that is started next has waited, in order."""

    blockers: list[Blocker]


class Start(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Run this job. `curve` is its named retry curve, if another process can find it; `outputs` are the functions
    of the tasks that its blockers ended with, as far as it can find those.
    """

    claimed: Claimed
    function: Reference
    curve: Reference | None
    compresses: bool
    outputs: dict[str, Reference]


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


class Next(msgspec.Struct, frozen=True, array_like=True):
    """How the chain goes on: a new job in all but its id, which follows from its place."""

    queue: str
    task: str
    payload: bytes
    priority: int
    delay: int
    expires: int | None
    max_crashes: int
    options: bytes | None
    lane: LanePlan | None
    blockers: tuple[JobId, ...]
    runs_anyway: bool


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The handler returned; `memory` is what the process now uses (bytes, 0 if unknown)."""

    result: bytes | None
    memory: int
    then: Next | None = None


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


ToChild: TypeAlias = Boot | Given | Start | Abort | Stop
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


def in_parts(blockers: Iterable[Blocker]) -> Iterator[Given]:
    """What a job waited for, in messages none of which is too long."""
    part: list[Blocker] = []
    size = 0
    for blocker in blockers:
        bytes_of = len(blocker.result or b"") + len(blocker.error or "") * 4 + 200
        if part and size + bytes_of > MAX_GIVEN:
            yield Given(part)
            part, size = [], 0
        part.append(blocker)
        size += bytes_of
    if part:
        yield Given(part)


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

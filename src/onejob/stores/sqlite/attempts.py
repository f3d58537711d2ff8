"""What is known of jobs at their start and at their end."""

from __future__ import annotations

import msgspec


class Ended(msgspec.Struct, frozen=True, gc=False):
    """A job that has just ended. `follows` is whom it was still waiting for, if it never started."""

    id: bytes
    queue: str
    digest: bytes | None
    state: str
    follows: bytes | None = None
    lane: str | None = None
    chain: bytes | None = None
    """Of a continuation: its chain's first job."""
    goes_on: bool = False
    """Its chain has a next job."""


class Start(Ended, frozen=True, gc=False):
    """A job that has just started, as it will have ended if it completes. Nothing of it changes while it runs, but that a
    key may come to one without.
    """

    seq: int = 0
    token: bytes = b""

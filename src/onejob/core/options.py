"""What a user may set, checked where it is made: names, durations, and the per-job options.

A value that gets past this module is never checked again.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from functools import cache
from typing import TypeAlias

import msgspec

from onejob.core.errors import InvalidOption, shown
from onejob.core.retry import MAX_SECONDS, Exponential, Fixed

Seconds: TypeAlias = float | int | dt.timedelta

MAX_PAYLOAD = 1_048_576
MAX_BULK = 1_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}")


def check_name(kind: str, name: object) -> str:
    """Return a queue's, task's or schedule's name if it is well formed."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidOption(
            f"{kind} name {shown(name)} is not valid: use 1 to 100 of A-Z a-z 0-9 _ . : - "
            "and start with a letter or digit."
        )
    return name


def millis(what: str, value: object, *, minimum: int | None = None) -> int:
    """Turn seconds or a timedelta into milliseconds; refuse what is not a finite span of time."""
    if isinstance(value, dt.timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = value
    else:
        raise InvalidOption(f"{what} must be seconds (a number) or a timedelta, not {shown(value)}.")
    if isinstance(seconds, float) and not math.isfinite(seconds):
        raise InvalidOption(f"{what} must be finite, not {shown(value)}.")
    if seconds > MAX_SECONDS:
        raise InvalidOption(f"{what} must be at most ten years, not {shown(value)}.")
    whole = round(max(seconds, -MAX_SECONDS) * 1000)
    if whole == 0 and seconds > 0:
        whole = 1
    if minimum is not None and whole < minimum:
        raise InvalidOption(f"{what} must be at least {minimum / 1000:g} seconds, not {shown(value)}.")
    return whole


def whole_number(what: str, value: object, low: int, high: int) -> int:
    """Return an int within bounds; a bool is not a number here."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidOption(f"{what} must be a whole number from {low} to {high}, not {shown(value)}.")
    return value


class JobOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Settings that travel with a job to its worker. Only what differs from the defaults is stored."""

    attempts: int = 1
    backoff: Exponential | Fixed | str = Exponential()
    never: tuple[str, ...] = ()
    timeout: int | None = None
    into: str | None = None
    """The list parameter that collected calls are appended to."""
    dead_letter: str | None = None
    """The queue in which a copy waits if the job fails."""
    schedule: str | None = None
    """The schedule that made it, and the slot that it is for; no slot if it was asked for besides."""
    slot: int | None = None


_encoder = msgspec.json.Encoder()


@cache
def _decoder() -> msgspec.json.Decoder[JobOptions]:
    """Made on first use: to read the hints takes its time, and who only defines tasks decodes nothing."""
    return msgspec.json.Decoder(JobOptions)


def encode_options(options: JobOptions) -> bytes | None:
    """Encode what differs from the defaults; None when nothing does."""
    data = _encoder.encode(options)
    return None if data == b"{}" else data


def decode_options(data: bytes | None) -> JobOptions:
    """Read what `encode_options` wrote; raises `msgspec.ValidationError` on anything else."""
    return JobOptions() if data is None else _decoder().decode(data)

"""What stored payloads hold, for those who look on without knowing the task: plain JSON values, or nothing.

Bytes are never trusted: they are read up to the size that a payload may have, and what cannot be read holds
nothing. Typed arguments, and why they cannot be had, are the codec's part.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import msgspec

from onejob.core.compression import NotUnpackable, unpacked
from onejob.core.filter import ArgumentIs, steps
from onejob.core.options import MAX_PAYLOAD

_decoder = msgspec.json.Decoder()


def calls_in(payload: bytes) -> list[Any] | None:
    """The arguments of each call in a payload, one unless calls were collected; None if it cannot be read."""
    if len(payload) > MAX_PAYLOAD:
        return None
    try:
        return _decoder.decode_lines(unpacked(payload))
    except (NotUnpackable, msgspec.MsgspecError, RecursionError, ValueError):
        return None


def value_in(data: bytes | None) -> Any:
    """A stored result or progress as a plain value; None if there is none, or if it cannot be read."""
    found = None if data is None else calls_in(data)
    return found[0] if found else None


def holds(payload: bytes, wanted: Iterable[ArgumentIs]) -> bool:
    """True if one call in the payload has every wanted argument."""
    paths = [(steps(argument.path), argument.values) for argument in wanted]
    return any(all(_found(call, path, values) for path, values in paths) for call in calls_in(payload) or ())


def scalar_text(value: object) -> str | None:
    """A scalar as a filter writes it: text as it is, the rest as in JSON; None for lists and objects."""
    if isinstance(value, str):
        return value
    if isinstance(value, (list, dict)):
        return None
    return msgspec.json.encode(value).decode()


def _found(call: object, path: tuple[str | int, ...], values: frozenset[str]) -> bool:
    value = call
    for step in path:
        match value:
            case dict() if isinstance(step, str) and step in value:
                value = cast("dict[str, object]", value)[step]
            case list() if isinstance(step, int) and step < len(cast("list[object]", value)):
                value = cast("list[object]", value)[step]
            case _:
                return False
    candidates = cast("list[object]", value) if isinstance(value, list) else [value]
    return any(scalar_text(candidate) in values for candidate in candidates)

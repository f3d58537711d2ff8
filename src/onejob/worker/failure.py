"""Errors as text that is safe to store and to log, whatever a handler raised."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType

from onejob.logs import printable

__all__ = ["cut", "describe", "first_line", "headline", "one_line"]

MAX_TEXT = 8 * 1024
MAX_MESSAGE = 4 * 1024
MAX_FRAMES = 8
MAX_CAUSES = 3


def describe(error: BaseException) -> str:
    """`Type: message`, where it happened and what caused it; at most 8 KiB, control characters escaped."""
    lines = [headline(error), *_frames(error.__traceback__)]
    for cause in islice(_causes(error), MAX_CAUSES):
        lines += [f"caused by {headline(cause)}", *_frames(cause.__traceback__)]
    return cut("\n".join(lines))


def first_line(text: str | None) -> str:
    """The part of an error text that fits into a log line."""
    return (text or "").split("\n", 1)[0][:500]


def one_line(text: str | None) -> str:
    """The first line of what `describe` wrote, and where it was raised."""
    place = None
    for line in (text or "").split("\n")[1:]:
        if not line.startswith("  "):
            break  # its causes come next
        place = _PLACE.match(line) or place
    return first_line(text) + (f" ({place[1]})" if place else "")


def cut(text: str) -> str:
    """At most 8 KiB of it, as UTF-8."""
    data = text.encode(errors="backslashreplace")
    if len(data) <= MAX_TEXT:
        return data.decode()
    return data[: MAX_TEXT - 3].decode(errors="ignore") + "…"


def headline(error: BaseException) -> str:
    """`Type: message`, printable, whatever its `__str__` does."""
    name = type(error).__qualname__
    try:
        message = str(error)[:MAX_MESSAGE]
    except BaseException as broken:  # whatever __str__ raises, the attempt ends with a text
        message = f"<no message: its __str__ raised {type(broken).__qualname__}>"
    return cut(printable(f"{name}: {message}" if message else name))


def _frames(where: TracebackType | None) -> list[str]:
    try:
        frames = traceback.extract_tb(where)
    except Exception as broken:  # source files may be unreadable or gone
        return [f"  (no traceback: {type(broken).__qualname__})"]
    own = [frame for frame in frames if not frame.filename.startswith(_HERE)]
    return [
        printable(
            f"  {frame.filename}:{frame.lineno} in {frame.name}" + (f": {frame.line}" if frame.line else "")
        )
        for frame in own[-MAX_FRAMES:]
    ]


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = {id(error)}
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


_PLACE = re.compile(r"  (.+?:\d+) in ")
_HERE = f"{Path(__file__).parent.parent}/"

"""The `onejob` logger: one line per event, its fields in `extra`, nothing in it that could forge a line."""

from __future__ import annotations

import logging

logger = logging.getLogger("onejob")

_TAKEN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def event(level: int, text: str, **fields: object) -> None:
    """Log one event. Text and fields are escaped; a field whose name a log record owns gets a prefix."""
    if logger.isEnabledFor(level):
        extra = {f"job_{name}" if name in _TAKEN else name: _safe(value) for name, value in fields.items()}
        # As an argument, so that a percent sign in a key is only a percent sign.
        logger.log(level, "%s", printable(text), extra=extra)


def printable(text: str) -> str:
    """The text on one line, control characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _safe(value: object) -> object:
    return printable(value) if isinstance(value, str) else value

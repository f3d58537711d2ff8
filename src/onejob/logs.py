"""The `onejob` logger: one line per event, its fields in `extra`, nothing in it that could forge a line."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from typing import Any

logger = logging.getLogger("onejob")

_TAKEN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def event(source: logging.Logger, level: int, name: str, text: str, /, **fields: object) -> None:
    """Log one event. `name` is for machines and stays as it is, `text` is for people.

    Text and fields are escaped; a field whose name a log record owns gets a prefix. The record's `event` is
    the name.
    """
    if source.isEnabledFor(level):
        extra = {f"job_{field}" if field in _TAKEN else field: _safe(fields[field]) for field in fields}
        # As an argument, so that a percent sign in a key is only a percent sign.
        source.log(level, "%s", printable(text), extra={"event": name, **extra}, stacklevel=2)


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """A handler's logger: adds the job's fields to each record, beside those the handler passes as `extra`."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        super().__init__(logging.getLogger("onejob.job"), fields)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Merge both sets of fields."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


def printable(text: str) -> str:
    """The text on one line, control characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _safe(value: object) -> object:
    return printable(value) if isinstance(value, str) else value

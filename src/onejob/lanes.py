"""From a lane to the lane of one call: what `key` and `by=` mean for a task's parameters.

A lane's key is a text that people read and type. It is written so that other parts always make another text;
the writing is a published format, because processes of different versions share lanes.
"""

from __future__ import annotations

import datetime as dt
import enum
import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias, cast

import msgspec

from onejob.core.errors import InvalidOption, shown
from onejob.core.identity import encode_part
from onejob.core.lane import Lane, LanePlan, check_lane_key
from onejob.keys import OfArguments, check_parameter

LaneRule: TypeAlias = Callable[[msgspec.Struct], LanePlan | None]
"""The lane of a call with these bound arguments; None if it has none."""

_ALIKE: Final = re.compile(r'[/"(]|^(?:-|true|false|[-+]?(?:inf|nan|[0-9][0-9.e+-]*))$')
"""Text that could be taken for several parts, or for a value that is no text."""


def lane_rule(task: str, parameters: Sequence[str], lane: Lane) -> LaneRule:
    """Read a lane once for all calls of a task; raises if it names a parameter that there is not."""
    if lane.key is not None:
        plan = lane.plan(lane.key)
        return lambda _: plan
    if callable(lane.by):
        return _ByFunction(OfArguments(task, "Lane(by=…)", lane.by, parameters), lane, task)
    names = cast("tuple[str, ...]", lane.by)
    for name in names:
        check_parameter(task, "Lane(by=…)", name, parameters)
    return _ByNames(names, lane)


def parts_text(parts: Iterable[object]) -> str:
    """Parts as one text; a missing part (None or "") is a value of its own."""
    return "/".join([_part(part) for part in parts])


class _ByNames:
    """The lane's key is made of the arguments named, and says their names: `user_id:42`."""

    __slots__ = ("_lane", "_names")

    def __init__(self, names: tuple[str, ...], lane: Lane) -> None:
        self._names = names
        self._lane = lane

    def __call__(self, arguments: msgspec.Struct) -> LanePlan | None:
        text = "/".join([f"{name}:{_part(getattr(arguments, name))}" for name in self._names])
        return self._lane.plan(check_lane_key(text))


class _ByFunction:
    """The lane's key is the text that a function of the user's returns, or is made of the parts it returns."""

    __slots__ = ("_function", "_lane", "_task")

    def __init__(self, function: OfArguments, lane: Lane, task: str) -> None:
        self._function = function
        self._lane = lane
        self._task = task

    def __call__(self, arguments: msgspec.Struct) -> LanePlan | None:
        made = self._function(arguments)
        if made is None:
            return None
        return self._lane.plan(check_lane_key(made if isinstance(made, str) else self._text(made)))

    def _text(self, made: object) -> str:
        if not isinstance(made, (tuple, list)):
            return _part(made)
        if not made:
            raise InvalidOption(
                f"The function in Lane(by=…) of task {self._task!r} returned no parts: return a text, a tuple of "
                "parts, or None for no lane."
            )
        return parts_text(cast("Sequence[object]", made))


def _part(part: Any) -> str:
    match part:
        case None | "":
            return "-"
        case enum.Enum():
            return f"{type(part).__name__}({_part(part.value)})"
        case str():
            return part if part.isprintable() and not _ALIKE.search(part) else _quoted(part)
        case bool():
            return "true" if part else "false"
        case int():
            return str(int(part))
        case float():
            return repr(float(part) + 0.0)
        case uuid.UUID():
            return f"UUID({part})"
        case dt.date() if type(part) is dt.date:
            return f"date({part})"
        case _:
            return f"{type(part).__name__}(#{_digest(part)})"


def _quoted(text: str) -> str:
    try:
        return msgspec.json.encode(text).decode()
    except UnicodeEncodeError:
        return check_lane_key(text)  # which says that it cannot be one


def _digest(part: object) -> str:
    import hashlib  # few lanes are made of lists or models

    try:
        return hashlib.sha256(encode_part(part)).hexdigest()[:32]
    except ValueError as error:
        raise InvalidOption(f"A lane's key cannot be made of {shown(part)}: {error}") from None

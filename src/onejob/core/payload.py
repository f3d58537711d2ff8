"""What may go into a payload: values that JSON carries exactly and that come back as they were sent.

`survey` refuses what JSON would change or lose, `difference` compares what was sent with what came back.
Nothing here knows about tasks; a refusal carries the steps that lead to the value, and the caller names it.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import math
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import msgspec

from onejob.core.errors import shown

MAX_DEPTH = 64

HARMLESS = frozenset({str, int, bool, type(None)})
"""Types whose values JSON carries as they are, but for what the encoder itself refuses."""

PLAIN = 0
"""Nothing but JSON's own types: no need to look at what comes back."""
RICH = 1
"""Holds a value that only its type hint can bring back."""
UNORDERED = 2
"""Holds a set, whose order differs from process to process."""

_TEXT = frozenset({str})
_RICH_SCALARS = frozenset(
    {dt.datetime, dt.date, dt.time, dt.timedelta, uuid.UUID, decimal.Decimal, bytes, bytearray, memoryview}
)
_SCALARS: tuple[type, ...] = (str, int, float, enum.Enum, *_RICH_SCALARS)
_KEYS = (str, int, float, uuid.UUID, dt.date, dt.time, dt.timedelta, decimal.Decimal, bytes, enum.Enum)


class Unfit(Exception):
    """A value cannot be stored; remembers the way to it from the value first looked at."""

    def __init__(self, reason: str, value: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.value = value
        self._steps: list[tuple[str, object]] = []

    def within(self, container: object, step: str) -> Unfit:
        """The same refusal seen from one level further out."""
        self._steps.append((step, container))
        return self

    def located(self) -> tuple[str, str, object]:
        """The path from the outside in, the reason and the value; a cycle is followed once round."""
        seen: set[int] = set()
        path = ""
        for step, container in reversed(self._steps):
            if id(container) in seen:
                return path, "contains itself", container
            seen.add(id(container))
            path += step
        return path, self.reason, self.value


def survey(value: object, depth: int = 0) -> int:
    """Say what a value holds (`PLAIN`, `RICH`, `UNORDERED`), or raise `Unfit` if it cannot be stored."""
    kind = type(value)
    if kind in HARMLESS:
        return PLAIN
    if kind is float:
        if math.isfinite(cast("float", value)):
            return PLAIN
        raise Unfit("is not a finite number", value)
    if depth >= MAX_DEPTH and not isinstance(value, _SCALARS):
        raise Unfit(f"is nested more than {MAX_DEPTH} levels deep", value)
    if kind is list or kind is tuple:
        items = cast("list[object]", value)
        return PLAIN if HARMLESS.issuperset(map(type, items)) else _survey_each(items, items, depth)
    if kind is dict:
        table = cast("dict[object, object]", value)
        if _TEXT.issuperset(map(type, table)):
            items = table.values()
            return PLAIN if HARMLESS.issuperset(map(type, items)) else _survey_each(table, items, depth)
    return RICH | _survey_rich(value, depth)


def parts(value: object) -> Iterator[tuple[str, object]]:
    """What a value is made of, each with the step that leads to it."""
    if isinstance(value, dict):
        for key, item in cast("dict[object, object]", value).items():
            yield _step(key), item
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(cast("list[object]", value)):
            yield f"[{index}]", item
    elif isinstance(value, (set, frozenset)):
        for item in cast("set[object]", value):
            yield "[…]", item
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield f".{name}", getattr(value, name)
    elif is_dataclass(value):
        for name in dataclass_fields(value):
            yield f".{name}", getattr(value, name)


def difference(sent: object, back: object, path: str = "") -> tuple[str, object, object] | None:
    """Where what came back is not equal to what was sent: the path and both values; None if nowhere.

    A plain tuple that comes back as a list is not a difference: that is what JSON makes of it.
    """
    if issubclass(type(sent), dict) and issubclass(type(back), dict):
        one, other = cast("dict[object, object]", sent), cast("dict[object, object]", back)
        if one.keys() != other.keys():
            return path, one, other
        pairs = [(_step(key), item, other[key]) for key, item in one.items()]
    elif _same_shape(sent, back):
        pairs = [(step, part, twin) for (step, part), (_, twin) in zip(parts(sent), parts(back), strict=True)]
    else:
        return None if sent == back else (path, sent, back)
    for step, part, twin in pairs:
        found = difference(part, twin, path + step)
        if found is not None:
            return found
    return None


def unencodable(value: object, encode: Callable[[object], bytes]) -> Unfit:
    """Find the smallest part of a value that `encode` refuses."""
    for step, part in parts(value):
        try:
            encode(part)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return unencodable(part, encode).within(value, step)
    if isinstance(value, int):
        return Unfit("has more than 4,300 digits", value)
    if isinstance(value, (str, dict)):
        return Unfit("holds a lone surrogate, which is not text", cast("object", value))
    return Unfit(f"is of type {type(value).__qualname__}, which cannot be stored", value)


def refuse_duplicate_keys(payload: bytes) -> None:
    """Raise `ValueError` if an object of this JSON, at any depth, has a key twice."""
    import json  # only bytes of another make need it

    def unique(pairs: list[tuple[str, Any]]) -> None:
        names = [name for name, _ in pairs]
        if len(names) != len(set(names)):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"the key {shown(twice)} stands twice in one object")

    json.loads(payload, object_pairs_hook=unique)


def is_model(kind: object) -> bool:
    """True for a pydantic model class, told by its interface so that pydantic need not be there."""
    return (
        isinstance(kind, type) and hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump_json")
    )


def is_dataclass(value: object) -> bool:
    """True for an instance of a dataclass, told by its interface: `dataclasses` is slow to load."""
    return hasattr(type(value), "__dataclass_fields__")


def dataclass_fields(value: Any) -> list[str]:
    """The names of a dataclass's fields."""
    from dataclasses import fields  # whose value this is has loaded it

    return [field.name for field in fields(value)]


def _survey_each(container: object, items: Iterable[object], depth: int) -> int:
    found = PLAIN
    for item in items:
        if type(item) not in HARMLESS:
            try:
                found |= survey(item, depth + 1)
            except Unfit as unfit:
                step = next(step for step, part in parts(container) if part is item)
                raise unfit.within(container, step) from None
    return found


def _survey_rich(value: object, depth: int) -> int:
    kind = type(value)
    if kind in _RICH_SCALARS or isinstance(value, (enum.Enum, str, int)) or is_model(kind):
        return PLAIN
    if isinstance(value, float):
        return survey(float(value), depth)
    if isinstance(value, dict):
        for key in cast("dict[object, object]", value):
            if isinstance(key, bool) or not isinstance(key, _KEYS):
                raise Unfit(f"has the key {shown(key)}, and keys must be strings", cast("object", value))
    elif not isinstance(value, (list, tuple, set, frozenset, msgspec.Struct)) and not is_dataclass(value):
        raise Unfit(f"is of type {kind.__qualname__}, which cannot be stored", value)
    found = UNORDERED if isinstance(value, (set, frozenset)) else PLAIN
    container = cast("object", value)
    return found | _survey_each(container, [part for _, part in parts(container)], depth)


def _same_shape(sent: object, back: object) -> bool:
    """True if both can be compared part by part, which finds the innermost difference."""
    kind = type(sent)
    if issubclass(kind, (list, tuple)) and isinstance(back, (list, tuple)):
        alike = kind is type(cast("object", back)) or kind is tuple or issubclass(kind, list)
        return alike and len(cast("list[object]", sent)) == len(cast("list[object]", back))
    return kind is type(back) and (isinstance(sent, msgspec.Struct) or is_dataclass(sent))


def _step(key: object) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{shown(key)}]"

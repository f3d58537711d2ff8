"""Identity: from the values that make two jobs "the same" to one digest, equal in every process and store.

A digest is 128 bits of SHA-256 over a version byte, scope, queue, task and typed, length-prefixed parts, so
that ("a:b", "c") and ("a", "b:c") differ, and so do 1, 1.0, True and "1". The bytes are a published format:
changing them orphans every key in every store.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import msgspec

from onejob.core.errors import InvalidOption, shown
from onejob.core.payload import MAX_DEPTH, dataclass_fields, is_dataclass

if TYPE_CHECKING:
    import hashlib
    from _hashlib import HASH

Key = tuple[bytes, str]
"""A key's digest, and the key as people read it."""

VERSION = b"\x01"
MAX_TEXT = 200
INT64 = 2**63
_EMPTY = b"-"
_HEADS = tuple(b"s%d:" % length for length in range(4 * MAX_TEXT + 1))
"""What stands before a text of so many bytes."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


class Realm:
    """The part of an identity that all jobs of a task share: scope, queue and task."""

    __slots__ = ("_hashed", "_prefix")

    def __init__(self, queue: str, task: str | None) -> None:
        """`task=None` is `scope="queue"`: the key is shared by all tasks of the queue."""
        scope = b"q" if task is None else b"t"
        self._prefix = VERSION + scope + _text(queue) + _text(task or "")
        self._hashed: HASH | None = None

    def digest(self, parts: Iterable[object]) -> bytes:
        """The 16 bytes that name a key made of these parts. A missing part (None or "") is a value of its own."""
        state = self._start()
        try:
            state.update(b"".join([encode_part(part) for part in parts]))
        except ValueError as error:
            raise _unfit(error) from None
        return state.digest()[:16]

    def key(self, part: object) -> Key:
        """A key made of one part, which most are."""
        # Every call with a key comes here: nothing is called that can be spared.
        if type(part) is str and part and len(part) <= MAX_TEXT and part.isprintable():
            data, text = part.encode(), part
            encoded = _HEADS[len(data)] + data
        elif type(part) is int and -INT64 < part < INT64:
            encoded, text = _encode_number(part, 0), str(part)
        else:
            return self._any_key((part,))
        state = (self._hashed or self._prepare()).copy()
        state.update(encoded)
        return state.digest()[:16], text

    def key_of(self, parts: tuple[object, ...]) -> Key:
        """A key made of several parts, which are mostly text and numbers."""
        encoded, texts = b"", list[str]()
        for part in parts:
            if type(part) is str and part and part.isprintable():
                encoded += _encode_text(part, 0)
                texts.append(part)
            elif type(part) is int and -INT64 < part < INT64:
                encoded += _encode_number(part, 0)
                texts.append(str(part))
            else:
                return self._any_key(parts)
        text = "/".join(texts)
        if not 0 < len(text) <= MAX_TEXT:
            return self._any_key(parts)
        state = self._start()
        state.update(encoded)
        return state.digest()[:16], text

    def _any_key(self, parts: tuple[object, ...]) -> Key:
        return self.digest(parts), key_text(parts)

    def call_digest(self, arguments: Mapping[str, object]) -> bytes:
        """The 16 bytes that name a key made of the whole call."""
        state = self._start()
        try:
            state.update(b"c" + _encode(arguments, MAX_DEPTH + 1))  # each argument may have as many as a part
        except ValueError as error:
            raise _unfit(error) from None
        return state.digest()[:16]

    def _start(self) -> HASH:
        return (self._hashed or self._prepare()).copy()

    def _prepare(self) -> HASH:
        import hashlib  # late: slow to load, and defining tasks needs no digest

        self._hashed = hashlib.sha256(self._prefix)
        return self._hashed


def encode_part(part: object) -> bytes:
    """One typed, length-prefixed part of a key."""
    return _EMPTY if part is None or part == "" else _encode(part)


def key_text(parts: Iterable[object]) -> str:
    """The key as people read it."""
    return _readable("/".join([_part_text(part) for part in parts]) or "(one per task)")


def call_text(arguments: Mapping[str, object]) -> str:
    """The key of a whole call as people read it."""
    return _readable(", ".join(f"{name}={_part_text(value)}" for name, value in arguments.items()) or "()")


def fingerprint(payload: bytes) -> bytes:
    """Eight bytes by which a duplicate's arguments are compared with the holder's."""
    state = _eight_bytes().copy()  # quicker than a new one with its size
    state.update(payload)
    return state.digest()


@cache
def _eight_bytes() -> hashlib.blake2b:
    import hashlib  # see `Realm`

    return hashlib.blake2b(digest_size=8)


def _text(text: str) -> bytes:
    data = text.encode()
    return b"%d:" % len(data) + data


def _tagged(tag: bytes, data: bytes) -> bytes:
    return tag + b"%d:" % len(data) + data


def _encode(value: Any, room: int = MAX_DEPTH) -> bytes:
    """A value as bytes; `room` is how many levels it may still be nested."""
    return _BY_TYPE.get(value.__class__, _encode_any)(value, room)


def _encode_text(value: str, _room: int) -> bytes:
    data = value.encode()
    return b"s%d:" % len(data) + data


def _encode_number(value: int, _room: int) -> bytes:
    data = b"%d" % value
    return b"i%d:" % len(data) + data


def _encode_float(value: float, _room: int) -> bytes:
    return b"f" + struct.pack(">d", value + 0.0)


def _encode_items(value: Iterable[Any], room: int) -> bytes:
    room = _inside(room)
    return _tagged(b"l", b"".join([_encode(item, room) for item in value]))


def _encode_pairs(value: Mapping[Any, Any], room: int) -> bytes:
    room = _inside(room)
    pairs = [_encode(key, room) + _encode(item, room) for key, item in value.items()]
    pairs.sort()
    return _tagged(b"m", b"".join(pairs))


def _inside(room: int) -> int:
    """One level further in. Counted, because a value that contains itself would use up the caller's whole stack."""
    if room <= 0:
        raise InvalidOption(
            "A key cannot be made of a value that contains itself or is nested too deep: "
            f"{MAX_DEPTH} levels are allowed."
        )
    return room - 1


_AS_THEY_PRINT = frozenset({int, float, bool, list, dict})
_BY_TYPE: dict[type, Callable[[Any, int], bytes]] = {
    type(None): lambda _value, _room: b"n",
    bool: lambda value, _room: b"T" if value else b"F",
    str: _encode_text,
    int: _encode_number,
    float: _encode_float,
    list: _encode_items,
    tuple: _encode_items,
    dict: _encode_pairs,
}
"""The commonest types, found at once; subclasses and the rest go through `_encode_any`."""


def _encode_any(value: Any, room: int) -> bytes:
    match value:
        case enum.Enum():
            return _tagged(b"e", _encode(value.value, room))
        case str():
            return _encode_text(value, room)
        case int():
            return _encode_number(value, room)
        case float():
            return _encode_float(value, room)
        case bytes() | bytearray():
            return _tagged(b"b", bytes(value))
        case uuid.UUID():
            return b"u" + value.bytes
        case dt.datetime():
            return _tagged(b"d", _instant(value))
        case dt.date() | dt.time():
            return _tagged(b"D", value.isoformat().encode())
        case dt.timedelta():
            return _tagged(b"p", b"%d" % (value // _MICROSECOND))
        case decimal.Decimal():
            return _tagged(b"x", _exact(value))
        case list() | tuple():
            return _encode_items(cast("list[Any]", value), room)
        case set() | frozenset():
            room = _inside(room)
            return _tagged(b"S", b"".join(sorted(_encode(item, room) for item in cast("set[Any]", value))))
        case Mapping():
            return _encode_pairs(cast("Mapping[Any, Any]", value), room)
        case _:
            return _encode_pairs(_as_mapping(value), room)


def _unfit(error: Exception) -> InvalidOption:
    match error:
        case InvalidOption():
            return error
        case UnicodeEncodeError():
            return InvalidOption(f"A key cannot hold lone surrogates: {shown(error.object)} is not text.")
        case _:
            return InvalidOption(f"A key cannot be made of this value: {error}.")


def _as_mapping(value: Any) -> dict[str, Any]:
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if is_dataclass(value):
        return {name: getattr(value, name) for name in dataclass_fields(value)}
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return cast("dict[str, Any]", dump())
    raise InvalidOption(
        f"A key cannot be made of {shown(value)} ({type(value).__name__}): "
        "use text, numbers, dates, ids, or name the argument's own key with by=."
    )


def _instant(value: dt.datetime) -> bytes:
    if value.tzinfo is None:
        return b"naive" + value.isoformat().encode()
    return b"%d" % ((value - _EPOCH) // _MICROSECOND)


def _exact(value: decimal.Decimal) -> bytes:
    """A decimal without trailing zeros; not by `normalize`, which rounds to the thread's own precision."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise InvalidOption(f"A key cannot be made of {shown(value)}: it is not a finite number.")
    text = "".join(map(str, digits))
    short = text.rstrip("0")
    if not short:
        return b"0"
    return f"{'-' if sign else ''}{short}E{exponent + len(text) - len(short)}".encode()


def _part_text(part: object) -> str:
    if type(part) is str:
        return part or "-"
    if part is None:
        return "-"
    if type(part) in _AS_THEY_PRINT:
        return str(part)
    if isinstance(part, enum.Enum):
        return str(part.value)
    if isinstance(part, (bytes, bytearray)):
        return part.hex()
    return str(part)


def _readable(text: str) -> str:
    if len(text) <= MAX_TEXT and text.isprintable():
        return text
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"

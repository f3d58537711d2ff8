"""Arguments to payload bytes and back: one JSON object per call, typed by the task's own hints.

Arguments are bound and checked at the caller, so that a mistake fails there and nothing is stored. Stored
bytes are never trusted: whatever they hold, the outcome is typed arguments or `Undecodable`. Nothing in them
is ever imported, evaluated or unpickled.
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from math import isfinite
from typing import Any, NoReturn, TypeAlias, cast

import msgspec

from onejob.core.compression import NotUnpackable, unpacked
from onejob.core.errors import ArgumentsInvalid, InvalidOption, PayloadTooLarge, Undecodable, shown
from onejob.core.options import MAX_PAYLOAD
from onejob.core.payload import (
    HARMLESS,
    MAX_DEPTH,
    PLAIN,
    UNORDERED,
    Unfit,
    difference,
    is_model,
    refuse_duplicate_keys,
    survey,
    unencodable,
)
from onejob.core.signature import Shape, read_parameters, shape_of
from onejob.core.wording import declared, in_words, typed, unlike, wrong_call

Arguments: TypeAlias = msgspec.Struct
"""The typed arguments of one call, defaults included."""

_AS_THEY_ARE = (
    dt.datetime,
    dt.date,
    dt.time,
    dt.timedelta,
    uuid.UUID,
    decimal.Decimal,
    bytes,
    bytearray,
    memoryview,
)
_NOT_ENCODABLE = (TypeError, ValueError, OverflowError, RecursionError)
_CONTROL = b"\x1f"
"""What compressed data starts with; in JSON it never stands as it is."""
_REMEDY = "Pass a value of that type, or change the parameter's type hint."
_ANNOTATE = "Annotate the parameter with the type it carries, or pass text, numbers, booleans, lists and dicts with string keys."


def _to_json(value: Any) -> object:
    """Encode what msgspec does not know: pydantic models, and subclasses of text and numbers."""
    if is_model(cast("object", type(value))):
        return msgspec.Raw(value.model_dump_json(by_alias=True).encode())
    match value:
        case str():
            return str.__str__(value)
        case int():
            return int.__int__(value)
        case float():
            return float.__float__(value)
        case _:
            raise TypeError(f"values of type {type(value).__qualname__} cannot be stored")


def _from_python(kind: Any, value: Any) -> Any:
    return kind.model_validate(value) if is_model(kind) and not isinstance(value, kind) else value


def _from_json(kind: Any, value: Any) -> Any:
    # As JSON, because a strict model takes text for a date only there.
    return kind.model_validate_json(_encoder.encode(value)) if is_model(kind) else value


def _convert(value: object, kind: Any) -> Any:
    return msgspec.convert(value, kind, builtin_types=_AS_THEY_ARE, dec_hook=_from_python)


_encoder = msgspec.json.Encoder(enc_hook=_to_json)
_ordering_encoder = msgspec.json.Encoder(enc_hook=_to_json, order="deterministic")


class CallCodec:
    """Binds, encodes, decodes and makes the calls of one task."""

    def __init__(self, function: Callable[..., Any], task_name: str) -> None:
        """Raises `InvalidOption` for a parameter that can never be stored."""
        self._function = function
        self._task = task_name
        self._parameters = read_parameters(function, task_name)
        self.parameters: tuple[str, ...] = tuple(self._parameters)
        kinds = {parameter.kind for parameter in self._parameters.values()}
        self._plain = kinds <= {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}
        self._ordered = kinds <= {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
        self._positional = tuple(
            name for name, p in self._parameters.items() if p.kind is Parameter.POSITIONAL_OR_KEYWORD
        )
        self.by_name: Mapping[str, bool] = {
            name: p.default is Parameter.empty
            for name, p in self._parameters.items()
            if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        }
        """The parameters that can be given by name, and whether they must be given."""
        self._shape: Shape | None = None
        self._decoder: msgspec.json.Decoder[Any]
        try:
            self._resolve()
        except NameError:
            pass  # a hint names what its module defines further down: resolved at the first call

    @property
    def result_type(self) -> Any:
        """The function's return annotation, `Any` if it has none."""
        return self._known().returns

    def is_list(self, parameter: str) -> bool:
        """True if that parameter is declared as a list, so that calls can be collected into it."""
        return parameter in self._known().lists

    def from_text(self, parameter: str, text: str) -> Any:
        """An argument as people type it: JSON if that fits the parameter's hint, else the text itself."""
        hint = self._known().hints.get(parameter, Any)
        candidates: list[object] = [text]
        try:
            candidates.insert(0, msgspec.json.decode(text))
        except (msgspec.DecodeError, RecursionError):
            pass  # not JSON, or deeper than any payload may be: text
        for candidate in candidates:
            try:
                return msgspec.convert(candidate, hint, dec_hook=_from_json)
            except Exception:  # a type's own constructor or validator may raise anything
                continue
        return candidates[0]  # which `bind` will refuse, and say why

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Fit arguments to the function's parameters and type hints, or raise `ArgumentsInvalid`."""
        shape = self._shape or self._known()
        given = kwargs
        if args or not self._plain:
            given = self._placed(args, kwargs)
        try:
            bound = _convert(given, shape.record) if shape.typed else msgspec.convert(given, shape.record)
        except msgspec.ValidationError as error:
            wrong = wrong_call(self._parameters, args, kwargs) or self._wrong_value(given, str(error), shape)
            raise ArgumentsInvalid(f"{self._task}() {wrong}") from None
        for default in shape.defaults:
            value = getattr(bound, default.name)
            # The encoder leaves out what *is* the default, so that giving it changes no byte.
            if value is not default.value and default.is_given_as(value, _encoder.encode):
                msgspec.structs.force_setattr(bound, default.name, default.value)
        return bound

    def mapping(self, arguments: Arguments) -> dict[str, object]:
        """Each parameter's typed value by name; `*args` as a list, `**kwargs` as a dict."""
        return msgspec.structs.asdict(arguments)

    def encode(self, arguments: Arguments) -> bytes:
        """One JSON object without raw newlines; raises `ArgumentsInvalid` or `PayloadTooLarge`."""
        nature = PLAIN
        for name, default in (self._shape or self._known()).watched:
            value: object = getattr(arguments, name)
            kind = type(value)
            # Of what `survey` would say, the commonest is said here.
            if kind in HARMLESS or value is default or (type(value) is float and isfinite(value)):
                continue
            try:
                nature |= survey(value)
            except Unfit as unfit:
                self._refuse(unfit.within(arguments, f".{name}"))
        try:
            payload = _encoder.encode(arguments) if nature == PLAIN else _encode(arguments, nature)
        except _NOT_ENCODABLE:
            self._refuse(unencodable(arguments, _encoder.encode))
        if len(payload) > MAX_PAYLOAD:
            raise PayloadTooLarge(
                f"Job data exceeds maximum size ({len(payload)} bytes > 1MB). "
                f"Use smaller payloads or store large data externally. (task {self._task!r})"
            )
        if nature != PLAIN:
            self._check_return(arguments, payload)
        return payload

    def decode(self, payload: bytes, into: str | None = None) -> Arguments:
        """Read what `encode` wrote, or raise `Undecodable`.

        With `into`, a payload of several lines is one call that collected others: its list `into` is extended
        by theirs, in order.
        """
        if len(payload) > MAX_PAYLOAD:
            raise Undecodable(f"{self._task}: {len(payload)} bytes of payload exceed {MAX_PAYLOAD}")
        if _CONTROL in payload:
            payload = self._unpacked(payload)
        if b"\n" not in payload:
            return self._decode_one(payload)
        into = into or self._only_list()
        if into is None:
            return self._decode_one(payload)
        if not self.is_list(into):
            raise Undecodable(
                f"{self._task}: calls were collected into {into!r}, which is not a list parameter"
            )
        calls = [self._decode_one(line) for line in payload.split(b"\n")]
        items: list[object] = []
        for call in calls:
            items.extend(getattr(call, into))
        msgspec.structs.force_setattr(calls[0], into, items)
        return calls[0]

    def call(self, arguments: Arguments) -> Any:
        """Call the function; a coroutine function returns its coroutine."""
        if self._ordered:
            return self._function(*msgspec.structs.astuple(arguments))
        if self._plain:
            return self._function(**msgspec.structs.asdict(arguments))
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, parameter in self._parameters.items():
            value = getattr(arguments, name)
            match parameter.kind:
                case Parameter.POSITIONAL_ONLY | Parameter.POSITIONAL_OR_KEYWORD:
                    args.append(value)
                case Parameter.VAR_POSITIONAL:
                    args.extend(value)
                case Parameter.KEYWORD_ONLY:
                    kwargs[name] = value
                case Parameter.VAR_KEYWORD:
                    kwargs.update(value)
        return self._function(*args, **kwargs)

    def _only_list(self) -> str | None:
        """Where calls were collected into a job whose own policy does not say so."""
        lists = self._known().lists
        return next(iter(lists)) if len(lists) == 1 else None

    def _known(self) -> Shape:
        if self._shape is not None:
            return self._shape
        try:
            return self._resolve()
        except NameError as error:
            raise InvalidOption(
                f"Task {self._task!r}: a type hint cannot be resolved ({error}): define or import that name in "
                f"module {self._function.__module__}, outside of functions and of `if TYPE_CHECKING`."
            ) from None

    def _resolve(self) -> Shape:
        shape = shape_of(self._function, self._task, _encoder.encode)
        self._decoder = msgspec.json.Decoder(shape.record, dec_hook=_from_json)
        self._shape = shape
        return shape

    def _placed(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by parameter name."""
        if self._plain and len(args) <= len(self._positional):
            placed = dict(zip(self._positional, args, strict=False))
            if not kwargs:
                return placed
            if placed.keys().isdisjoint(kwargs):
                placed.update(kwargs)
                return placed
        if wrong := wrong_call(self._parameters, args, kwargs):
            raise ArgumentsInvalid(f"{self._task}() {wrong}")
        return self._placed_by_kind(args, dict(kwargs))

    def _placed_by_kind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        rest = list(args)
        placed: dict[str, Any] = {}
        for name, parameter in self._parameters.items():
            match parameter.kind:
                case Parameter.VAR_POSITIONAL:
                    placed[name], rest = rest, []
                case Parameter.VAR_KEYWORD:
                    placed[name] = kwargs
                case Parameter.POSITIONAL_ONLY | Parameter.POSITIONAL_OR_KEYWORD if rest:
                    placed[name] = rest.pop(0)
                case Parameter.POSITIONAL_OR_KEYWORD | Parameter.KEYWORD_ONLY if name in kwargs:
                    placed[name] = kwargs.pop(name)
                case _:
                    pass  # left to its default
        return placed

    def _unpacked(self, payload: bytes) -> bytes:
        try:
            return unpacked(payload)
        except NotUnpackable as error:
            raise Undecodable(f"{self._task}: {error}") from None

    def _decode_one(self, payload: bytes) -> Arguments:
        shape = self._shape or self._known()
        try:
            arguments = self._decoder.decode(payload)
            # What we wrote reads back to the same bytes; only other bytes can hold a key twice.
            if _encoder.encode(arguments) != payload:
                refuse_duplicate_keys(payload)
            if len(payload) > 2 * MAX_DEPTH and payload.count(b"[") + payload.count(b"{") > MAX_DEPTH:
                for name, default in shape.watched:
                    if (value := getattr(arguments, name)) is not default:
                        survey(value)
        except Unfit as unfit:
            raise Undecodable(f"{self._task}: the payload {unfit.reason}") from None
        except Exception as error:  # a type's own constructor or validator may raise anything
            raise Undecodable(f"{self._task}: {in_words(str(error))[:300]}") from None
        return arguments

    def _check_return(self, arguments: Arguments, payload: bytes) -> None:
        try:
            back = self._decoder.decode(payload)
        except Exception as error:  # a type's own constructor or validator may raise anything
            raise ArgumentsInvalid(f"{self._task}() {in_words(str(error))}. {_ANNOTATE}") from None
        found = difference(arguments, back, "args")
        if found is not None:
            path, sent, other = found
            raise ArgumentsInvalid(
                f"{self._task}() {path} is {typed(sent)} and would come back as {typed(other)}. {_ANNOTATE}"
            )

    def _refuse(self, unfit: Unfit) -> NoReturn:
        path, reason, value = unfit.located()
        raise ArgumentsInvalid(f"{self._task}() args{path} {reason}: {shown(value)}. {_ANNOTATE}") from None

    def _wrong_value(self, given: Mapping[str, Any], error: str, shape: Shape) -> str:
        for name, value in given.items():
            hint = shape.hints[name]
            try:
                _convert(value, hint)
            except msgspec.ValidationError as own:
                return f"args.{name}{unlike(value, str(own))}; it is declared as {declared(hint)}. {_REMEDY}"
        return f"{in_words(error)}. {_REMEDY}"


def encode_result(value: object) -> bytes | None:
    """A handler's return value as stored; None stays None. Raises as `CallCodec.encode` does."""
    if value is None:
        return None
    try:
        data = _encode(value, survey(value))
    except Unfit as unfit:
        path, reason, culprit = unfit.located()
    except _NOT_ENCODABLE:
        path, reason, culprit = unencodable(value, _encoder.encode).located()
    else:
        if len(data) > MAX_PAYLOAD:
            raise PayloadTooLarge(
                f"The result exceeds maximum size ({len(data)} bytes > 1MB). "
                "Return less, or store large data externally and return where."
            )
        return data
    raise ArgumentsInvalid(
        f"result{path} {reason}: {shown(culprit)}. Return text, numbers, dates, lists, dicts, dataclasses or models."
    )


def decode_result(data: bytes | None, type: Any = Any) -> Any:  # noqa: A002 - what it is
    """A stored result as the type given (a return annotation); raises `Undecodable` if it is not one."""
    if data is None:
        return None
    try:
        return msgspec.json.decode(unpacked(data), type=type, dec_hook=_from_json)
    except Exception as error:  # a type's own constructor or validator may raise anything
        raise Undecodable(f"the result is not {declared(type)}: {in_words(str(error))[:300]}") from None


def _encode(value: object, nature: int) -> bytes:
    if nature & UNORDERED:
        try:
            return _ordering_encoder.encode(value)
        except TypeError:
            pass  # a set of things that have no order
    return _encoder.encode(value)

"""From a function's signature and type hints to the typed record that holds the arguments of one call.

What can never work is refused here, when the task is defined, naming the parameter. Checking and
encoding values is `onejob.codec`'s.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Annotated, Any, Optional, Unpack, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec.inspect import (
    AnyType,
    BoolType,
    CustomType,
    DictType,
    Field,
    FloatType,
    IntType,
    ListType,
    LiteralType,
    NoneType,
    RawType,
    StrType,
    TupleType,
    UnionType,
    VarTupleType,
    type_info,
)

from onejob.core.errors import InvalidOption, shown
from onejob.core.payload import is_model
from onejob.core.wording import declared

_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_EXACT = (str, int, bool)
_MUTABLE = (list, dict, set, bytearray)


class Default(msgspec.Struct, frozen=True):
    """A parameter's default, by which an argument that equals it is recognised."""

    name: str
    value: Any
    encoded: bytes

    def is_given_as(self, value: object, encode: Callable[[object], bytes]) -> bool:
        """True if a value is the default in another object; 0.0 and -0.0, or 1 and True, are not the same."""
        kind = type(value)
        if kind is not type(self.value):
            return False
        return value == self.value if kind in _EXACT else _encoded(value, encode) == self.encoded


class Shape(msgspec.Struct, frozen=True):
    """The record of one function's arguments, and what is known about its fields from their hints alone."""

    record: type[msgspec.Struct]
    watched: tuple[tuple[str, Any], ...]
    """Parameters whose hints leave room for values that JSON cannot carry, each with its default."""
    defaults: tuple[Default, ...]
    typed: bool
    """True if a hint asks for more than JSON's own types."""
    hints: Mapping[str, Any]
    lists: frozenset[str]
    returns: Any


def read_parameters(function: Callable[..., Any], task: str) -> dict[str, Parameter]:
    """The parameters of a function that can be a task."""
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        raise InvalidOption(f"Task {task!r} must be a function, not {shown(function)}: wrap it in a def.")
    parameters = dict(inspect.signature(function).parameters)
    for name in parameters:
        if name.startswith("__"):
            raise InvalidOption(
                f"Task {task!r}: the parameter {name!r} cannot be stored under that name: "
                "let it not start with two underscores."
            )
    return parameters


def shape_of(function: Callable[..., Any], task: str, encode: Callable[[object], bytes]) -> Shape:
    """Resolve a function's hints and build its record; `NameError` if a name in them is not yet defined."""
    parameters = read_parameters(function, task)
    try:
        hints = get_type_hints(function, include_extras=True)
    except (TypeError, SyntaxError) as error:
        raise InvalidOption(f"Task {task!r}: a type hint cannot be read: {error}.") from None
    resolved: dict[str, Any] = {}
    columns: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    defaults: list[Default] = []
    watched: list[tuple[str, Any]] = []
    typed = False
    for name, parameter in parameters.items():
        hint = resolved[name] = _hint(parameter, hints.get(name, Any))
        info = _checked_info(hint, name, task)
        default = _default(parameter)
        if not _is_flat(info):
            watched.append((name, default))
            typed = typed or not isinstance(info, (AnyType, FloatType))
        if default is Parameter.empty:
            columns.append((name, hint))
            continue
        columns.append((name, hint, _column_default(default)))
        if not _is_mutable(default) and (encoded := _encoded(default, encode)) is not None:
            defaults.append(Default(name, default, encoded))
    return Shape(
        record=msgspec.defstruct(
            "Arguments", columns, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, frozen=True
        ),
        watched=tuple(watched),
        typed=typed,
        defaults=tuple(defaults),
        hints=resolved,
        lists=frozenset(
            n for n, p in parameters.items() if p.kind not in _VARIABLE and _is_list(resolved[n])
        ),
        returns=hints.get("return", Any),
    )


def _hint(parameter: Parameter, hint: Any) -> Any:
    if hint is object:
        hint = Any
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return list[hint]
    if parameter.kind is Parameter.VAR_KEYWORD:
        return get_args(hint)[0] if get_origin(hint) is Unpack else dict[str, hint]
    # A default of None says that None is welcome, whatever the hint forgot to say.
    return Optional[hint] if parameter.default is None and hint is not Any else hint  # noqa: UP045 - a runtime value


def _default(parameter: Parameter) -> Any:
    match parameter.kind:
        case Parameter.VAR_POSITIONAL:
            return cast("list[Any]", [])
        case Parameter.VAR_KEYWORD:
            return cast("dict[str, Any]", {})
        case _:
            return parameter.default


def _column_default(default: Any) -> Any:
    """A default as the record takes it: one that could be changed in place is made anew for each call."""
    if _is_mutable(default):
        emptied = cast("Callable[[], Any]", type(default))
        return msgspec.field(
            default_factory=functools.partial(copy.deepcopy, default) if default else emptied
        )
    return default


def _is_mutable(default: object) -> bool:
    return type(default) in _MUTABLE or isinstance(default, msgspec.Struct)


def _encoded(default: Any, encode: Callable[[object], bytes]) -> bytes | None:
    try:
        return encode(default)
    except (TypeError, ValueError):
        return None  # a sentinel: recognised by identity alone


def _checked_info(hint: Any, name: str, task: str) -> msgspec.inspect.Type:
    try:
        info = type_info(hint)
    except TypeError as error:
        raise InvalidOption(f"Task {task!r}: the parameter {name!r} cannot be stored: {error}.") from None
    for custom in _customs(info, set()):
        if custom is not object and not is_model(custom):
            raise InvalidOption(
                f"Task {task!r}: the parameter {name!r} is declared as {declared(hint)}, and values of "
                f"{declared(custom)} cannot be stored: use text, numbers, dates, lists, dicts, a dataclass, "
                "a msgspec Struct or a pydantic model."
            )
    return info


def _customs(info: object, seen: set[int]) -> list[Any]:
    """The types in a hint that msgspec leaves to us, however deep."""
    if id(info) in seen:
        return []
    seen.add(id(info))
    if isinstance(info, CustomType):
        return [info.cls]
    if isinstance(info, RawType):
        return [msgspec.Raw]
    found: list[Any] = []
    if isinstance(info, (msgspec.inspect.Type, Field)):
        for field in info.__struct_fields__:
            inner = getattr(info, field)
            for part in cast("tuple[object, ...]", inner) if isinstance(inner, tuple) else (inner,):
                found += _customs(part, seen)
    return found


def _is_flat(info: object) -> bool:
    """True if every value of such a type is text, whole numbers and booleans, at a depth the hint bounds."""
    match info:
        case StrType() | IntType() | BoolType() | NoneType() | LiteralType():
            return True
        case ListType(item_type) | VarTupleType(item_type):
            return _is_flat(item_type)
        case TupleType(item_types):
            return all(map(_is_flat, item_types))
        case DictType(key_type, value_type):
            return isinstance(key_type, StrType) and _is_flat(value_type)
        case UnionType(types):
            return all(map(_is_flat, types))
        case _:
            return False


def _is_list(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return hint is list or get_origin(hint) is list

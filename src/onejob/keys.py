"""From a policy to the key of one call: what `by=` and `key=` mean for a task's parameters.

A key is checked against the signature when the task is defined, and made from bound, typed arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, Protocol, cast

import msgspec

from onejob.core.dedup import Unique, check_key
from onejob.core.errors import InvalidOption, shown
from onejob.core.identity import Realm, call_text, key_text

Key = tuple[bytes, str]
"""A key's digest, and the key as people read it."""


class KeyRule(Protocol):
    """How the calls of one task get their keys."""

    def key(self, arguments: msgspec.Struct) -> Key | None:
        """The key of a call with these bound arguments; None if it is not unique."""
        ...


def key_rule(task: str, parameters: Sequence[str], policy: Unique, realm: Realm) -> KeyRule | None:
    """Read a policy's `by=` and `key=`; None where the policy itself says *not unique* (`key=None`)."""
    if policy.key is None:
        return None
    if isinstance(policy.key, str):
        return FixedKey(policy.key, realm)
    by = policy.by
    if by is None:
        return WholeCall(realm, policy.into)
    if callable(by):
        return KeyFunction(task, by, parameters, realm)
    names = cast("tuple[str, ...]", by)
    for name in names:
        if name not in parameters:
            raise InvalidOption(f"Unique(by=…) names {_no_parameter(task, name, parameters)}")
    return NamedArguments(names, realm)


def check_parameter(task: str, option: str, name: str, parameters: Sequence[str]) -> None:
    """Refuse an option that names a parameter which the task does not have."""
    if name not in parameters:
        raise InvalidOption(f"{option} names {_no_parameter(task, name, parameters)}")


def near(word: str, words: Sequence[str], *, otherwise: str) -> str:
    """Name the words that a mistyped one may have meant."""
    matches = get_close_matches(word, words, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, matches))}?" if matches else otherwise


class FixedKey:
    """The key is one text, the same for every call."""

    __slots__ = ("_key",)

    def __init__(self, text: str, realm: Realm) -> None:
        self._key = (realm.digest((text,)), key_text((text,)))

    def key(self, arguments: msgspec.Struct) -> Key | None:
        """See `KeyRule`."""
        return self._key


class WholeCall:
    """The key is everything that is passed, but for the list that *collect* gathers into."""

    __slots__ = ("_gathered", "_realm")

    def __init__(self, realm: Realm, gathered: str | None) -> None:
        self._realm = realm
        self._gathered = gathered

    def key(self, arguments: msgspec.Struct) -> Key | None:
        """See `KeyRule`."""
        everything = msgspec.structs.asdict(arguments)
        if self._gathered is not None:
            everything.pop(self._gathered, None)
        return self._realm.call_digest(everything), call_text(everything)


class NamedArguments:
    """The key is made of the arguments named."""

    __slots__ = ("_names", "_realm")

    def __init__(self, names: tuple[str, ...], realm: Realm) -> None:
        self._names = names
        self._realm = realm

    def key(self, arguments: msgspec.Struct) -> Key | None:
        """See `KeyRule`."""
        parts = [getattr(arguments, name) for name in self._names]
        return self._realm.digest(parts), key_text(parts)


class KeyFunction:
    """The key is what the user's function returns; it is called with the arguments that it names."""

    __slots__ = ("_all", "_by_name", "_function", "_in_order", "_realm", "_task")

    def __init__(
        self, task: str, function: Callable[..., Any], parameters: Sequence[str], realm: Realm
    ) -> None:
        self._task = task
        self._function = function
        self._realm = realm
        self._in_order: list[str] = []
        self._by_name: list[str] = []
        self._all = False
        for parameter in _signature(function).parameters.values():
            match parameter.kind:
                case inspect.Parameter.VAR_KEYWORD:
                    self._all = True
                case inspect.Parameter.VAR_POSITIONAL:
                    continue
                case _ if parameter.name not in parameters and parameter.default is not parameter.empty:
                    continue
                case inspect.Parameter.KEYWORD_ONLY:
                    check_parameter(task, "The function in Unique(by=…)", parameter.name, parameters)
                    self._by_name.append(parameter.name)
                case _:
                    check_parameter(task, "The function in Unique(by=…)", parameter.name, parameters)
                    self._in_order.append(parameter.name)

    def key(self, arguments: msgspec.Struct) -> Key | None:
        """See `KeyRule`."""
        taken = self._in_order
        everything = arguments.__struct_fields__
        names = [name for name in everything if name not in taken] if self._all else self._by_name
        try:
            made = self._function(
                *[getattr(arguments, name) for name in taken],
                **{name: getattr(arguments, name) for name in names},
            )
        except Exception as error:
            error.add_note(f"Raised by the key function (Unique(by=…)) of task {self._task!r}.")
            raise
        if made is None:
            return None
        if isinstance(made, (tuple, list)):
            parts = cast("Sequence[object]", made)
        else:
            parts = (check_key(made) if isinstance(made, str) else made,)
        return self._realm.digest(parts), key_text(parts)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        raise InvalidOption(
            f"Unique(by=…) got {shown(function)}, whose parameters cannot be read: wrap it in a function "
            "that names the arguments it wants."
        ) from None


def _no_parameter(task: str, name: str, parameters: Sequence[str]) -> str:
    has = ", ".join(parameters) or "none"
    hint = near(name, parameters, otherwise=f"its parameters: {has}.")
    return f"{shown(name)}, which is no parameter of task {task!r}: {hint}"

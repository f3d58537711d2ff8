"""From a policy to the key of one call: what `by=` and `key=` mean for a task's parameters.

A key is checked against the signature when the task is defined, and made from bound, typed arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Protocol, cast

import msgspec

from onejob.core.dedup import Unique, check_key
from onejob.core.errors import InvalidOption, shown
from onejob.core.identity import Key, Realm, call_text, key_text


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
        return KeyFunction(OfArguments(task, "Unique(by=…)", by, parameters), realm)
    names = cast("tuple[str, ...]", by)
    for name in names:
        check_parameter(task, "Unique(by=…)", name, parameters)
    return OneArgument(names[0], realm) if len(names) == 1 else NamedArguments(names, realm)


def check_parameter(task: str, option: str, name: str, parameters: Sequence[str]) -> None:
    """Refuse an option that names a parameter which the task does not have."""
    if name not in parameters:
        has = ", ".join(parameters) or "none"
        hint = near(name, parameters, otherwise=f"its parameters: {has}.")
        raise InvalidOption(f"{option} names {shown(name)}, which is no parameter of task {task!r}: {hint}")


def near(word: str, words: Sequence[str], *, otherwise: str | None = None) -> str:
    """Name the words that a mistyped one may have meant; if none is like it, all of them."""
    from difflib import get_close_matches  # for mistakes only

    matches = get_close_matches(word, words, n=3, cutoff=0.5)
    if matches:
        return f"did you mean {' or '.join(map(repr, matches))}?"
    return all_there_are(words) if otherwise is None else otherwise


def all_there_are(words: Sequence[str]) -> str:
    """Name every word that could have been meant."""
    return f"there is only {words[0]}." if len(words) == 1 else f"there are {', '.join(words) or 'none'}."


class FixedKey:
    """The key is one text, the same for every call."""

    __slots__ = ("_key",)

    def __init__(self, text: str, realm: Realm) -> None:
        self._key = realm.key(text)

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


class OneArgument:
    """The key is one argument."""

    __slots__ = ("_argument", "_realm")

    def __init__(self, name: str, realm: Realm) -> None:
        self._argument = attrgetter(name)
        self._realm = realm

    def key(self, arguments: msgspec.Struct) -> Key | None:
        """See `KeyRule`."""
        return self._realm.key(self._argument(arguments))


class NamedArguments:
    """The key is made of the arguments named."""

    __slots__ = ("_parts", "_realm")

    def __init__(self, names: tuple[str, ...], realm: Realm) -> None:
        """Not one name, of which `attrgetter` makes no tuple."""
        self._parts: Callable[[object], tuple[object, ...]] = attrgetter(*names) if names else _nothing
        self._realm = realm

    def key(self, arguments: msgspec.Struct) -> Key | None:
        """See `KeyRule`."""
        return self._realm.key_of(self._parts(arguments))


def _nothing(_: object) -> tuple[object, ...]:
    return ()


class KeyFunction:
    """The key is what the user's function returns."""

    __slots__ = ("_function", "_realm")

    def __init__(self, function: OfArguments, realm: Realm) -> None:
        self._function = function
        self._realm = realm

    def key(self, arguments: msgspec.Struct) -> Key | None:
        """See `KeyRule`."""
        made = self._function(arguments)
        if made is None:
            return None
        if isinstance(made, (tuple, list)):
            parts = cast("Sequence[object]", made)
        else:
            parts = (check_key(made) if isinstance(made, str) else made,)
        return self._realm.digest(parts), key_text(parts)


class OfArguments:
    """A function of the user's in a `by=…`; it is called with the arguments of the task that it names."""

    __slots__ = ("_all", "_by_name", "_function", "_in_order", "_option", "_task")

    def __init__(self, task: str, option: str, function: Callable[..., Any], names: Sequence[str]) -> None:
        """`names` are the task's parameters, `option` is where the user wrote the function."""
        self._task = task
        self._option = option
        self._function = function
        self._in_order: list[str] = []
        self._by_name: list[str] = []
        self._all = False
        for parameter in _signature(option, function).parameters.values():
            match parameter.kind:
                case inspect.Parameter.VAR_KEYWORD:
                    self._all = True
                case inspect.Parameter.VAR_POSITIONAL:
                    continue
                case _ if parameter.name not in names and parameter.default is not parameter.empty:
                    continue
                case inspect.Parameter.KEYWORD_ONLY:
                    check_parameter(task, f"The function in {option}", parameter.name, names)
                    self._by_name.append(parameter.name)
                case _:
                    check_parameter(task, f"The function in {option}", parameter.name, names)
                    self._in_order.append(parameter.name)

    def __call__(self, arguments: msgspec.Struct) -> object:
        """What the function returns for these arguments; what it raises is for the caller."""
        taken = self._in_order
        everything = arguments.__struct_fields__
        names = [name for name in everything if name not in taken] if self._all else self._by_name
        try:
            return self._function(
                *[getattr(arguments, name) for name in taken],
                **{name: getattr(arguments, name) for name in names},
            )
        except Exception as error:
            error.add_note(f"Raised by the key function ({self._option}) of task {self._task!r}.")
            raise


def _signature(option: str, function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        raise InvalidOption(
            f"{option} got {shown(function)}, whose parameters cannot be read: wrap it in a function "
            "that names the arguments it wants."
        ) from None

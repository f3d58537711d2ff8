"""How refusals read: wrong calls and wrong values in words a caller can act on.

Paths start at `args` and are written as Python would reach the value: `args.user.tags[3]`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from inspect import Parameter
from typing import Any, cast, get_args

from onejob.core.errors import shown
from onejob.core.job import State

_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_PLACE = re.compile(r" - at (`key` in )?`\$([^`]*)`$")
_EXPECTED = re.compile(r"Expected `([^`]*)`, got ")
_WORDS = {"array": "list", "object": "dict", "null": "None", "duration": "timedelta", "uuid": "UUID"}


def wrong_call(
    parameters: Mapping[str, Parameter], args: Sequence[object], kwargs: Mapping[str, object]
) -> str | None:
    """Say in what way a call does not fit the parameters; None if it does."""
    kinds = {parameter.kind for parameter in parameters.values()}
    positional = [name for name, parameter in parameters.items() if parameter.kind in _BY_POSITION]
    by_name = [n for n, p in parameters.items() if p.kind not in (Parameter.POSITIONAL_ONLY, *_VARIABLE)]
    if len(args) > len(positional) and Parameter.VAR_POSITIONAL not in kinds:
        return (
            f"takes at most {len(positional)} arguments by position and got {len(args)}; "
            f"the first too many is {shown(args[len(positional)])}. Its parameters are ({', '.join(parameters)})."
        )
    given = positional[: len(args)]
    for name in kwargs:
        if name in given and name in by_name:
            return f"got the argument {name!r} twice, by position and by name: give it once."
        if name not in by_name and Parameter.VAR_KEYWORD not in kinds:
            if name in positional:
                return f"takes {name!r} by position only: leave its name out."
            from difflib import get_close_matches  # for mistakes only

            near = get_close_matches(name, by_name, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"its parameters are ({', '.join(parameters)})."
            return f"has no parameter {shown(name)} (given {shown(kwargs[name])}): {hint}"
    required = [n for n, p in parameters.items() if p.default is Parameter.empty and p.kind not in _VARIABLE]
    missing = [n for n in required if n not in given and (n not in kwargs or n not in by_name)]
    if missing:
        names = ", ".join(repr(name) for name in missing)
        return f"is missing {names}: pass it, or give the parameter a default."
    return None


def reason(state: State, error: str | None) -> str:
    """Why a job ended without success."""
    if error and error != state:
        return error
    return "by request" if state is State.REVOKED else "no reason given"


def declared(hint: object) -> str:
    """A type hint as people write it."""
    return (
        hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")
    )


def typed(value: object) -> str:
    return f"{shown(value)} ({type(value).__name__})"


def in_words(error: str) -> str:
    reason, path = _below(error)
    return f"{reason} at args{path}" if path else reason


def unlike(value: object, error: str) -> str:
    """A message of msgspec's about an argument, from the argument's name on."""
    reason, path = _below(error)
    given = typed(_at(value, path))
    expected = _EXPECTED.match(reason)
    if expected is None:
        return f"{path}: {reason}, given {given}"
    wanted = re.sub(r"\w+", lambda word: _WORDS.get(word[0], word[0]), expected[1])
    if "`key` in" in error:
        return f"{path} must have keys of type {wanted}: {given}"
    return f"{path} must be {wanted}, not {given}"


def _below(error: str) -> tuple[str, str]:
    """A message of msgspec's without its path, and that path."""
    found = _PLACE.search(error)
    reason = " ".join((error[: found.start()] if found else error).split())
    return reason, found[2] if found else ""


def _at(value: Any, path: str) -> object:
    """The value that a path leads to, as far as it can be followed."""
    found = value
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        try:
            found = found[int(index)] if index else _member(found, name)
        except (AttributeError, LookupError, TypeError):
            break
    return found


def _member(value: Any, name: str) -> Any:
    return cast("Mapping[str, Any]", value)[name] if isinstance(value, Mapping) else getattr(value, name)

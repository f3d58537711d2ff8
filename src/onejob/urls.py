"""URLs of stores that have a server, taken apart: login, hosts, path and parameters; and the checks that all of them need.

Nothing is looked up or opened, and no message shows what could be a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote

import msgspec

from onejob.core.errors import InvalidOption, shown
from onejob.core.options import millis

MAX_PATIENCE: Final = 3600.0
_HOST = re.compile(r"(\[[^\]]+\]|[^:\[\]]*)(?::([0-9]{1,5}))?")


class Parts(msgspec.Struct, frozen=True):
    """What stands in a URL behind its scheme."""

    user: str
    password: str | None
    hosts: str
    path: str
    given: dict[str, str]
    """Its parameters."""


def take_apart(kind: str, rest: str, ours: Mapping[str, str], others: Iterable[str] = ()) -> Parts:
    """Read what follows the scheme; `ours` are parameters with the form of their values, `others` those of a driver."""
    base, _, query = rest.partition("?")
    authority, _, path = base.partition("/")
    if "@" in path or "#" in base or authority.count("@") > 1 or _has_at_in_a_name(query):
        raise InvalidOption(
            f"The {kind} store's URL is not readable: percent-encode what is special in user, password and "
            "database (@ is %40, / is %2F, : is %3A, # is %23, ? is %3F)."
        )
    login, at, hosts = authority.rpartition("@")
    user, colon, password = login.partition(":") if at else ("", "", "")
    return Parts(
        user=unquote(user),
        password=unquote(password) if colon else None,
        hosts=unquote(hosts),
        path=unquote(path),
        given=_questions(kind, query, ours, tuple(others)),
    )


def host_and_port(text: str) -> tuple[str, str | None] | None:
    """HOST, HOST:PORT or [IPV6]:PORT; None if it is none of them."""
    match = _HOST.fullmatch(text)
    return None if match is None else (match[1].strip("[]") or "localhost", match[2])


def port(kind: str, text: str) -> int:
    """A port's number."""
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise InvalidOption(f"The {kind} store's URL has a port that is none: it is a number up to 65535.")
    return int(text)


def seconds(name: str, given: Mapping[str, str], default: float) -> float:
    """A parameter that is a span of time."""
    text = given.get(name)
    if text is None:
        return default
    try:
        span = millis(name, float(text), minimum=1) / 1000
    except ValueError:
        span = MAX_PATIENCE + 1
    if span > MAX_PATIENCE:
        raise InvalidOption(
            f"{name}={shown(text)} must be seconds, more than 0 and at most {MAX_PATIENCE:g}."
        )
    return span


def one_of(name: str, given: Mapping[str, str], words: tuple[str, ...]) -> str | None:
    """A parameter that is a word out of a few."""
    word = given.get(name)
    if word is not None and word not in words:
        raise InvalidOption(f"{name}={shown(word)} is not known: it can be {' or '.join(words)}.")
    return word


def _has_at_in_a_name(query: str) -> bool:
    """True for the rest of a password that has a question mark in it."""
    return any("@" in part.partition("=")[0] for part in query.split("&"))


def _questions(kind: str, query: str, ours: Mapping[str, str], others: tuple[str, ...]) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in ours and name not in others:
            raise InvalidOption(_unknown(kind, name, ours, others))
        if name in given:
            raise InvalidOption(f"The {kind} store's URL has {name}=… twice: give it once.")
        given[name] = value
    return given


def _unknown(kind: str, name: str, ours: Mapping[str, str], others: tuple[str, ...]) -> str:
    from difflib import get_close_matches  # for mistakes only

    known = ", ".join(f"{name}={form}" for name, form in ours.items())
    meant = get_close_matches(name, (*ours, *others), 1)
    hint = f"did you mean {meant[0]}=…? There" if meant else "there"
    more = f", and for the connection {', '.join(others)}" if others else ""
    return f"The {kind} store's URL has {shown(name)}=…, which is not known: {hint} are {known}{more}."

"""Which jobs: one grammar for people, `state:failed task:sync args.user_id:7 older:1h`, and the value it means.

Terms stand apart by spaces and must all match; alternatives of one term by commas; quotes hold a value with
spaces or commas together. The same text works in Python, on the command line and wherever jobs are listed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

import msgspec

from onejob.core.errors import InvalidOption, shown
from onejob.core.job import ENDED, LIVE, QUEUED, State
from onejob.core.retry import MAX_SECONDS

SHORTEST_ID: Final = 6
"""Characters that the beginning of an id must have to stand for it."""

_STATES: Final = frozenset(State)
_GROUPS: Final = {"queued": QUEUED, "live": LIVE, "ended": ENDED}
# As text: `re` compiles them when they are needed, which is not at import.
_PATTERN: Final = r"[A-Za-z0-9_.:*-]{1,100}"
_ID: Final = r"[0-9A-Fa-f-]{6,36}"
_STEP: Final = r"(?:^|\.)([^.\[\]]+)|\[([0-9]{1,9})\]"
_SPAN: Final = r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w|)"
_UNITS: Final = {
    "ms": 1,
    "": 1_000,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}


class ArgumentIs(msgspec.Struct, frozen=True):
    """An argument that must have one of these values: numbers, true, false and null as JSON writes them.

    The path starts below `args` (`user.tags[3]`). Where it leads to a list, one of its items must have the
    value. What a call left to a parameter's default is not stored, and so matches nothing.
    """

    path: str
    values: frozenset[str]

    def __post_init__(self) -> None:
        steps(self.path)


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs: every field given must match, and in each field one of its values. None matches anything."""

    states: frozenset[State] | None = None
    queues: frozenset[str] | None = None
    """Names, in which `*` stands for any characters."""
    origins: frozenset[str] | None = None
    """Dead letters only: names of the queues in which their originals failed, `*` as above."""
    tasks: frozenset[str] | None = None
    """Names, in which `*` stands for any characters."""
    keys: frozenset[str] | None = None
    """Keys as people read them."""
    lanes: frozenset[str] | None = None
    """Keys of lanes."""
    chains: frozenset[str] | None = None
    """Ids of chains, which are those of their first jobs, or their beginnings as below."""
    ids: frozenset[str] | None = None
    """Ids or their beginnings, six characters at least."""
    schedules: frozenset[str] | None = None
    """Ids of the schedules that made them, `*` as above."""
    errors: frozenset[str] | None = None
    """Parts of an error's text, whatever their case (A to Z)."""
    args: tuple[ArgumentIs, ...] = ()
    older: int | None = None
    """Accepted at least so many milliseconds ago."""
    newer: int | None = None
    """Accepted less than so many milliseconds ago."""
    ended: int | None = None
    """Ended at least so many milliseconds ago."""

    def __post_init__(self) -> None:
        for kind, names in (
            ("Queue", self.queues),
            ("Queue", self.origins),
            ("Task", self.tasks),
            ("Schedule", self.schedules),
        ):
            for name in names or ():
                if not re.fullmatch(_PATTERN, name):
                    raise InvalidOption(
                        f"{kind} {shown(name)} cannot match: names have 1 to 100 of A-Z a-z 0-9 _ . : - "
                        "and here also * for anything."
                    )
        for id in (self.ids or frozenset()) | (self.chains or frozenset()):
            if not looks_like_id(id):
                raise InvalidOption(
                    f"{shown(id)} is no id and no beginning of one: give {SHORTEST_ID} or more of its "
                    "characters, 0-9 a-f and -."
                )

    def within(self, states: Iterable[State]) -> JobFilter:
        """The same, in none but these states."""
        allowed = frozenset(states)
        wanted = allowed if self.states is None else allowed & self.states
        return msgspec.structs.replace(self, states=wanted)


def parse(text: object) -> JobFilter:
    """Read a filter, or raise `InvalidOption` with what is wrong and a near match."""
    if not isinstance(text, str):
        raise InvalidOption(f"A filter is text such as 'state:failed', or a JobFilter, not {shown(text)}.")
    fields: dict[str, Any] = {}
    arguments: dict[str, ArgumentIs] = {}
    for name, values in _terms(text):
        if name.startswith("args."):
            path = name.removeprefix("args.")
            _refuse_twice(name, arguments, path)
            arguments[path] = ArgumentIs(path, frozenset(values))
            continue
        if name not in _READERS:
            raise InvalidOption(f"A filter knows no {shown(name)}: {_near(name, [*_READERS, 'args.NAME'])}")
        field, read = _READERS[name]
        _refuse_twice(name, fields, field)
        fields[field] = read(name, values)
    return JobFilter(**fields, args=tuple(arguments.values()))


def as_filter(given: object) -> JobFilter:
    """The filter itself, or the one that a text means."""
    return given if isinstance(given, JobFilter) else parse(given)


def span(what: str, text: str) -> int:
    """Read a length of time, `90s`, `1h30m`, `7d`; a bare number is seconds. Returns milliseconds."""
    parts = list(re.finditer(_SPAN, text))
    if not parts or "".join(part[0] for part in parts) != text or (len(parts) > 1 and not parts[-1][2]):
        raise InvalidOption(
            f"{what} takes a length of time such as 90s, 10m, 1h30m or 7d, not {shown(text)}."
        )
    total = sum(float(part[1]) * _UNITS[part[2]] for part in parts)
    if total > MAX_SECONDS * 1000:
        raise InvalidOption(f"{what} must be at most ten years, not {shown(text)}.")
    return round(total)


def looks_like_id(text: str) -> bool:
    """True for an id, and for the beginning of one that is long enough."""
    return re.fullmatch(_ID, text) is not None and len(text.replace("-", "")) >= SHORTEST_ID


@lru_cache(maxsize=256)
def steps(path: str) -> tuple[str | int, ...]:
    """A path below `args` as names and places: `user.tags[3]` is user, tags, 3."""
    found = list(re.finditer(_STEP, path))
    if not found or "".join(step[0] for step in found) != path or path.startswith("."):
        raise InvalidOption(f"args.{path} is no path to an argument: write it like args.user.tags[3].")
    return tuple(int(step[2]) if step[2] else step[1] for step in found)


def _terms(text: str) -> Iterable[tuple[str, list[str]]]:
    """Each term as its name and its values, quotes gone."""
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        pieces, at = _pieces(text, at)
        name, colon, first = pieces[0].partition(":")
        if not colon:
            raise InvalidOption(
                f"Filter {shown(text)}: {shown(pieces[0])} has no name; write name:value, as in state:failed, "
                'and put values with spaces in quotes, as in error:"not found".'
            )
        values = [first, *pieces[1:]]
        if "" in values:
            raise InvalidOption(f"Filter {shown(text)}: {shown(name)} has an empty value.")
        yield name, values


def _pieces(text: str, at: int) -> tuple[list[str], int]:
    """One term, cut at its commas; and the place behind it."""
    pieces = [""]
    quote = ""
    while at < len(text) and (quote or not text[at].isspace()):
        character = text[at]
        at += 1
        if quote and character == "\\" and at < len(text):
            pieces[-1] += text[at]
            at += 1
        elif character == quote:
            quote = ""
        elif not quote and character in "\"'":
            quote = character
        elif not quote and character == "," and ":" in pieces[0]:
            pieces.append("")
        else:
            pieces[-1] += character
    if quote:
        raise InvalidOption(f"Filter {shown(text)} opens a quote {quote} that it does not close.")
    return pieces, at


def _refuse_twice(name: str, seen: dict[str, Any], field: str) -> None:
    if field in seen:
        raise InvalidOption(
            f"A filter takes {name}: once; give its alternatives by commas: {name}:one,other."
        )


def _near(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches  # for mistakes only

    listed = [str(one) for one in known]
    near = get_close_matches(name, listed, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(listed)}."


def _states(_: str, values: list[str]) -> frozenset[State]:
    found: set[State] = set()
    for value in values:
        if value in _GROUPS:
            found |= _GROUPS[value]
        elif value in _STATES:
            found.add(State(value))
        else:
            raise InvalidOption(f"There is no state {shown(value)}: {_near(value, [*State, *_GROUPS])}")
    return frozenset(found)


def _words(_: str, values: list[str]) -> frozenset[str]:
    return frozenset(values)


def _tasks(_: str, values: list[str]) -> frozenset[str]:
    """Tasks are named after their module: people leave it out."""
    endings = (f"*.{value}" for value in values if "*" not in value)
    return frozenset(values) | {ending for ending in endings if re.fullmatch(_PATTERN, ending)}


def _one_span(name: str, values: list[str]) -> int:
    if len(values) != 1:
        raise InvalidOption(f"A filter takes one length of time for {name}:, not {len(values)}.")
    return span(f"{name}:", values[0])


_READERS: Final[dict[str, tuple[str, Callable[[str, list[str]], Any]]]] = {
    "state": ("states", _states),
    "queue": ("queues", _words),
    "origin": ("origins", _words),
    "task": ("tasks", _tasks),
    "key": ("keys", _words),
    "lane": ("lanes", _words),
    "chain": ("chains", _words),
    "id": ("ids", _words),
    "schedule": ("schedules", _words),
    "error": ("errors", _words),
    "older": ("older", _one_span),
    "newer": ("newer", _one_span),
    "ended": ("ended", _one_span),
}

"""Which jobs a filter means: a predicate over jobs, and the same for `choosing.lua`, which sees more of them than we want.

A script tells all but what lies in a job's options, error and payload; for that its jobs are looked into here.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import msgspec

from onejob.core.contents import holds
from onejob.core.filter import JobFilter
from onejob.core.job import Job
from onejob.stores.valkey.forms import LETTERS
from onejob.stores.valkey.wire import blob

_ID_DIGITS: Final = 32
_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


class _Origin(msgspec.Struct):
    """Of a job's options, what a filter asks for."""

    schedule: str | None = None


_origins = msgspec.json.Decoder(_Origin)


class Matching(msgspec.Struct, frozen=True):
    """A filter at an instant on the store's clock, from which ages are counted."""

    filter: JobFilter
    now: int = 0

    @property
    def is_vain(self) -> bool:
        """True if a field has no value that could match."""
        wanted = self.filter
        fields = (wanted.states, wanted.queues, wanted.origins, wanted.tasks, wanted.keys)
        others = (wanted.lanes, wanted.chains, wanted.ids, wanted.schedules, wanted.errors)
        return any(field is not None and not field for field in (*fields, *others))

    @property
    def parts(self) -> str:
        """What must be looked into, by the letters of `choosing.lua`."""
        wanted = self.filter
        looks = {"o": wanted.schedules is not None, "p": bool(wanted.args), "e": wanted.errors is not None}
        return "".join(part for part, is_wanted in looks.items() if is_wanted)

    def queue(self, name: str) -> bool:
        """True if jobs of this queue can match."""
        return self.filter.queues is None or _like(name, self.filter.queues)

    def holds(self, job: Job) -> bool:
        """True if a job matches."""
        return (
            self.queue(job.queue)
            and self._is_named(job)
            and self._is_of_age(job)
            and self.contents_hold(job.options, job.payload, job.error)
        )

    def contents_hold(self, options: bytes | None, payload: bytes | None, error: str | None) -> bool:
        """True if what a job holds matches; what the filter does not look into may be missing."""
        wanted = self.filter
        return (
            (wanted.schedules is None or _like(_schedule_of(options), wanted.schedules))
            and (wanted.errors is None or (error is not None and _mentions(error, wanted.errors)))
            and (not wanted.args or (payload is not None and holds(payload, wanted.args)))
        )

    def choice(self, *, counts: bool = False) -> tuple[object, ...]:
        """What `choosing.lua` is to look for; with `counts`, it says how many there are if it can tell."""
        wanted, now = self.filter, self.now
        return (
            False if wanted.states is None else "".join(sorted(LETTERS[state] for state in wanted.states)),
            _beginnings(wanted.ids),
            _beginnings(wanted.chains),
            _lua_patterns(wanted.tasks),
            False if wanted.keys is None else sorted(wanted.keys),
            False if wanted.lanes is None else sorted(wanted.lanes),
            _lua_patterns(wanted.origins),
            False if wanted.older is None else now - wanted.older,
            False if wanted.newer is None else now - wanted.newer,
            False if wanted.ended is None else now - wanted.ended,
            False if counts and not self.parts else self.parts,
        )

    def _is_named(self, job: Job) -> bool:
        wanted = self.filter
        return (
            (wanted.states is None or job.state in wanted.states)
            and (wanted.tasks is None or _like(job.task, wanted.tasks))
            and (wanted.origins is None or _like(job.origin_queue, wanted.origins))
            and (wanted.keys is None or job.key in wanted.keys)
            and (wanted.lanes is None or job.lane in wanted.lanes)
            and (wanted.ids is None or _begins(job.id, wanted.ids))
            and (wanted.chains is None or _begins(job.chain, wanted.chains))
        )

    def _is_of_age(self, job: Job) -> bool:
        wanted, now = self.filter, self.now
        return (
            (wanted.older is None or job.accepted <= now - wanted.older)
            and (wanted.newer is None or job.accepted > now - wanted.newer)
            and (wanted.ended is None or (job.ended is not None and job.ended <= now - wanted.ended))
        )


def whole_ids(ids: Iterable[str] | None) -> list[bytes] | None:
    """Ids as they are stored; None if there are none, or if one is only the beginning of an id."""
    digits = [_digits(id) for id in ids or ()]
    if not digits or any(len(one) < _ID_DIGITS for one in digits):
        return None
    return [bytes.fromhex(one) for one in digits if len(one) == _ID_DIGITS]


def _digits(id: str) -> str:
    return id.replace("-", "").lower()


def _begins(id: str, beginnings: Iterable[str]) -> bool:
    digits = _digits(id)
    return any(digits.startswith(_digits(beginning)) for beginning in beginnings)


def _beginnings(ids: Iterable[str] | None) -> list[tuple[object, int | bool]] | bool:
    """Beginnings of ids as whole bytes, and half of another."""
    if ids is None:
        return False
    found: list[tuple[object, int | bool]] = []
    for digits in map(_digits, sorted(ids)):
        odd = len(digits) % 2
        whole = bytes.fromhex(digits[:-1] if odd else digits)
        if len(digits) <= _ID_DIGITS:
            found.append((blob(whole), int(digits[-1], 16) if odd else False))
    return found


def _like(name: str | None, patterns: Iterable[str]) -> bool:
    return name is not None and any(_pattern(one).fullmatch(name) for one in patterns)


@lru_cache(maxsize=256)
def _pattern(name: str) -> re.Pattern[str]:
    """A name in which a star stands for any characters."""
    return re.compile(".*".join(map(re.escape, name.split("*"))), re.DOTALL)


def _lua_patterns(names: Iterable[str] | None) -> list[str] | bool:
    """The same for Lua, where a percent sign takes a mark's meaning away."""
    if names is None:
        return False
    marked = (re.sub("([^A-Za-z0-9*])", r"%\1", name) for name in sorted(names))
    return [f"^{name.replace('*', '.*')}$" for name in marked]


def _schedule_of(options: bytes | None) -> str | None:
    """The schedule that made a job; None if none did, or if its options cannot be read."""
    try:
        return None if options is None else _origins.decode(options).schedule
    except msgspec.MsgspecError:
        return None


def _mentions(error: str, parts: Iterable[str]) -> bool:
    """True if a text holds one of these, whatever the case of A to Z."""
    text = error.translate(_LOWER)
    return any(part.translate(_LOWER) in text for part in parts)

"""A `JobFilter` for the statements that list and count jobs: bound values, and a judgement of what SQL cannot read.

Names go as LIKE patterns, ids as ranges. A payload may be compressed, and options may be damaged: SQL picks the
candidates, and those are looked into here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from onejob.core.contents import holds
from onejob.core.filter import JobFilter
from onejob.stores.postgres.steps import Steps, ask, begin
from onejob.stores.postgres.work import Work

BEYOND = 2**63 - 1
FEW = 1_000
"""So many jobs are looked at by their places; more, between the first and the last of them."""
_ID_DIGITS = 32


class _Origin(msgspec.Struct):
    """Of a job's options, what a filter asks for."""

    schedule: str | None = None


_origins = msgspec.json.Decoder(_Origin)


class Selection(msgspec.Struct, frozen=True):
    """Which statements to use, and what they are given before the number of rows."""

    variant: str
    values: tuple[Any, ...]
    filter: JobFilter

    @property
    def reads_contents(self) -> bool:
        """True if SQL finds candidates only."""
        return bool(self.filter.args) or self.filter.schedules is not None

    def before(self, seq: int) -> tuple[Any, ...]:
        """The values for jobs that stand before a place."""
        return (*self.values[:2], min(seq, self.values[2]), *self.values[3:])

    def holds(self, options: bytes | None, payload: bytes | None) -> bool:
        """True if a candidate matches."""
        wanted = self.filter
        if wanted.schedules is not None and not _is_of(options, wanted.schedules):
            return False
        return not wanted.args or (payload is not None and holds(payload, wanted.args))


def select(work: Work, filter: JobFilter, cursor: str | None) -> Steps[Selection]:
    """Find out how to look for what a filter wants."""
    after, before = -1, BEYOND if cursor is None else min(BEYOND, int(cursor))
    variant, places = "", None
    wanted_ids = filter.chains if filter.ids is None else filter.ids
    if wanted_ids is not None:
        low, high = _ranges(wanted_ids)
        rows = yield from ask("inspect.near", low, high, FEW + 1)
        if len(rows) <= FEW:
            variant, places = "_among", [row[0] for row in rows]
        else:
            [(first, last)] = yield from ask("inspect.reach", low, high)
            after, before = first - 1, min(before, last + 1)
    elif filter.states is not None:
        variant = "_of_states"
        yield from begin()
        yield from ask("inspect.plan_for_values")
    values = (work.now, after, before, *_values(filter))
    return Selection(variant, values if places is None else (*values, places), filter)


def _values(filter: JobFilter) -> tuple[Any, ...]:
    ids, chains = filter.ids, filter.chains
    return (
        _listed(filter.states),
        filter.older,
        filter.newer,
        filter.ended,
        _listed(filter.keys),
        _listed(filter.lanes),
        _patterns(filter.queues),
        _patterns(filter.origins),
        _patterns(filter.tasks),
        *((None, None) if ids is None else _ranges(ids)),
        *((None, None) if chains is None else _ranges(chains)),
        None if filter.schedules is None else [_in_options(name) for name in sorted(filter.schedules)],
        None if filter.errors is None else _listed(part.encode().lower().decode() for part in filter.errors),
    )


def _ranges(ids: Iterable[str]) -> tuple[list[str], list[str]]:
    """The first and the last ids that begin so."""
    digits = [id.replace("-", "").lower()[:_ID_DIGITS] for id in sorted(ids)]
    return [one.ljust(_ID_DIGITS, "0") for one in digits], [one.ljust(_ID_DIGITS, "f") for one in digits]


def _listed(texts: Iterable[str] | None) -> list[str] | None:
    """Texts to be compared with stored ones; no stored one holds a NUL."""
    return None if texts is None else sorted(text for text in texts if "\0" not in text)


def _patterns(names: Iterable[str] | None) -> list[str] | None:
    return None if names is None else [_like(name) for name in sorted(names)]


def _like(name: str) -> str:
    """A name, in which a star stands for any characters, as LIKE takes it."""
    return re.sub(r"([\\%_])", r"\\\1", name).replace("*", "%")


def _in_options(schedule: str) -> bytes:
    """Where the options of a schedule's jobs name it, as their encoder writes it."""
    return f'%"schedule":"{_like(schedule)}"%'.encode()


def _is_of(options: bytes | None, schedules: Iterable[str]) -> bool:
    """True if a job was made by one of these schedules; False if its options cannot be read."""
    try:
        name = None if options is None else _origins.decode(options).schedule
    except msgspec.MsgspecError:
        return False
    return name is not None and any(_matches(name, pattern) for pattern in schedules)


def _matches(name: str, pattern: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None

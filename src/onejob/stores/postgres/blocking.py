"""Blockers: jobs that wait for chains to end. What is waited for is a row each, so that a chain's end touches only
those who wait for it, however many others they wait for.

Those rows are changed only by who has locked the job that waits: of two chains that end at the same time, the second
sees what the first did, and lets go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from onejob.core.chain import circle, path_to, stranded, unknown_blocker
from onejob.core.errors import UnknownBlocker
from onejob.core.job import ENDED, ChainId, NewJob, State
from onejob.sql import waits
from onejob.sql.ids import written_out
from onejob.stores.postgres import lanes
from onejob.stores.postgres.steps import Row, Steps, ask
from onejob.stores.postgres.work import Work

Waits: TypeAlias = waits.Waits[str]

NOBODY = Waits()


class Standing(msgspec.Struct, frozen=True):
    """How a chain stands: by its last job. One that is gone counts as revoked."""

    chain: str
    last: str | None
    state: str
    error: str | None
    follows: str | None
    """Whom its last job waits for; or was waiting for when it ended, if it never started."""
    digest: bytes | None
    """The key that its first job took, if any."""
    queue: str | None

    @property
    def live(self) -> bool:
        """True until it has ended."""
        return self.state not in ENDED


class Freed(msgspec.Struct, frozen=True):
    """What became of those who waited for chains that have ended."""

    stranded: list[tuple[str, str]] = []
    """Who must fail, and why."""
    joined: frozenset[str] = frozenset()
    """The chains that some of them wait for instead."""
    busy: frozenset[str] = frozenset()
    """The chains of which somebody could not be let go, because another transaction has it."""


def look(work: Work, job: NewJob) -> Steps[Waits]:
    """Find the chains that a newcomer is to wait for; raises `UnknownBlocker` for one that is not on record."""
    return NOBODY if not job.blockers else (yield from look_many(work, [job]))[0]


def look_many(work: Work, jobs: Sequence[NewJob]) -> Steps[list[Waits]]:
    """The same for several newcomers at once."""
    named = {id for job in jobs for id in job.blockers}
    if not named:
        return [NOBODY] * len(jobs)
    known = {id: own for id in named if (own := written_out(id)) is not None}
    rows = yield from ask("blockers.chains", list(known.values()))
    chains = {str(id): str(chain) for id, chain in rows}
    wanted: list[tuple[str, ...]] = []
    for job in jobs:
        for id in job.blockers:
            if known.get(id) not in chains:
                raise UnknownBlocker(unknown_blocker(id))
        wanted.append(tuple(dict.fromkeys(chains[known[id]] for id in job.blockers)))
    found = yield from standing(work, {chain for one in wanted for chain in one})
    return [_waits(one, found, runs_anyway=job.runs_anyway) for one, job in zip(wanted, jobs, strict=True)]


def standing(work: Work, chains: Iterable[str]) -> Steps[dict[str, Standing]]:
    """How chains stand."""
    rows = yield from ask("blockers.standing", list(chains))
    return {str(row[0]): standing_of(row) for row in rows}


def standing_of(row: Row) -> Standing:
    """Read the first columns of `blockers.standing` or `ending.mark`."""
    chain, last, state, error, follows, digest, queue = row[:7]
    return Standing(
        str(chain),
        None if last is None else str(last),
        State.REVOKED if last is None else state,
        "it is gone" if last is None else error,
        None if follows is None else str(follows),
        digest,
        queue,
    )


def put(work: Work, id: str, waits: Waits, runs_anyway: bool) -> Steps[None]:
    """Write down whom a new job waits for."""
    yield from put_many(work, [(id, waits, runs_anyway)])


def put_many(work: Work, jobs: Iterable[tuple[str, Waits, bool]]) -> Steps[None]:
    """The same for several new jobs at once."""
    rows = [
        (id, place, chain, not runs_anyway, chain in waits.live)
        for id, waits, runs_anyway in jobs
        for place, chain in enumerate(waits.chains)
    ]
    if rows:
        yield from ask("blockers.put", *(list(column) for column in zip(*rows, strict=True)))


def renew(work: Work, id: str) -> Steps[Waits]:
    """Look again at whom a job waits for that is about to be revived."""
    yield from ask("blockers.lock", id)
    rows = yield from ask("blockers.of", id)
    if not rows:
        return NOBODY
    chains = tuple(str(row[1]) for row in rows)
    waits = _waits(chains, (yield from standing(work, chains)), runs_anyway=not rows[0][2])
    if waits.reason is None:
        yield from ask("blockers.renew", id, list(waits.live))
    return waits


def let_go(work: Work, over: Sequence[Standing], now: int) -> Steps[Freed]:
    """Chains have ended: release who waited for nobody else."""
    by_chain = {one.chain: one for one in over}
    ended = (list(by_chain), [beyond(one, by_chain) for one in over], now)
    busy: set[str] = set()
    released: list[Row] = []
    others: set[str] = set()
    stranded_by: dict[str, Standing] = {}
    for raw, chain, needed, locked, *where in (yield from ask("blockers.waiting", *ended)):
        id, one = str(raw), by_chain[str(chain)]
        if not locked:
            busy.add(one.chain)
        elif where[0] is not None:
            released.append((id, *where))
        else:
            others.add(id)
            if needed and one.state != State.COMPLETED:
                stranded_by.setdefault(id, one)
    if ready := list(others - stranded_by.keys()):
        yield from ask("blockers.let_go", ready, list(by_chain))
        released += yield from ask("blockers.release", *ended, ready)
    reasons = [(id, stranded(ChainId(one.chain), one.state, one.error)) for id, one in stranded_by.items()]
    return Freed(reasons, (yield from _tell(work, released)), frozenset(busy))


def beyond(one: Standing, over: Mapping[str, Standing]) -> str | None:
    """Whom the followers of a chain that has ended wait for next; not for one that has ended with it."""
    seen: set[str] = set()
    instead = one.follows
    while instead is not None and instead in over and instead not in seen:
        seen.add(instead)
        instead = over[instead].follows
    return instead


def look_for_next(work: Work, job: NewJob, own: str) -> Steps[Waits | str]:
    """Whom a chain's next job is to wait for; or why it cannot be made: one is unknown, or waits for this very chain."""
    if not job.blockers:
        return NOBODY
    try:
        waits = yield from look(work, job)
    except UnknownBlocker as error:
        return f"UnknownBlocker: {error}"
    path = yield from _way_back(waits.chains, own)
    return waits if path is None else circle([ChainId(chain) for chain in path])


def circles(work: Work, chains: Iterable[str]) -> Steps[dict[str, str]]:
    """Which of these chains wait for themselves after all, and how: two went on at once, each unseen by the other."""
    found: dict[str, str] = {}
    for own in chains:
        waits_for = tuple(str(awaited) for _, awaited in (yield from ask("blockers.waits_of", [own])))
        path = yield from _way_back(waits_for, own)
        if path is not None:
            found[own] = circle([ChainId(chain) for chain in path])
    return found


def _waits(chains: tuple[str, ...], found: Mapping[str, Standing], *, runs_anyway: bool) -> Waits:
    live = frozenset(chain for chain in chains if found[chain].live)
    for chain in () if runs_anyway else chains:
        one = found[chain]
        if one.state in (State.FAILED, State.REVOKED):
            return Waits(chains, live, stranded(ChainId(chain), one.state, one.error))
    return Waits(chains, live)


def _tell(work: Work, released: Sequence[Row]) -> Steps[frozenset[str]]:
    """Jobs may start, or wait for somebody else: for whom."""
    work.tell("work", {queue for _, queue, _, state, _ in released if state != State.BLOCKED})
    ready = {(queue, lane) for _, queue, lane, state, _ in released if state == State.PARKED}
    yield from lanes.touch(work, ready)
    return frozenset(str(follows) for *_, follows in released if follows is not None)


def _way_back(chains: tuple[str, ...], own: str) -> Steps[list[str] | None]:
    """How one of these chains comes to wait for `own`; level by level over those who wait, None if none does."""
    origins = dict.fromkeys(chains, own)
    level = set(chains)
    while level and own not in level:
        edges = yield from ask("blockers.waits_of", list(level))
        level = set[str]()
        for waiting, awaited in ((str(one), str(other)) for one, other in edges):
            if awaited not in origins:
                origins[awaited] = waiting
                level.add(awaited)
    if own not in level:
        return None
    last = origins.pop(own, None)
    return [own, own] if last is None or last == own else [*path_to(last, origins), own]

"""jobs, count and dead: which jobs are looked at for a filter, so that the rest need not be.

By ids or chains, those; by states, those that the index names, where they are few among many; dead letters by their own
index; and else all jobs of the queues that can match.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from onejob.core.filter import JobFilter
from onejob.core.job import Job, State
from onejob.sql.ids import id_to_bytes
from onejob.store import Page
from onejob.stores.valkey import cursors
from onejob.stores.valkey.asking import everywhere, together
from onejob.stores.valkey.bounds import PORTION
from onejob.stores.valkey.chain_views import jobs_of_chain
from onejob.stores.valkey.forms import STATES
from onejob.stores.valkey.matching import Matching, whole_ids
from onejob.stores.valkey.office import DESK, Office, portions
from onejob.stores.valkey.showing import load
from onejob.stores.valkey.streams import Found, Stream, Walk, found_in, take, walked
from onejob.stores.valkey.wire import blob_or_false, blobs

FULL_PAGE: Final = PORTION
"""Jobs that a script looks at in one call, at most."""
SMALL_PAGE: Final = 20
FEW: Final = 5_000
"""So many jobs of a state are listed by the index at most, and only where the queue has several times as many."""
SEVERAL: Final = 4

_NAMED_BY: Final[dict[State, tuple[str, ...]]] = {
    State.BLOCKED: ("f", "h"),
    State.DELAYED: ("D", "E"),
    State.PARKED: ("t", "H"),
    State.WAITING: ("R",),
    State.RUNNING: ("W",),
    State.FAILED: ("Zf",),
    State.REVOKED: ("Zv",),
}
"""Where the index names jobs in a state, in the order of their lives: who moves on meanwhile is still seen."""
_NAMED_BY_CHAIN: Final = frozenset({State.FAILED, State.REVOKED})
"""There it has the first job of a chain, which need not be the one that ended so."""
_UNDELIVERED: Final = frozenset(State) - {State.COMPLETED, State.REVOKED}


async def jobs(office: Office, filter: JobFilter, limit: int, cursor: str | None) -> Page:
    """A page of jobs, newest first; see `Inspector.jobs`."""
    matching = await _matching(office, filter)
    positions = None if cursor is None else cursors.read(cursor)
    streams = await _Choosing(office, matching, limit, positions).streams()
    page = await _whole(office, await take(streams, limit))
    more = {stream.queue: first.number + 1 for stream in streams if (first := await stream.first())}
    # Meanwhile one may have moved on.
    return Page([job for job in page if matching.holds(job)], cursors.written(more) or None)


async def count(office: Office, filter: JobFilter) -> int:
    """How many jobs match; see `Inspector.count`."""
    if msgspec.structs.replace(filter, states=None, queues=None) == JobFilter():
        matching, tallies = Matching(filter), await counts(office)
        return sum(
            number
            for queue, tally in tallies.items()
            for state, number in tally.items()
            if matching.queue(queue) and (filter.states is None or state in filter.states)
        )
    streams = await _Choosing(office, await _matching(office, filter)).streams()
    return sum(await together(stream.count() for stream in streams))


async def counts(office: Office, queues: Sequence[str] | None = None) -> dict[str, dict[State, int]]:
    """Jobs per queue and state; see `Inspector.counts`."""
    found = await everywhere(office, "counts", queues=queues)
    return {queue: {STATES[letter]: number for letter, number in tally} for queue, tally in found if tally}


async def dead(office: Office, queue: str | None, start: int, stop: int) -> list[Job]:
    """A range of dead letters; see `Inspector.dead`."""
    if stop <= start:
        return []
    matching = Matching(JobFilter(states=_UNDELIVERED))
    walk = Walk("dead", _size(stop, 1), (False if queue is None else queue,))
    streams = [walked(office, name, matching, walk) for name in await office.queues()]
    return await _whole(office, (await take(streams, stop))[start:])


class _Choosing:
    """What to look at for one call; without a limit, only numbers are wanted."""

    def __init__(
        self,
        office: Office,
        matching: Matching,
        limit: int | None = None,
        positions: Mapping[str, int] | None = None,
    ) -> None:
        self._office = office
        self._matching = matching
        self._limit = limit
        self._positions = positions

    async def streams(self) -> list[Stream]:
        """The jobs that match, by queue; after a page, from its positions on."""
        filter = self._matching.filter
        if self._matching.is_vain:
            return []
        if (named := await self._named()) is not None:
            wanted = [(queue, ids) for queue, ids in named.items() if self._is_wanted(queue)]
            return await together(self._among(queue, ids) for queue, ids in wanted)
        queues = [queue for queue in await self._office.queues() if self._is_wanted(queue)]
        walk = Walk("jobs", _size(self._limit, len(queues)))
        if filter.origins is not None:
            walk = Walk("dead", walk.size, (_only(filter.origins) or False,))
        elif filter.states is not None:
            tallies = await counts(self._office, queues)
            found = await together(self._in_states(name, tally, walk) for name, tally in tallies.items())
            return [stream for stream in found if stream is not None]
        return [self._walked(queue, walk) for queue in queues]

    async def _named(self) -> dict[str, list[bytes]] | None:
        """The jobs that a filter names one by one, by queue; None if it does not."""
        filter, named = self._matching.filter, dict[str, list[bytes]]()
        if (ids := whole_ids(filter.ids)) is not None:
            for some in portions(ids):
                for id, queue in (await self._office.find(some)).items():
                    named.setdefault(queue, []).append(id)
        elif (chains := whole_ids(filter.chains)) is not None:
            places = await self._office.find(chains)
            found = await together(jobs_of_chain(self._office, *place) for place in places.items())
            for job in (job for some in found for job in some):
                named.setdefault(job.queue, []).append(id_to_bytes(job.id))
        else:
            return None
        return named

    async def _among(self, queue: str, ids: list[bytes]) -> Stream:
        """Those of these jobs that match."""
        found: list[Found] = []
        at = 0
        while at < len(ids):
            asked = (blobs(ids[at : at + FULL_PAGE]), self._matching.choice())
            rows, looked = await self._office.look("among", queue, asked)
            found += found_in(rows, queue, self._matching)
            at += looked
        return self._given(queue, found)

    async def _in_states(self, queue: str, tally: Mapping[State, int], walk: Walk) -> Stream | None:
        """A queue's jobs in the states that a filter asks for; None if it has none."""
        states = self._matching.filter.states or frozenset()
        wanted = {state: number for state, number in tally.items() if state in states}
        number = sum(wanted.values())
        if not number:
            return None
        if number <= FEW and number * SEVERAL <= sum(tally.values()) and State.COMPLETED not in wanted:
            found = await self._listed(queue, wanted)
            if found is not None:
                return self._given(queue, found)
        return self._walked(queue, walk)

    async def _listed(self, queue: str, wanted: Mapping[State, int]) -> list[Found] | None:
        """Jobs that the index names by their states; None if it does not name them all."""
        starts = [start for state, names in _NAMED_BY.items() if state in wanted for start in names]
        choice, found = self._matching.choice(), list[Found]()
        seen, at, member = 0, 1, None
        while at is not None:
            rows, with_states, at, member = await self._office.look(
                "listed", queue, (starts, at, blob_or_false(member), choice)
            )
            found += found_in(rows, queue, self._matching)
            seen += with_states
        return None if wanted.keys() & _NAMED_BY_CHAIN and seen < sum(wanted.values()) else found

    def _walked(self, queue: str, walk: Walk) -> Stream:
        return walked(
            self._office,
            queue,
            self._matching,
            walk,
            before=self._before(queue),
            counts=self._limit is None,
        )

    def _given(self, queue: str, found: Iterable[Found]) -> Stream:
        return Stream(queue, self._matching, self._before(queue)).put(found)

    def _is_wanted(self, queue: str) -> bool:
        return self._matching.queue(queue) and (
            self._positions is None or cursors.tag(queue) in self._positions
        )

    def _before(self, queue: str) -> int | None:
        return None if self._positions is None else self._positions[cursors.tag(queue)]


async def _matching(office: Office, filter: JobFilter) -> Matching:
    if filter.older is None and filter.newer is None and filter.ended is None:
        return Matching(filter)
    return Matching(filter, await office.look("time", DESK))


async def _whole(office: Office, found: Iterable[Found]) -> list[Job]:
    """Those jobs themselves; what is gone meanwhile is left out."""
    by_queue: dict[str, list[bytes]] = {}
    places = {one.id: one.queue for one in found}
    for id, queue in places.items():
        by_queue.setdefault(queue, []).append(id)
        office.remember([id], queue)
    whole = await load(office, by_queue)
    return [whole[id] for id in places if id in whole]


def _only(names: frozenset[str]) -> str | None:
    """A name that stands alone, and for itself."""
    [name, *others] = names
    return None if others or "*" in name else name


def _size(limit: int | None, queues: int) -> int:
    """How many jobs of a queue to read at a time: one more than are wanted, or its share twice over."""
    if limit is None:
        return FULL_PAGE
    share = limit if queues <= 1 else 2 * limit // queues
    return min(max(share + 1, SMALL_PAGE), FULL_PAGE)

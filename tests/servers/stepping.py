"""Sessions of one PostgreSQL store that are driven statement by statement: a test decides who acts between which two.

An operation runs as the product runs it, by `drive`, and stops before or after the statements that the test names
(`begin`, `commit` and `rollback` among them). Whether a session waits for a lock is asked of the server; nobody sleeps.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar

import asyncpg

from onejob.core.job import Claimed, JobId, NewJob, State, WorkerId
from onejob.core.judge import Answer
from onejob.core.lifecycle import Move, Settlement
from onejob.store import Amended, Amendment, Ask, Claims, JobStore, Pruned, Retention, SettleReply
from onejob.stores import open_store
from onejob.stores.postgres import amend, claim, enqueue, prune, settle
from onejob.stores.postgres.address import Address, parse
from onejob.stores.postgres.driver import Connection, Link, drive
from onejob.stores.postgres.engine import PROBES
from onejob.stores.postgres.steps import Row, Steps
from onejob.stores.postgres.work import Guesses, Work
from onejob.testing import FakeClock

T = TypeVar("T")
PATIENCE = 20.0
"""Seconds after which something that should happen at once has not happened."""

_ANY: frozenset[tuple[str, bool]] = frozenset({("", True)})
"""Stop before every statement."""


class SteppedLink(Link):
    """A connection that stops where it is told to."""

    __slots__ = ("_arrived", "_free", "said", "stops")

    def __init__(self, connection: Connection, address: Address) -> None:
        super().__init__(connection, address)
        self.stops: frozenset[tuple[str, bool]] = frozenset()
        """Statements, and whether to stop before them rather than after."""
        self.said: list[str] = []
        """All statements that were answered, by name."""
        self._arrived = asyncio.Event()
        self._free = asyncio.Event()

    async def fetch(self, name: str, parameters: tuple[Any, ...]) -> list[Row]:
        await self._pass(name, before=True)
        rows = await super().fetch(name, parameters)
        self.said.append(name)
        await self._pass(name, before=False)
        return rows

    async def execute(self, text: str) -> str:
        name = text.partition(" ")[0].rstrip(";")
        await self._pass(name, before=True)
        status = await super().execute(text)
        self.said.append(name)
        await self._pass(name, before=False)
        return status

    def go_on(self, stops: frozenset[tuple[str, bool]] = frozenset()) -> None:
        """Leave the place where it stands, if it does, for the next of these."""
        self.stops = stops
        self._arrived.clear()
        self._free.set()

    async def arrival(self) -> None:
        """Wait until it stands."""
        await self._arrived.wait()

    async def _pass(self, name: str, *, before: bool) -> None:
        if (name, before) in self.stops or (self.stops is _ANY and before):
            self._free.clear()
            self._arrived.set()
            await self._free.wait()


class Act(Generic[T]):
    """One operation on one session. It does nothing before it is told how far to go."""

    def __init__(self, link: SteppedLink, steps: Steps[T], *, joined: bool) -> None:
        self._link = link
        self._steps = steps
        self._joined = joined
        self._task: asyncio.Task[T] | None = None

    async def before(self, *names: str) -> Self:
        """Go on until one of these statements comes next."""
        return await self._until(frozenset((name, True) for name in names))

    async def after(self, *names: str) -> Self:
        """Go on until one of these statements has been answered."""
        return await self._until(frozenset((name, False) for name in names))

    async def step(self) -> bool:
        """Go on until the next statement, whichever it is; False if there is none."""
        self._link.go_on(_ANY)
        return await self._arrives()

    def go(self) -> Self:
        """Go on to the end, beside the test."""
        self._link.go_on()
        self._running()
        return self

    async def done(self) -> T:
        """Go on to the end, and wait for that."""
        self.go()
        async with asyncio.timeout(PATIENCE):
            return await self._running()

    async def close(self) -> None:
        """Give up, wherever it stands."""
        if self._task is None:
            self._steps.close()
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def is_done(self) -> bool:
        return self._task is not None and self._task.done()

    async def _until(self, stops: frozenset[tuple[str, bool]]) -> Self:
        self._link.go_on(stops)
        if not await self._arrives():
            raise AssertionError(f"it ended before {sorted(stops)}, with {self._link.said}")
        return self

    async def _arrives(self) -> bool:
        running = self._running()
        arrival = asyncio.ensure_future(self._link.arrival())
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait({arrival, running}, return_when=asyncio.FIRST_COMPLETED)
        if arrival.done():
            return True
        arrival.cancel()
        running.result()
        return False

    def _running(self) -> asyncio.Task[T]:
        if self._task is None:
            self._task = asyncio.ensure_future(drive(self._link, self._steps, joined=self._joined))
        return self._task


class Session:
    """One session of the database, with the operations of a store. As a user's, they join his transaction."""

    def __init__(self, play: Play, connection: Any, *, foreign: bool) -> None:
        self._play = play
        self._acts: list[Act[Any]] = []
        self.connection = connection
        self.link = SteppedLink(connection, play.address)
        self.foreign = foreign
        self.guesses = Guesses()
        self.pid: int = connection.get_server_pid()

    async def begin(self, isolation: str = "read committed") -> None:
        """Open a transaction that stays open until the test ends it, whatever operations think."""
        await self.connection.execute(f"begin isolation level {isolation}")

    async def commit(self) -> None:
        await self.connection.execute("commit")

    async def rollback(self) -> None:
        await self.connection.execute("rollback")

    async def end(self, how: str) -> None:
        """`commit` or `rollback`."""
        await (self.commit() if how == "commit" else self.rollback())

    async def execute(self, text: str, *parameters: Any) -> list[Row]:
        """A statement of the user's own."""
        return [tuple(row) for row in await self.connection.fetch(text, *parameters)]

    async def waits_for(self, other: Session) -> None:
        """Wait until this session waits for a lock that the other one has."""
        async with asyncio.timeout(PATIENCE):
            while other.pid not in await self._play.blockers(self):
                pass

    def act(self, make: Callable[[Work], Steps[T]], *, again: bool = False) -> Act[T]:
        """An operation, inside the transaction that is open, or as the store runs it."""
        work = Work(self._play.clock(), foreign=self.foreign, again=again, guesses=self.guesses)
        act = Act(self.link, make(work), joined=self.connection.is_in_transaction())
        self._acts.append(act)
        return act

    def enqueue(self, *jobs: NewJob) -> Act[list[Answer]]:
        return self.act(lambda work: enqueue.enqueue(work, jobs))

    def enqueue_many(self, *jobs: NewJob, repetitive: bool = False) -> Act[list[Answer]]:
        """As the store does it outside of any transaction; `repetitive`: it guesses that they are held."""

        def make(work: Work) -> Steps[list[Answer]]:
            work.guesses.repetitive = repetitive
            return enqueue.enqueue(work, jobs, alone=True)

        return self.act(make)

    def claim(self, *, limit: int = 100, worker: str = "w", queues: Sequence[str] = ("q",)) -> Act[Claims]:
        wish = Ask(WorkerId(worker), tuple(queues), limit)
        return self.act(lambda work: claim.claim(work, wish, os.urandom(8)))

    def settle(
        self, claimed: Claimed, move: Move = Move.COMPLETE, *, wish: Ask | None = None, **settings: Any
    ) -> Act[SettleReply]:
        done = [Settlement(claimed.lease, move, **settings)]
        return self.act(lambda work: settle.settle(work, done, wish, os.urandom(8)))

    def amend(
        self, id: str, amendment: Amendment, states: frozenset[State] | None = None
    ) -> Act[list[Amended]]:
        return self.act(lambda work: amend.amend(work, [JobId(id)], amendment, states))

    def prune(self, retention: Retention, limit: int = 100) -> Act[Pruned]:
        return self.act(lambda work: prune.prune(work, retention, limit))

    async def close(self) -> None:
        for act in self._acts:
            await act.close()
        with suppress(Exception):
            await self.connection.close(timeout=2)
        self.connection.terminate()


class Play:
    """A store on a clock of its own, and sessions beside it: `async with Play(url) as play`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.address = parse(url)
        self.clock = FakeClock()
        self.store: JobStore = open_store(url, clock=self.clock)
        self._sessions: list[Session] = []
        self._watch: Any = None

    async def __aenter__(self) -> Self:
        self._watch = await self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(session.close() for session in self._sessions))
        await self._watch.close(timeout=2)
        await self.store.close()

    async def ours(self, patience: str = f"{PATIENCE:g}s") -> Session:
        """A session as the store opens them; but it waits for a lock until the test has done what it wants to.

        A session with little patience (`1ms`) raises as soon as it would wait for anybody.
        """
        session = await self._open(foreign=False)
        for name, value in PROBES.items():
            await session.execute("select set_config($1, $2, false)", name, value)
        await session.execute("select set_config('lock_timeout', $1, false)", patience)
        return session

    async def reader(self) -> Session:
        """A session as the store opens them for those who only look."""
        return await self._open(foreign=False)

    async def user(self) -> Session:
        """A user's own session."""
        return await self._open(foreign=True)

    async def blockers(self, session: Session) -> list[int]:
        """Whose locks a session waits for, right now."""
        return await self._watch.fetchval("select pg_blocking_pids($1)", session.pid)

    async def look(self, text: str, *parameters: Any) -> list[Row]:
        """What the tables say; `{}` in the statement is the store's schema."""
        return [tuple(row) for row in await self._watch.fetch(text.format(self.address.schema), *parameters)]

    async def _open(self, *, foreign: bool) -> Session:
        session = Session(self, await self._connect(), foreign=foreign)
        self._sessions.append(session)
        return session

    async def _connect(self) -> Any:
        return await asyncpg.connect(**self.address.arguments)

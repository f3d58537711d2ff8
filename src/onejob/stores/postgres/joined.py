"""Enqueues that join the transaction of a user's own connection: the same statements, driven on his driver.

What is written is there when he commits, and gone when he rolls back; the hint to workers goes out with his commit. We
cannot know whether he commits, so duplicates that are absorbed in his transactions are not counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakSet

import msgspec

from onejob.core.errors import SchemaMismatch, WrongCall
from onejob.core.job import NewJob
from onejob.core.judge import Answer
from onejob.core.options import MAX_BULK
from onejob.stores.postgres.adapters import Adapter, AsyncAdapter, SyncAdapter, adapter_of, wrong_colour
from onejob.stores.postgres.enqueue import enqueue
from onejob.stores.postgres.signals import hint
from onejob.stores.postgres.statements import sql
from onejob.stores.postgres.steps import BEGIN, Row, Statement, Steps, ask
from onejob.stores.postgres.work import Work

T = TypeVar("T")


class Whereabouts(msgspec.Struct, frozen=True):
    """Where a connection leads: a database, on a server that is known by the instant of its start, and a store there."""

    database: str
    server: str
    place: str
    """The server as people know it; who comes in another way sees another."""
    identity: str | None = None
    """The store's own; None: there is no store."""

    def is_store(self, store: Whereabouts | None) -> bool:
        """True if that very store is there."""
        return (
            store is not None
            and self.identity is not None
            and (self.identity, self.database, self.server) == (store.identity, store.database, store.server)
        )

    def named_beside(self, other: Whereabouts) -> str:
        """In words that tell it from another."""
        alike = (self.database, self.place) == (other.database, other.place)
        since = datetime.fromtimestamp(float(self.server), UTC).isoformat(" ", "seconds")
        started = f" (running since {since})" if alike else ""
        return f'database "{self.database}" of the server at {self.place}{started}'


class Run(Protocol):
    """Runs an operation on a connection of our own."""

    def __call__(self, make: Callable[[Work], Steps[T]], /) -> Awaitable[T]: ...


class Joining:
    """What a store knows of its users' connections: which of them lead to it."""

    def __init__(self, schema: str, run: Run, clock: Callable[[], int] | None = None) -> None:
        self._schema = schema
        self._run = run
        self._clock = clock
        self._ours: Whereabouts | None = None
        self._known: WeakSet[object] = WeakSet()

    def join(self, connection: object) -> Joined:
        """The transaction that is open on a connection."""
        return Joined(self, adapter_of(connection))

    def is_known(self, connection: object) -> bool:
        """True if a driver's connection has been checked before."""
        return connection in self._known

    def check(self, connection: object, theirs: Whereabouts) -> bool:
        """Remember a connection that leads here; False if it does not, by what was read."""
        if not theirs.is_store(self._ours):
            return False
        with suppress(TypeError):  # one that cannot be remembered is asked each time
            self._known.add(connection)
        return True

    @property
    def is_read(self) -> bool:
        """True once it is known where the store is."""
        return self._ours is not None

    async def read(self) -> None:
        """Ask on our own connection: the first time, and when the server may have been restarted since."""
        self._ours = await self._run(lambda _: _own())

    def refusal(self, theirs: Whereabouts) -> WrongCall:
        """What to raise for a connection that leads elsewhere."""
        ours = self._ours
        assert ours is not None
        if theirs.identity is None:
            what = f'no onejob store in schema "{self._schema}"'
        elif theirs.identity != ours.identity:
            what = f'another onejob store in schema "{self._schema}"'
        else:
            what = "a copy of this store"
        return WrongCall(
            f"This connection leads to {theirs.named_beside(ours)}, where there is {what}; the store of this app is in "
            f"{ours.named_beside(theirs)}. A job can only join a transaction of its own database: give a connection to that "
            "one, or enqueue without connection=… once your transaction has committed."
        )

    def operation(self, jobs: Sequence[NewJob], now: int | None) -> Steps[list[Answer]]:
        """The statements of one enqueue."""
        if len(jobs) > MAX_BULK:
            raise ValueError(f"enqueue takes at most {MAX_BULK} jobs at a time, not {len(jobs)}")
        if now is None and self._clock is not None:
            now = self._clock()
        return _operation(Work(now, foreign=True), jobs, self._schema)

    def text(self, statement: Statement) -> str:
        """A statement in this store's schema."""
        return sql(statement.name, self._schema)


class Joined:
    """One enqueue in the transaction of a user's connection; see `onejob.store.Joined`."""

    def __init__(self, joining: Joining, adapter: Adapter) -> None:
        self._joining = joining
        self._adapter = adapter

    def enqueue(
        self,
        jobs: Sequence[NewJob],
        wait: Callable[[Coroutine[Any, Any, None]], None],
        *,
        now: int | None = None,
    ) -> list[Answer]:
        """Accept newcomers as part of his transaction, in this thread."""
        adapter, joining = self._adapter, self._joining
        if not isinstance(adapter, SyncAdapter):
            raise wrong_colour(adapter)
        connection = adapter.enter()
        if not joining.is_known(connection):
            if not joining.is_read:
                wait(joining.read())
            theirs = self._drive(adapter, _whereabouts())
            if not joining.check(connection, theirs):
                wait(joining.read())
                if not joining.check(connection, theirs):
                    raise joining.refusal(theirs)
        return self._drive(adapter, joining.operation(jobs, now))

    async def aenqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Answer]:
        """As `enqueue`, for a connection of async code."""
        adapter, joining = self._adapter, self._joining
        if isinstance(adapter, SyncAdapter):
            raise wrong_colour(adapter)
        connection = await adapter.enter()
        if not joining.is_known(connection):
            if not joining.is_read:
                await joining.read()
            theirs = await self._adrive(adapter, _whereabouts())
            if not joining.check(connection, theirs):
                await joining.read()
                if not joining.check(connection, theirs):
                    raise joining.refusal(theirs)
        return await self._adrive(adapter, joining.operation(jobs, now))

    def _drive(self, adapter: SyncAdapter, steps: Steps[T]) -> T:
        text = self._joining.text
        saved = False
        with closing(steps):
            try:
                statement = next(steps)
                while True:
                    rows: list[Row] = []
                    try:
                        if statement != BEGIN:
                            rows = adapter.execute(text(statement), statement.parameters)
                    except Exception as error:
                        statement = steps.throw(error)
                    else:
                        saved = _is_saved(statement, saved)
                        statement = steps.send(rows)
            except StopIteration as done:
                return done.value
            except Exception:
                raise
            except BaseException:
                if saved:
                    with suppress(Exception):
                        adapter.execute(text(_UNDO), ())
                raise

    async def _adrive(self, adapter: AsyncAdapter, steps: Steps[T]) -> T:
        text = self._joining.text
        saved = False
        with closing(steps):
            try:
                statement = next(steps)
                while True:
                    rows: list[Row] = []
                    try:
                        if statement != BEGIN:
                            rows = await adapter.execute(text(statement), statement.parameters)
                    except Exception as error:
                        statement = steps.throw(error)
                    else:
                        saved = _is_saved(statement, saved)
                        statement = steps.send(rows)
            except StopIteration as done:
                return done.value
            except Exception:
                raise
            except BaseException:
                if saved:
                    with suppress(Exception):
                        await asyncio.shield(adapter.execute(text(_UNDO), ()))
                raise


_PLACE: Final = 3
_SAMPLES: Final[dict[str, object]] = {
    "boolean": True,
    "integer": 1,
    "bigint": 1,
    "text": "a",
    "bytea": b"\0",
}
"""What a driver makes of the values in `joined.stands`, if nobody has told it otherwise."""
_UNDO: Final = Statement("enqueue.rollback_to")


def _is_saved(statement: Statement, saved: bool) -> bool:
    """Whether there is something to go back to, so that a call which is broken off leaves no half of it to be committed."""
    match statement.name:
        case "enqueue.savepoint":
            return True
        case "enqueue.release_savepoint":
            return False
        case _:
            return saved


def _operation(work: Work, jobs: Sequence[NewJob], schema: str) -> Steps[list[Answer]]:
    answers = yield from enqueue(work, jobs)
    if work.topics:
        yield from ask("signals.notify", *hint(schema, work.topics))
    return answers


def _whereabouts() -> Steps[Whereabouts]:
    """Where a connection leads."""
    [row] = yield from ask("joined.stands")
    place, exists, samples = row[:_PLACE], row[_PLACE], row[_PLACE + 1 :]
    wrong = [
        name for (name, plain), value in zip(_SAMPLES.items(), samples, strict=True) if not _is(value, plain)
    ]
    if wrong:
        raise WrongCall(
            f"On this connection values of type {', '.join(wrong)} are not read as the driver reads them by itself (set_type_codec, a loader or "
            "an adapter of your own), and onejob could not trust what it reads there: give a connection without that."
        )
    found = (yield from ask("joined.whose")) if exists else []
    return Whereabouts(*(found[0] if found else place))


def _is(value: object, plain: object) -> bool:
    return type(value) is type(plain) and value == plain


def _own() -> Steps[Whereabouts]:
    found = yield from ask("joined.whose")
    if not found:
        raise SchemaMismatch(
            "The store has lost the identity that it was given when it was made: restore its table meta."
        )
    return Whereabouts(*found[0])

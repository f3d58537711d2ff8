"""Tables of messages for the intake: in the store's own database, or in another one that SQLAlchemy speaks to."""

from __future__ import annotations

import asyncio
import datetime as dt
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import sqlalchemy
from stored import is_postgres

from onejob import App, Intake, Table
from onejob.core.job import Job, NewJob
from onejob.core.judge import Answer
from onejob.store import Transaction
from onejob.testing import FakeClock

T = TypeVar("T")
TABLE = "sms_schedules"
CREATE = """
create table {name} (
    id integer primary key, phone text, message text, scheduled_time text, scheduled boolean default false
)
"""
STOP_FLAGS = """
create function stop_flags() returns trigger language plpgsql as $$ begin raise exception 'no flags today'; end $$
"""
LISTING = re.compile(
    r"sqlite_master|sqlite_schema|pragma|pg_catalog|pg_class|information_schema", re.IGNORECASE
)
"""What asks which tables and columns there are."""


class Post:
    """An app that sends messages, and where the rows are that say which, to whom and when."""

    def __init__(self, app: App, engine: sqlalchemy.Engine | None = None) -> None:
        """Without an engine, the tables are in the store's own database."""
        self.app = app
        self.engine = engine
        self.sent: list[str] = []
        self.refuses: Exception | None = None
        """What sending raises."""
        self.send = app.task(name="send_sms")(self._send)

    async def _send(self, to: str, text: str) -> str:
        if self.refuses is not None:
            raise self.refuses
        self.sent.append(text)
        return f"{text} to {to}"

    def intake(self, name: str = "sms", pattern: str = TABLE, **settings: Any) -> Intake:
        """Declare it; what is no setting of an intake is one of its table."""
        of_table = {key: settings.pop(key) for key in ("tz", "days_back") if key in settings}
        source = Table(
            pattern, id="id", due="scheduled_time", flag="scheduled", database=self.engine, **of_table
        )
        settings.setdefault("arguments", lambda row: {"to": row["phone"], "text": row["message"]})
        return self.app.intake(name, source, self.send, **settings)

    async def sql(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement, with parameters as `:name`, where the tables are."""
        if self.engine is None:
            async with self.app.transaction() as tx:
                return await tx.execute(statement, parameters)
        # In a thread: who holds up the loop of a worker whose intake is about to commit waits for that in vain.
        return await asyncio.to_thread(self._sql, self.engine, statement, parameters)

    @staticmethod
    def _sql(engine: sqlalchemy.Engine, statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        with engine.begin() as connection:
            if parameters:
                result = connection.execute(sqlalchemy.text(statement), parameters)
            else:
                result = connection.exec_driver_sql(statement)
            return [tuple(row) for row in result] if result.returns_rows else []

    async def create(self, *names: str) -> None:
        for name in names or (TABLE,):
            await self.sql(CREATE.format(name=name))

    async def put(
        self, *ids: int, due: str | None = "2027-01-15 08:00:00", table: str = TABLE, **more: Any
    ) -> None:
        """Insert rows as a user would, who may or may not name the flag; message `m1` is that of row 1."""
        for some in batched(ids, 100):
            rows = [
                {"id": id, "phone": f"+{id}", "message": f"m{id}", "scheduled_time": due, **more}
                for id in some
            ]
            marks = ", ".join(
                f"({', '.join(f':{name}{place}' for name in row)})" for place, row in enumerate(rows)
            )
            values = {
                f"{name}{place}": value for place, row in enumerate(rows) for name, value in row.items()
            }
            await self.sql(f"insert into {table} ({', '.join(rows[0])}) values {marks}", **values)

    async def flag(self, id: int, value: bool | None, table: str = TABLE) -> None:
        await self.sql(f"update {table} set scheduled = :value where id = :id", value=value, id=id)

    async def flags(self, table: str = TABLE) -> dict[int, Any]:
        """What stands in the flag column, by id."""
        return dict(await self.sql(f"select id, scheduled from {table} order by id"))

    async def stop_flags(self) -> None:
        """Have every attempt to write a flag fail."""
        if self._speaks_postgres:
            await self.sql(STOP_FLAGS)
            await self.sql(
                f"create trigger stop_flags before update on {TABLE} for each row execute function stop_flags()"
            )
        else:
            refusal = "select raise(abort, 'no flags today')"
            await self.sql(f"create trigger stop_flags before update on {TABLE} begin {refusal}; end")

    async def let_flags(self) -> None:
        await self.sql("drop trigger stop_flags" + (f" on {TABLE}" if self._speaks_postgres else ""))

    @property
    def _speaks_postgres(self) -> bool:
        return is_postgres(self.app.url) if self.engine is None else self.engine.dialect.name == "postgresql"

    async def jobs(self) -> list[Job]:
        """All jobs on record, the oldest first."""
        return (await self.app.ajobs(limit=1_000)).jobs[::-1]

    async def keys(self) -> list[str]:
        return [job.key or "" for job in await self.jobs()]

    @contextmanager
    def watched(self) -> Iterator[Statements]:
        """Count the statements that reach the user's tables, and the jobs that reach the store."""
        seen = Statements()
        with watch_store(self.app, seen, statements=self.engine is None):
            if self.engine is None:
                yield seen
            else:
                with watch_engine(self.engine, seen):
                    yield seen


class Statements:
    """What was asked of the user's database, and of the store."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.values: list[Any] = []
        """What stood in the places for values of each."""
        self.enqueues: list[int] = []
        """How many jobs each call of the store brought."""

    def note(self, statement: str, values: Any = ()) -> None:
        if not LISTING.search(statement):
            self.texts.append(" ".join(statement.split()))
            self.values.append(values)

    @property
    def by_verb(self) -> Counter[str]:
        """How many there were of each kind, `count` for those that only count rows.

        What asks for the names of tables and columns is left out.
        """
        return Counter(_kind(text.lower()) for text in self.texts)


def _kind(statement: str) -> str:
    return "count" if statement.startswith("select count(") else statement.partition(" ")[0]


@contextmanager
def watch_engine(engine: sqlalchemy.Engine, seen: Statements) -> Iterator[None]:
    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        seen.note(statement)

    sqlalchemy.event.listen(engine, "before_cursor_execute", note)
    try:
        yield
    finally:
        sqlalchemy.event.remove(engine, "before_cursor_execute", note)


@contextmanager
def watch_store(app: App, seen: Statements, *, statements: bool) -> Iterator[None]:
    """Listen at the store's door: it does everything as before."""
    store = app.store
    opened, enqueue = store.transaction, store.enqueue

    @asynccontextmanager
    async def transaction(timeout: float) -> AsyncIterator[Transaction]:
        async with opened(timeout) as inner:
            yield Listening(inner, seen, statements)

    async def enqueue_heard(jobs: Sequence[NewJob], *, now: int | None = None) -> list[Answer]:
        seen.enqueues.append(len(jobs))
        return await enqueue(jobs, now=now)

    heard: dict[str, Callable[..., Any]] = {"transaction": transaction, "enqueue": enqueue_heard}
    for name, method in heard.items():
        setattr(store, name, method)
    try:
        yield
    finally:
        for name in heard:
            delattr(store, name)


class Listening:
    """A transaction of the store that notes what it is asked to do."""

    def __init__(self, inner: Transaction, seen: Statements, statements: bool) -> None:
        self._inner = inner
        self._seen = seen
        self._statements = statements

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def execute(
        self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()
    ) -> list[tuple[Any, ...]]:
        if self._statements:
            self._seen.note(statement, parameters)
        return await self._inner.execute(statement, parameters)

    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Answer]:
        self._seen.enqueues.append(len(jobs))
        return await self._inner.enqueue(jobs, now=now)


def at(clock: FakeClock, seconds: float = 0) -> str:
    """A time so far from now, as a user's column has it: UTC, without a zone."""
    moment = dt.datetime.fromtimestamp(clock.now / 1000 + seconds, dt.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def batched(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]

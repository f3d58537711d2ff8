"""What is seen of a storm by the database itself, so that not one moment is missed; and what must never be seen.

SQLite has one writer: triggers look at every row that is written, as everybody would see it. In PostgreSQL nobody sees
what others have not committed: triggers write down what happened, which is put in the order of the commits afterwards.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import groupby
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qs, urlsplit

import psycopg

from onejob import App

ONE_LIVE = ("in_flight", "once", "throttle")
ONE_OF_EACH = ("trailing", "coalesce", "latest", "debounce", "restart")
QUEUED = ("blocked", "delayed", "parked", "waiting")
LIVE = (*QUEUED, "running")


class Stored(NamedTuple):
    """A job as it stands at the end."""

    id: str
    task: str
    state: str
    attempt: int
    items: int


class Oracle(Protocol):
    """Watches the jobs of tasks that are named after their policies, as `module.policy`."""

    async def watch(self, policies: Iterable[str]) -> None:
        """Begin."""
        ...

    async def violations(self) -> list[str]:
        """Whatever must not be and was."""
        ...

    async def jobs(self) -> list[Stored]:
        """Everything on record."""
        ...


def oracle_of(app: App) -> Oracle:
    """The one for the store of an app."""
    return PostgresOracle(app.url) if app.url.startswith("postgresql:") else SqliteOracle(app)


def rules(policy: str) -> list[tuple[str, tuple[str, ...]]]:
    """What there may be one of at a time, and its name."""
    if policy in ONE_LIVE:
        return [("two live", LIVE)]
    return [("two running", ("running",))] + ([("two queued", QUEUED)] if policy in ONE_OF_EACH else [])


class SqliteOracle:
    SETUP = """
    create table violations (digest blob, what text);
    create index storm_digest on onejob_job (digest) where ended is null;
    create trigger storm_insert after insert on onejob_job begin {look} end;
    create trigger storm_update after update of state on onejob_job begin {look} end;
    """
    LOOK = """
    insert into violations
    select new.digest, '{what}: ' || group_concat(hex(id) || ' ' || state)
    from onejob_job where new.task like '%.{policy}' and digest = new.digest and ended is null and state in ({states})
    having count(*) > 1;
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def watch(self, policies: Iterable[str]) -> None:
        looks = "".join(
            self.LOOK.format(policy=policy, what=what, states=", ".join(f"'{state}'" for state in states))
            for policy in policies
            for what, states in rules(policy)
        )
        await self._run(self.SETUP.format(look=looks))

    async def violations(self) -> list[str]:
        return [what for (what,) in await self._run("select what from violations limit 5")]

    async def jobs(self) -> list[Stored]:
        rows = await self._run("select lower(hex(id)), task, state, attempt, items from onejob_job")
        return [Stored(*row) for row in rows]

    async def _run(self, statement: str) -> list[tuple[Any, ...]]:
        await self._app.store.open()
        async with self._app.transaction() as tx:
            return await tx.execute(statement)


class PostgresOracle:
    """Needs a server that keeps the instants of its commits."""

    SETUP = """
    create table storm (number bigint generated always as identity, digest bytea, task text, id uuid, state text,
        by xid8 not null default pg_current_xact_id());
    create function storm() returns trigger language plpgsql as $$ begin
        insert into storm (digest, task, id, state) values (new.digest, new.task, new.id, new.state);
        return null;
    end $$;
    create trigger storm_insert after insert on {schema}.job for each row execute function storm();
    create trigger storm_update after update of state on {schema}.job for each row execute function storm();
    """
    READ = """
    select digest, task, id::text, state, by::text from storm where digest is not null
    order by pg_xact_commit_timestamp(xmin), number
    """

    def __init__(self, url: str) -> None:
        self._address = url.partition("?")[0]
        self._schema = parse_qs(urlsplit(url).query)["schema"][0]
        self._policies: list[str] = []

    async def watch(self, policies: Iterable[str]) -> None:
        self._policies = list(policies)
        self._run(self.SETUP.format(schema=self._schema))

    async def violations(self) -> list[str]:
        found: list[str] = []
        states: defaultdict[bytes, dict[str, str]] = defaultdict(dict)
        for _, changes in groupby(self._run(self.READ), key=lambda row: row[4]):
            touched: dict[bytes, str] = {}
            for digest, task, id, state, _ in changes:
                states[digest][id] = state
                touched[digest] = task.rpartition(".")[2]
            for digest, policy in touched.items():
                found += self._look(policy, states[digest])
        return found[:5]

    def _look(self, policy: str, states: dict[str, str]) -> Iterable[str]:
        counts = Counter(states.values())
        for what, some in rules(policy) if policy in self._policies else ():
            if sum(counts[state] for state in some) > 1:
                yield f"{what}: { ({id: state for id, state in states.items() if state in some}) }"

    async def jobs(self) -> list[Stored]:
        rows = self._run(
            f"select replace(id::text, '-', ''), task, state, attempt, items from {self._schema}.job"
        )
        return [Stored(*row) for row in rows]

    def _run(self, statement: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._address, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

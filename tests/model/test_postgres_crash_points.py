"""Operations of the PostgreSQL store, with each of their statements failing in turn: nothing is half done; see
test_crash_points. What a lost connection does is in test_postgres_replies.

Left out of what is held against the model are ends of which the first statement commits by itself, and leaves a note of the
rest or a claim that is still to come: their ways are those of test_postgres_interleavings_of_ends. They are among the chains
below, which need only end well, and in test_postgres_lost_lines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, LiteralString, cast

import asyncpg
import psycopg
import pytest
import test_chain_crash_points as chained
import test_crash_points as plain
import test_schedule_crash_points as scheduled
from cutting import Watched
from pair import Pair
from psycopg.rows import dict_row
from schedule_pair import SchedulePair
from servers.schemas import Schema, Schemas
from test_chain_crash_points import Dump, Stage, nobody_is_stuck, states
from test_crash_points import MakePair, fail_anywhere, loop  # noqa: F401 - a fixture

from onejob.core.errors import StoreFull
from onejob.store import JobStore
from onejob.stores import open_store
from onejob.stores.postgres.driver import Link
from onejob.testing.clock import FakeClock

OPERATIONS = (
    "enqueue: a batch",
    "enqueue: an update",
    "enqueue: a collected item",
    "enqueue: a cancelled running holder",
    "enqueue: a follower",
    "enqueue: other limits for a lane",
    "enqueue: a cancelled head of a lane",
    "claim: waiting, delayed and expired jobs",
    "claim: a lane whose window opens",
    "claim: within the limits of a queue",
    "settle: a remembered completion",
    "settle: a rescue in a lane",
    "settle: a slot that is kept",
    "settle: a dead letter",
    "amend: a revoked follower",
    "amend: a kept slot that gets free",
    "amend: an original that is made again",
    "amend: a deleted holder",
    "release",
    "prune",
    "set_queue",
    "leave",
)
BEHIND_A_COMMIT = (
    "settle: a completion with a follower",
    "settle: a failure with a follower",
    "settle: a hand-back and the next claim",
    "settle: a flagged job",
    "settle: a slot for the next claim",
    "settle: a slot of several",
)
"""What is left of these once their first statement has committed is done later, by them or by any claim."""
ONE_STATEMENT = ("beat",)
LONG = [name for name in plain.OPERATIONS if name not in (*OPERATIONS, *BEHIND_A_COMMIT, *ONE_STATEMENT)]
SCHEDULES = (
    "put_schedules: another timing, and one who comes too late",
    "fire: several, in a lane",
    "fire: a cancelled holder",
    "fire: one that fired already, and one that did not",
)
LONG_SCHEDULES = [name for name in scheduled.OPERATIONS if name not in SCHEDULES]
CHAINS = (
    "a chain goes on with a job that is stranded, and so is who waits for it",
    "a transaction completes a job, goes on with one that waits, and writes a row",
    "a chain that others wait for is revoked",
)
LONG_CHAINS = [name for name in chained.OPERATIONS if name not in CHAINS]
AFTER_A_COMMIT = (
    "both sides of a diamond end at once",
    "a chain ends and lets go of who waits and who follows",
    "a chain fails and strands a line",
)
"""Chains whose ends leave a note, and commit, before they look who waits."""


@pytest.fixture(autouse=True)
def watched_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at each statement before it is sent."""
    fetch, execute = Link.fetch, Link.execute

    async def fetch_seen(link: Link, name: str, parameters: tuple[Any, ...]) -> Any:
        _see(name)
        return await fetch(link, name, parameters)

    async def execute_seen(link: Link, text: str) -> str:
        _see(text)
        return await execute(link, text)

    monkeypatch.setattr(Link, "fetch", fetch_seen)
    monkeypatch.setattr(Link, "execute", execute_seen)


def _see(statement: str) -> None:
    """But for hints, which are given beside an operation and may get lost, and for what we ourselves look at."""
    if Watched.before_statement is not None and not statement.startswith(("signals.", "inspect.")):
        Watched.before_statement(statement)


def pairs(kind: type[Pair], schemas: Schemas, loop: asyncio.AbstractEventLoop) -> Iterator[MakePair]:  # noqa: F811
    schema = schemas.take()
    made: list[Pair] = []

    def make(name: str) -> Pair:
        def opened(clock: FakeClock) -> JobStore:
            return open_store(schema.url, clock=clock)

        made.append(kind(opened, loop))
        return made[-1]

    yield make
    for pair in made:
        pair.close()
    schemas.give_back(schema)


@pytest.fixture
def make_pair(postgres_schemas: Schemas, loop: asyncio.AbstractEventLoop) -> Iterator[MakePair]:  # noqa: F811
    yield from pairs(Pair, postgres_schemas, loop)


@pytest.fixture
def make_schedule_pair(
    postgres_schemas: Schemas,
    loop: asyncio.AbstractEventLoop,  # noqa: F811
) -> Iterator[MakePair]:
    yield from pairs(SchedulePair, postgres_schemas, loop)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_statement_that_fails_leaves_nothing_and_can_be_repeated(name: str, make_pair: MakePair) -> None:
    fail_anywhere(*plain.OPERATIONS[name], make_pair, asyncpg.DiskFullError)


@pytest.mark.parametrize("name", SCHEDULES)
def test_of_schedules_too(name: str, make_schedule_pair: MakePair) -> None:
    prepare, operate = scheduled.OPERATIONS[name]
    fail_anywhere([plain.beat, *prepare], operate, make_schedule_pair, asyncpg.DiskFullError)


@pytest.mark.torture
@pytest.mark.parametrize("name", LONG)
def test_nor_do_those_of_the_others(name: str, make_pair: MakePair) -> None:
    fail_anywhere(*plain.OPERATIONS[name], make_pair, asyncpg.DiskFullError)


@pytest.mark.torture
@pytest.mark.parametrize("name", LONG_SCHEDULES)
def test_of_all_schedules(name: str, make_schedule_pair: MakePair) -> None:
    prepare, operate = scheduled.OPERATIONS[name]
    fail_anywhere([plain.beat, *prepare], operate, make_schedule_pair, asyncpg.DiskFullError)


@dataclass
class Yard:
    """A store with chains, and a table of the user's."""

    schema: Schema
    stage: Stage

    def dump(self) -> Dump:
        """Everything that is on record, as test_chain_crash_points has it of SQLite."""
        with psycopg.connect(self.schema.url.partition("?")[0], row_factory=dict_row) as connection:

            def rows(table: str) -> list[dict[str, Any]]:
                return connection.execute(cast("LiteralString", f"select * from {table}")).fetchall()

            ours = ("job", "key", "blocker", "lane", "worker")
            seen = {f"onejob_{table}": rows(f"{self.schema.name}.{table}") for table in ours}
            seen["orders"] = rows(f"{self.schema.user}.orders")
        for row in seen["onejob_job"]:
            row["id"] = row["id"].bytes
            row["chain"] = row["chain"] and row["chain"].bytes
        return {table: sorted(found, key=repr) for table, found in seen.items()}


@pytest.fixture
def yard(postgres_schemas: Schemas, loop: asyncio.AbstractEventLoop) -> Iterator[Yard]:  # noqa: F811
    schema = postgres_schemas.take()
    with psycopg.connect(schema.url.partition("?")[0], autocommit=True) as connection:
        connection.execute(cast("LiteralString", f"create table {schema.user}.orders (number integer)"))
    clock = FakeClock()
    stage = Stage(open_store(schema.url, clock=clock), clock)
    yield Yard(schema, stage)
    loop.run_until_complete(stage.store.close())
    postgres_schemas.give_back(schema)


@pytest.mark.parametrize("name", CHAINS)
def test_of_chains_too(name: str, loop: asyncio.AbstractEventLoop, yard: Yard) -> None:  # noqa: F811
    fail_in_chains(name, loop, yard)


@pytest.mark.torture
@pytest.mark.parametrize("name", LONG_CHAINS)
def test_of_all_chains(name: str, loop: asyncio.AbstractEventLoop, yard: Yard) -> None:  # noqa: F811
    fail_in_chains(name, loop, yard)


def fail_in_chains(name: str, loop: asyncio.AbstractEventLoop, yard: Yard) -> None:  # noqa: F811
    """As `fail_anywhere`, with all that is on record in place of a model."""
    operation, stage = chained.OPERATIONS[name], yard.stage
    loop.run_until_complete(operation.prepare(stage))
    before = yard.dump()
    failing, fired, counted, answer = 0, True, False, None
    while fired:
        failing += 1
        seen, fired = 0, False

        def fail(_: str, at: int = failing) -> None:
            nonlocal seen, fired
            seen += 1
            if seen == at:
                fired = True
                raise asyncpg.DiskFullError("injected: disk full")

        Watched.before_statement = fail
        try:
            answer = loop.run_until_complete(operation.operate(stage))
        except (
            StoreFull,
            asyncpg.DiskFullError,
        ):  # as the server says it, if it is about a savepoint of a user's
            assert fired
        Watched.before_statement = None
        if fired:
            counted = counted or yard.dump() != before
            assert not counted or name in AFTER_A_COMMIT, f"statement {failing} failed, and something counted"
    assert failing > 3, "an operation begins, writes and commits"
    assert answer == (operation.again if counted else operation.first)
    if not counted:
        assert states(yard.dump()) == operation.states
    loop.run_until_complete(stage.drain())
    nobody_is_stuck(yard.dump())
    assert counted == (name in AFTER_A_COMMIT)

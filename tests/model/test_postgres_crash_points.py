"""Operations of the PostgreSQL store, with each of their statements failing in turn: nothing is half done; see
test_crash_points. What a lost connection does is in test_postgres_replies.

Left out are ends with somebody who waits for them: there the first statement commits by itself and leaves a note of the rest,
whose ways are those of test_postgres_interleavings_of_ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest
import test_crash_points as plain
import test_schedule_crash_points as scheduled
from cutting import Watched
from pair import Pair
from schedule_pair import SchedulePair
from servers.schemas import Schemas
from test_crash_points import MakePair, fail_anywhere, loop  # noqa: F401 - a fixture

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
SCHEDULES = (
    "put_schedules: another timing, and one who comes too late",
    "fire: several, in a lane",
    "fire: a cancelled holder",
    "fire: one that fired already, and one that did not",
)


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
    if Watched.before_statement is not None:
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

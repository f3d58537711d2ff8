"""Operations of the PostgreSQL store whose session is ended before or after each of their statements in turn, at home and on
a worker's own line: the call goes through all the same, and everything stands as if nothing had happened.

Who changes a record and does not hear the answer is told how it stands by then, which is another answer: those calls lose
their session only before a statement. Who enqueues and does not hear is told of the job, but no longer in what it differed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Literal

import pytest
import test_crash_points as plain
import test_schedule_crash_points as scheduled
from dying import Cut, Death
from pair import Pair
from schedule_pair import SchedulePair
from servers.schemas import Schemas
from sights import same
from test_crash_points import loop  # noqa: F401 - a fixture

from onejob.core.judge import Answer
from onejob.core.lifecycle import Settlement
from onejob.store import Ask, Claims, JobStore, SettleReply
from onejob.stores.postgres.store import PostgresStore
from onejob.testing.clock import FakeClock
from onejob.testing.records import Reply

Line = Literal["home", "near"]
CUTS: tuple[Cut, ...] = ("before", "after")
TOLD_HOW_IT_STANDS = ("amend", "release", "put_schedules", "drop_schedule", "fire")
LEFT_TO_A_CLAIM = ("settle: a failure with a follower", "settle: a flagged job")
"""Who waits for these ends may be let go by the next claim, of any queue, for which a note was left; here nobody claims."""
STARTED_AGAIN = ("settle: a hand-back and the next claim",)
"""Who hands a job back and gets the same job again, without hearing of either, is told that the first lease was lost."""
SOME = ("enqueue: a follower",)
OPERATIONS = [name for name in plain.OPERATIONS if name not in (*LEFT_TO_A_CLAIM, *STARTED_AGAIN)]
EXCHANGES = [name for name in OPERATIONS if name.startswith(("settle", "claim"))]
SOME_EXCHANGES = ("settle: a slot for the next claim",)


class Near(PostgresStore):
    """Claims and settles as a worker does."""

    async def claim(self, ask: Ask, *, now: int | None = None) -> Claims:
        return (await self.settle([], ask, now=now)).claims

    async def settle(
        self, done: Sequence[Settlement], ask: Ask | None = None, *, now: int | None = None
    ) -> SettleReply:
        async with self.at_hand():
            return await super().settle(done, ask, now=now)


STORES: dict[Line, type[PostgresStore]] = {"home": PostgresStore, "near": Near}


class Doomed(Pair):
    """A pair that looks at what became of an operation in peace."""

    fate: Death

    def check(self) -> None:
        self.fate.disarm()
        super().check()

    def _compare_next_due(self, claims: Claims, ask: tuple[str, tuple[str, ...], int]) -> None:
        """Who is told what it had started before, is told to come again at once: there may be more."""
        if self.fate.fired and claims.next_due == 0:
            self.next_due = 0
        else:
            super()._compare_next_due(claims, ask)


class DoomedSchedules(Doomed, SchedulePair):
    """The same with schedules."""


def names_the_job(answer: Answer, reply: Reply) -> None:
    same("answer", (answer.id, answer.outcome.value), (reply.id, reply.outcome))


Play = Callable[[type[Doomed], Line, str, list[Any], Any], None]


@pytest.fixture
def survives(
    postgres_schemas: Schemas,
    loop: asyncio.AbstractEventLoop,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> Play:
    """Plays an operation again and again, until no statement of it is left at which a session could end."""

    def play(kind: type[Doomed], line: Line, name: str, prepare: list[Any], operate: Any) -> None:
        for cut in CUTS[: 1 if name.startswith(TOLD_HOW_IT_STANDS) else 2]:
            number = 1
            while once(kind, line, prepare, operate, cut, number):
                number += 1
            assert number > 1, "there was a statement"

    def once(kind: type[Doomed], line: Line, prepare: list[Any], operate: Any, cut: Cut, number: int) -> bool:
        schema = postgres_schemas.take()
        with monkeypatch.context() as patch, closing(Death(schema.url, patch)) as fate:

            def opened(clock: FakeClock) -> JobStore:
                return STORES[line](schema.url, clock=clock)

            with closing(kind(opened, loop)) as pair:
                pair.fate = fate
                for step in prepare:
                    step(pair)
                if cut == "after":
                    patch.setattr("pair.compare_answer", names_the_job)
                fate.at(number, cut)
                operate(pair)
                pair.check()
                pair.check_leases()
                if not fate.fired:
                    pair.drain()
        postgres_schemas.give_back(schema)
        return fate.fired

    return play


@pytest.mark.parametrize("name", SOME)
def test_a_session_that_ends_is_not_noticed(name: str, survives: Play) -> None:
    survives(Doomed, "home", name, *plain.OPERATIONS[name])


@pytest.mark.parametrize("name", SOME_EXCHANGES)
def test_nor_is_that_of_a_workers_own_line(name: str, survives: Play) -> None:
    survives(Doomed, "near", name, *plain.OPERATIONS[name])


@pytest.mark.torture
@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in SOME])
def test_of_all_operations(name: str, survives: Play) -> None:
    survives(Doomed, "home", name, *plain.OPERATIONS[name])


@pytest.mark.torture
@pytest.mark.parametrize("name", [name for name in EXCHANGES if name not in SOME_EXCHANGES])
def test_of_all_on_a_workers_own_line(name: str, survives: Play) -> None:
    survives(Doomed, "near", name, *plain.OPERATIONS[name])


@pytest.mark.torture
@pytest.mark.parametrize("name", scheduled.OPERATIONS)
def test_of_schedules(name: str, survives: Play) -> None:
    prepare, operate = scheduled.OPERATIONS[name]
    survives(DoomedSchedules, "home", name, [plain.beat, *prepare], operate)

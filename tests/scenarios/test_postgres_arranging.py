"""Most lanes are arranged by short ways: whatever stands in them, and whoever has some of it locked, the long way does the same."""

from __future__ import annotations

import random
from typing import Any

import asyncpg
import pytest

from onejob.ids import new_id
from onejob.stores.postgres.address import parse
from onejob.stores.postgres.statements import in_schema, sql

pytestmark = pytest.mark.timeout(60)
LANES = 150
SHORT = {
    "coalesce(first.place, 0) < 2 as is_plain": "false as is_plain",
    "where s.is_wide": "where false",
    "where not l.is_wide": "where true",
}
"""What takes lanes to the short ways, and what keeps them from it."""
STANDINGS = [
    *[("parked", 1)] * 4,
    ("waiting", 2),
    ("running", 2),
    ("parked", 3),
    ("waiting", 3),
    ("delayed", 0),
]
"""How jobs of lanes may stand: state and place."""
_JOB = """
insert into onejob.job (
    id, queue, task, state, priority, due, accepted, updated, since, max_crashes, payload, lane, place
)
select id, 'q', 't', state, priority, due, 0, 0, 0, 3, '', lane, place
from unnest($1::uuid[], $2::text[], $3::integer[], $4::bigint[], $5::text[], $6::smallint[])
    as g (id, state, priority, due, lane, place)
"""
_STANDING = """
select j.id, j.state, j.place from onejob.job j order by j.id;
select l.key from onejob.lane l order by l.key;
select t.lane from onejob.touch t order by t.lane
"""


class Lane:
    """One with random contents."""

    def __init__(self, chance: random.Random, number: int) -> None:
        self.key = f"lane {number}"
        self.concurrency = chance.choice([1, 1, 2, 3])
        self.rate = chance.choice([None, None, None, 2])
        kinds = chance.choice([STANDINGS, STANDINGS[:6], [("parked", 1)], STANDINGS[:5]])
        self.jobs = [
            (new_id(), state, chance.randrange(3), chance.randrange(3), self.key, place)
            for state, place in chance.choices(kinds, k=chance.randrange(6))
        ]
        self.starts = chance.randrange(3) if self.rate is not None else 0


@pytest.mark.parametrize("seed", range(4))
async def test_the_short_ways_let_in_whom_the_long_one_does(postgres_url: str, seed: int) -> None:
    chance = random.Random(seed)
    lanes = [Lane(chance, number) for number in range(LANES)]
    address = parse(postgres_url)
    ours, others = [await asyncpg.connect(**address.arguments) for _ in range(2)]

    def text(statement: str) -> str:
        return in_schema(statement, address.schema)

    async def arranged(statement: str) -> list[Any]:
        transaction = ours.transaction()
        await transaction.start()
        columns = [[getattr(lane, name) for lane in lanes] for name in ("key", "concurrency", "rate")]
        looks = [text(look) for look in _STANDING.split(";")]
        found = [await ours.fetch(statement, ["q"] * LANES, *columns)]
        found += [await ours.fetch(look) for look in looks]
        await transaction.rollback()
        return found

    try:
        jobs = [job for lane in lanes for job in lane.jobs]
        await ours.execute(text(_JOB), *map(list, zip(*jobs, strict=True)))
        for lane in lanes:
            await ours.execute(
                text(
                    "insert into onejob.lane (queue, key, concurrency, rate_max, hold) values ('q', $1, $2, $3, false)"
                ),
                lane.key,
                lane.concurrency,
                lane.rate,
            )
            for _ in range(lane.starts):
                await ours.execute(
                    text(
                        "insert into onejob.start (queue, lane, at, job, lease) values ('q', $1, 1, $2, '')"
                    ),
                    lane.key,
                    new_id(),
                )
        locked = chance.sample([job[0] for job in jobs], len(jobs) // 8)
        async with others.transaction():
            await others.fetch(text("select from onejob.job where id = any($1::uuid[]) for update"), locked)
            short = sql("lanes.arrange", address.schema)
            long = short
            for usual, instead in SHORT.items():
                assert usual in long
                long = long.replace(usual, instead)
            assert await arranged(short) == await arranged(long)
    finally:
        await ours.close()
        await others.close()

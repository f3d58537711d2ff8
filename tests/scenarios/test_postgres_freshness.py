"""Freshness under fire: users' transactions of every driver change a row and enqueue; a run that starts later must see it.

Keys are many and short-lived, so that no later call hides what an earlier one lost.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import Any

import asyncpg
import pytest
from connection_kinds import KINDS

from onejob import App, Unique
from onejob.stores.postgres import joined
from onejob.stores.postgres.work import Work
from onejob.tasks import Sender

POLICIES = {
    "coalesce": Unique.coalesce(by="key"),
    "latest": Unique.latest(by="key"),
    "debounce": Unique.debounce(0.05, by="key", max_wait=0.3),
}
KEYS_PER_SECOND = 20
PATIENCE = 30.0


class Storm:
    """Producers, one for each kind of connection, two workers, and what their handlers have seen."""

    def __init__(self, url: str) -> None:
        self._server = url.partition("?")[0]
        self._app = App(url)
        self._reader: Any = None
        self._seen: Counter[str] = Counter()
        self._running: Counter[str] = Counter()
        self.overlaps = 0
        self.outcomes: Counter[str] = Counter()
        self._tasks: dict[str, Sender[[str], None]] = {
            name: self._app.task(name=name, unique=policy)(self._handler(name))
            for name, policy in POLICIES.items()
        }

    def _handler(self, name: str) -> Any:
        async def handler(key: str) -> None:
            subject = f"{name}/{key}"
            self._running[subject] += 1
            self.overlaps += self._running[subject] > 1
            seen = await self._reader.fetchval("select count(*) from change where subject = $1", subject)
            await asyncio.sleep(random.random() * 0.02)
            self._seen[subject] = max(self._seen[subject], seen)
            self._running[subject] -= 1

        return handler

    @property
    def _folded(self) -> bool:
        """Some calls have found a job that took them in."""
        return self.outcomes.total() > self.outcomes["created"]

    async def _produce(self, kind: str, until: float) -> None:
        async with KINDS[kind](self._server) as hand:
            while time.monotonic() < until or not self._folded:
                name, key = random.choice(list(POLICIES)), str(int(time.monotonic() * KEYS_PER_SECOND))
                await hand.begin()
                await hand.execute(f"insert into change values ('{name}/{key}')")
                receipt = await hand.enqueue(self._tasks[name], key)
                await asyncio.sleep(random.random() * 0.03)
                if random.random() < 0.3:
                    await hand.rollback()
                    continue
                await hand.commit()
                self.outcomes[receipt.outcome] += 1

    async def run(self, seconds: float) -> int:
        """How many subjects have changes that no run has seen."""
        async with self._app, asyncpg.create_pool(self._server, max_size=20) as self._reader:
            await self._reader.execute("create table change (subject text)")
            until = time.monotonic() + seconds
            async with self._app.worker(concurrency=6), self._app.worker(concurrency=6):
                await asyncio.gather(*(self._produce(kind, until) for kind in KINDS))
                async with asyncio.timeout(PATIENCE):
                    while await self._app.acount("state:live"):  # noqa: ASYNC110 - whoever ends last
                        await asyncio.sleep(0.05)
            rows = await self._reader.fetch("select subject, count(*) from change group by subject")
            return sum(self._seen[subject] < count for subject, count in rows)


async def test_every_committed_change_is_seen_by_a_run(postgres_url: str) -> None:
    storm = Storm(postgres_url)
    assert await storm.run(2.5) == 0
    assert storm.overlaps == 0


@pytest.mark.torture
async def test_without_pins_some_are_lost(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(now: int | None, *, foreign: bool) -> Work:
        return Work(now)

    monkeypatch.setattr(joined, "Work", careless)
    assert await Storm(postgres_url).run(12) > 0

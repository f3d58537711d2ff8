"""Which slots of which schedules must become jobs on a journey through time, worked out without a look at onejob.

Cron slots come from `wall_clock`, which looks at the clock every minute; those of intervals from counting. What was
spent is read off the store, and held against that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from stored import is_postgres, is_valkey, table
from wall_clock import due, looks

from onejob.core.filter import JobFilter
from onejob.core.job import Job
from onejob.store import Amendment, JobStore

LATE = 60_000
"""Who lets missed slots go does so from then on."""
LEAD = 4 * 24 * 3_600_000
"""Every pattern of the storm is due more often than that."""
SQLITE_RECORD = (
    """create table storm_spent (
        number integer primary key, schedule text, slot integer, job text, revision integer)""",
    """create trigger storm_spends after update of fired on onejob_schedule when new.fired > old.fired begin
        insert into storm_spent (schedule, slot, job, revision)
        values (new.id, new.last, lower(hex(new.job)), new.revision);
    end""",
    "create table storm_made (job text)",
    """create trigger storm_makes after insert on onejob_job begin
        insert into storm_made values (lower(hex(new.id)));
    end""",
)
POSTGRES_RECORD = (
    """create table storm_spent (
        number bigint generated always as identity, schedule text, slot bigint, job text, revision bigint)""",
    """create function storm_spends() returns trigger language plpgsql as $$ begin
        insert into storm_spent (schedule, slot, job, revision)
        values (new.id, new.last, replace(new.job::text, '-', ''), new.revision);
        return null;
    end $$""",
    """create trigger storm_spends after update of fired on {schedule} for each row when (new.fired > old.fired)
        execute function storm_spends()""",
    "create table storm_made (job text)",
    """create function storm_makes() returns trigger language plpgsql as $$ begin
        insert into storm_made values (replace(new.id::text, '-', ''));
        return null;
    end $$""",
    "create trigger storm_makes after insert on {job} for each row execute function storm_makes()",
)
READ_SPENT = "select schedule, slot, job from storm_spent order by number"
READ_MADE = "select job from storm_made"


Spent = list[tuple[str, int, str]]
"""The schedule, the slot and the job, in the order in which that came about."""


class Ledger(Protocol):
    """What a store has done, as it is seen there."""

    async def open(self) -> None:
        """From now on it is written down."""

    async def forget_jobs(self) -> None:
        """As if all had run and were pruned."""

    async def read(self) -> tuple[Spent, list[str]]:
        """What was spent, and all jobs that were made."""
        ...


def ledger_of(store: JobStore, url: str) -> Ledger:
    return ReadLedger(store) if is_valkey(url) else WrittenLedger(store, url)


class WrittenLedger:
    """Triggers in the database write down every single change."""

    def __init__(self, store: JobStore, url: str) -> None:
        self._store, self._url = store, url

    async def open(self) -> None:
        names = {"schedule": table(self._url, "schedule"), "job": table(self._url, "job")}
        postgres = is_postgres(self._url)
        async with self._store.transaction(60) as tx:
            for statement in POSTGRES_RECORD if postgres else SQLITE_RECORD:
                await tx.execute(statement.format(**names) if postgres else statement)

    async def forget_jobs(self) -> None:
        async with self._store.transaction(60) as tx:
            await tx.execute(f"delete from {table(self._url, 'job')}")

    async def read(self) -> tuple[Spent, list[str]]:
        async with self._store.transaction(60) as tx:
            spent = [(schedule, slot, job) for schedule, slot, job in await tx.execute(READ_SPENT)]
            return spent, [job for (job,) in await tx.execute(READ_MADE)]


class ReadLedger:
    """Where nothing can be written down beside, the jobs themselves are, before they are forgotten; and the schedules, which
    count how often they fired. A slot that is spent twice between two readings is one job, and counts twice.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._spent: Spent = []
        self._fired = self._unseen = 0

    async def open(self) -> None:
        pass

    async def forget_jobs(self) -> None:
        jobs, cursor = list[Job](), None
        while True:
            page = await self._store.jobs(JobFilter(), 1_000, cursor)
            jobs += page.jobs
            if (cursor := page.cursor) is None:
                break
        new = [(*_source(job), job.id) for job in jobs]
        self._spent += sorted(new)
        for start in range(0, len(jobs), 500):
            await self._store.amend([job.id for job in jobs[start : start + 500]], Amendment.DELETE)
        fired = sum(found.fired for found in await self._store.schedules())
        self._unseen += abs(fired - self._fired - len(new))
        self._fired = fired

    async def read(self) -> tuple[Spent, list[str]]:
        await self.forget_jobs()
        made = [job for _, _, job in self._spent]
        return self._spent, made + [
            "a job that a schedule counted and nobody saw, or the other way round"
        ] * self._unseen


def _source(job: Job) -> tuple[str, int]:
    made_by = msgspec.json.decode(job.options or b"")
    return made_by["schedule"], made_by["slot"]


@dataclass(frozen=True)
class Plan:
    """A schedule of the storm: a pattern in a zone, or every so many milliseconds."""

    id: str
    pattern: str = ""
    tz: str = "UTC"
    every: int = 0
    lets_go: bool = False


@dataclass(frozen=True)
class Step:
    """What the clock shows while all tick: one instant, or a first and then, while they are at it, another."""

    instant: int
    then: int | None = None


@dataclass
class Verdict:
    """What is wrong with what was spent, and how much there was to get wrong."""

    violations: list[str] = field(default_factory=list)
    must: int = 0
    may: int = 0
    spent: int = 0


class Almanac:
    """All slots of some plans during some spans of time."""

    def __init__(self, plans: Iterable[Plan], put: int, spans: Sequence[tuple[int, int]]) -> None:
        self.plans, self._put = list(plans), put
        seen = {
            tz: [look for start, end in spans for look in looks(tz, start - LEAD, end)]
            for tz in {plan.tz for plan in self.plans if plan.pattern}
        }
        wanted = {(plan.pattern, plan.tz) for plan in self.plans if plan.pattern}
        self._slots = {(pattern, tz): due(pattern, seen[tz]) for pattern, tz in wanted}

    def last(self, plan: Plan, after: int, until: int) -> int | None:
        """The last slot after one instant and up to another."""
        if plan.every:
            count = (until - self._put) // plan.every
            slot = self._put + count * plan.every if count > 0 else None
        else:
            slots = self._slots[plan.pattern, plan.tz]
            place = bisect_right(slots, until)
            slot = slots[place - 1] if place else None
        return slot if slot is not None and slot > after else None

    def expected(self, plan: Plan, steps: Iterable[Step]) -> tuple[list[int], set[int]]:
        """The slots that must become jobs, in order, and those that may."""
        must, may = list[int](), set[int]()
        seen = self._put
        for step in steps:
            earlier, instant = sorted((step.instant, step.instant if step.then is None else step.then))
            if earlier < instant:  # who was quick saw it, and who was slow did not
                early = self.last(plan, seen, earlier)
                if early is not None and not missed(plan, early, earlier):
                    may.add(early)
            slot = self.last(plan, seen, instant)
            if slot is not None and not missed(plan, slot, instant):
                must.append(slot)
            seen = max(seen, instant)
        return must, may - set(must)

    def judge(self, steps: list[Step], spent: list[tuple[str, int, str]], made: list[str]) -> Verdict:
        """Each slot that must become a job did, once, and no other did."""
        verdict = Verdict(spent=len(spent))
        for plan in self.plans:
            must, may = self.expected(plan, steps)
            mine = [slot for id, slot, _ in spent if id == plan.id]
            verdict.must, verdict.may = verdict.must + len(must), verdict.may + len(may)
            twice = [slot for slot, times in Counter(mine).items() if times > 1]
            wrong = {
                "spent twice": twice,
                "spent, and no slot that was due": sorted(set(mine) - set(must) - may),
                "never spent": sorted(set(must) - set(mine)),
                "spent out of order": [] if twice or mine == sorted(mine) else mine,
            }
            verdict.violations += [f"{plan}: {slots} {what}" for what, slots in wrong.items() if slots]
        jobs = [job for _, _, job in spent]
        if sorted(jobs) != sorted(made):
            differing = (Counter(jobs) - Counter(made)) + (Counter(made) - Counter(jobs))
            verdict.violations.append(f"{len(differing)} jobs were not made once for one slot")
        return verdict


def missed(plan: Plan, slot: int, now: int) -> bool:
    """True if it is let go."""
    return plan.lets_go and now - slot >= LATE

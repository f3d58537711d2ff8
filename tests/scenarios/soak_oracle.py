"""What the users of a soak see in tables of their own, and what must never be seen there.

A run is a row while it lasts, and a unique index says that there is one per key, and one per slot of a lane. What was
acknowledged is in the producers' reports; what became of it, in the store.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
from soak_result import Result, created_twice, out_of_order

SETUP = """
create table soak_start (
    number bigint generated always as identity, job uuid, attempt integer, task text, lane text, primary key (job, attempt)
);
create table soak_running (name text, slot integer, job uuid, attempt integer);
create unique index soak_running_once on soak_running (name, slot);
create table soak_done (job uuid primary key, task text, value bigint);
create table soak_item (item bigint primary key, job uuid);
create table soak_change (subject text, number bigint);
create index soak_change_subject on soak_change (subject);
create table soak_seen (subject text, changes bigint);
create table soak_violation (what text, detail text);

-- A run begins. One that lost its lease before it could say so is none; a second run of the same job takes its place.
create function soak_enter(run_job uuid, run_attempt integer, run_task text, subject text, run_lane text, slots integer)
returns bigint language plpgsql as $$
declare
    free integer := 0;
    taken boolean := false;
begin
    if not exists (select from SCHEMA.job where id = run_job and attempt = run_attempt and state = 'running') then
        return null;
    end if;
    insert into soak_start (job, attempt, task, lane) values (run_job, run_attempt, run_task, run_lane)
    on conflict do nothing;
    if subject is not null then
        insert into soak_running as r values (subject, 1, run_job, run_attempt)
        on conflict (name, slot) do update set attempt = run_attempt where r.job = run_job;
        if not found then
            insert into soak_violation values ('overlap', subject || ' ' || run_job);
        end if;
    end if;
    if run_lane is not null then
        update soak_running set attempt = run_attempt where name = 'lane/' || run_lane and job = run_job;
        taken := found;
        while not taken and free < slots loop
            free := free + 1;
            insert into soak_running values ('lane/' || run_lane, free, run_job, run_attempt) on conflict do nothing;
            taken := found;
        end loop;
        if not taken then
            insert into soak_violation values ('slot', run_lane || ' ' || run_job);
        end if;
    end if;
    return (select count(*) from soak_change c where c.subject = soak_enter.subject);
end $$;

-- A run ends, just before its job does.
create function soak_leave(run_job uuid, run_attempt integer, subject text, changes bigint)
returns void language plpgsql as $$
begin
    delete from soak_running where job = run_job and attempt = run_attempt;
    if subject is not null then
        insert into soak_seen values (subject, changes);
    end if;
end $$;

-- A job ends in the same commit.
create function soak_done(run_job uuid, run_task text, value bigint, items bigint[])
returns void language plpgsql as $$
begin
    insert into soak_done values (run_job, run_task, value) on conflict do nothing;
    if not found then
        insert into soak_violation values ('doubled', run_task || ' ' || run_job);
    end if;
    insert into soak_violation
    select 'doubled', 'item ' || i.item from soak_item i where i.item = any(items);
    insert into soak_item select item, run_job from unnest(items) as i (item) on conflict do nothing;
end $$;

-- A job starts that was to wait for others.
create function soak_joined(run_job uuid, blockers uuid[])
returns void language plpgsql as $$
begin
    if (select count(*) from soak_done d where d.job = any(blockers)) < cardinality(blockers) then
        insert into soak_violation values ('early', run_job::text);
    end if;
end $$;
"""
LEAKS = {
    "blocked": "select count(*) from SCHEMA.job where state = 'blocked'",
    "flag": "select count(*) from SCHEMA.flag",
    "recheck": "select count(*) from SCHEMA.recheck",
    "touch": "select count(*) from SCHEMA.touch",
    "key of nobody": """
        select count(*) from SCHEMA.key k
        where not exists (select from SCHEMA.job j where j.id = k.holder) and k.forget_at is null
        """,
    "blocker": "select count(*) from SCHEMA.blocker where live",
    "slot": "select count(*) from SCHEMA.job where ended is not null and place is not null",
}
LEFT_OVER = ("job", "key", "lane", "blocker", "flag", "recheck", "touch", "start")
"""Tables that are empty once everything that ended is pruned."""
ENDED_WELL = {"restart": ("completed", "revoked")}


@dataclass
class PostgresResult(Result):
    """What became of a soak."""

    reruns: int = 0
    """Runs beyond a job's own failures: after a lost lease, at least once is what is promised."""


class Oracle:
    """Looks at one database."""

    def __init__(self, url: str) -> None:
        self._address = url.partition("?")[0]
        self._schema = parse_qs(urlsplit(url).query).get("schema", ["onejob"])[0]

    def set_up(self) -> None:
        self.run(SETUP)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._address, autocommit=True) as connection:
            cursor = connection.execute(statement.replace("SCHEMA", self._schema).encode())
            return cursor.fetchall() if cursor.description else []

    def leaks(self) -> list[str]:
        """What should not be there once everything has ended and workers have looked."""
        found = ((name, self.run(statement)[0][0]) for name, statement in LEAKS.items())
        return [f"{name}: {count}" for name, count in found if count]

    def left_over(self) -> list[str]:
        """What should not be there once everything has been pruned."""
        found = ((name, self.run(f"select count(*) from SCHEMA.{name}")[0][0]) for name in LEFT_OVER)
        return [f"{name} after prune: {count}" for name, count in found if count]

    def judge(self, reports: Iterable[Path], *, at_least_once: bool) -> PostgresResult:
        """Hold what was acknowledged against what is on record."""
        told = [json.loads(report.read_text()) for report in reports]
        calls = [call for one in told for call in one["acknowledged"]]
        jobs = {
            str(id): (task.rpartition(".")[2], state, attempt, failures, str(chain))
            for id, task, state, attempt, failures, chain in self.run(
                "select id, task, state, attempt, failures, coalesce(chain, id) from SCHEMA.job"
            )
        }
        done = {str(job): (task, value) for job, task, value in self.run("select * from soak_done")}
        starts = [
            (str(job), lane) for job, lane in self.run("select job, lane from soak_start order by number")
        ]
        result = PostgresResult(sum(one["attempted"] for one in told), len(calls), len(jobs), len(starts))
        result.lost = [
            *_lost(calls, jobs, done, {item for (item,) in self.run("select item from soak_item")})
        ]
        result.doubled = [*_doubled(calls, jobs, done, Counter(job for job, _ in starts), at_least_once)]
        result.reruns = sum(
            attempt - failures - 1 for _, state, attempt, failures, _ in jobs.values() if state == "completed"
        )
        times = {call["id"]: (call["began"], call["ended"]) for call in calls if call.get("lane")}
        result.order = [*out_of_order(times, [(job, lane or "") for job, lane in starts])]
        result.stale = [
            f"{subject}: {seen} of {changes}"
            for subject, changes, seen in self.run(
                """
                select c.subject, c.changes, coalesce(s.changes, 0)
                from (select subject, count(*) as changes from soak_change group by subject) c
                left join (select subject, max(changes) as changes from soak_seen group by subject) s using (subject)
                where c.changes > coalesce(s.changes, 0)
                """
            )
        ]
        noted = {
            "doubled": result.doubled,
            "overlap": result.overlaps,
            "slot": result.slots,
            "early": result.early,
        }
        for what, detail in self.run("select what, detail from soak_violation"):
            noted[what].append(detail)
        return result


Jobs = dict[str, tuple[str, str, int, int, str]]


def _lost(
    calls: list[dict[str, Any]], jobs: Jobs, done: dict[str, tuple[str, int]], items: set[int]
) -> Iterator[str]:
    links = Counter(chain for _, state, _, _, chain in jobs.values() if state == "completed")
    for call in calls:
        task, state = jobs.get(call["id"], ("?", "not on record"))[:2]
        if state not in ENDED_WELL.get(task, ("completed",)):
            yield f"{task} {call['id']} is {state}"
        if "item" in call and call["item"] not in items:
            yield f"item {call['item']}"
        if links[call["id"]] < call.get("links", 0):
            yield f"chain {call['id']} ended after {links[call['id']]}"
    always = {"in_flight", "throttle", "coalesce", "debounce", "collect", "ordered", "join"}
    for id, (task, state, *_) in jobs.items():
        if task in always and state == "completed" and id not in done:
            yield f"the row of {task} {id}"


def _doubled(
    calls: list[dict[str, Any]],
    jobs: Jobs,
    done: dict[str, tuple[str, int]],
    starts: Counter[str],
    at_least_once: bool,
) -> Iterator[str]:
    yield from created_twice(calls)
    yield from (f"{id} left a row and is not completed" for id in done if jobs[id][1] != "completed")
    by_value: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for id, (task, value) in done.items():
        by_value[task, value].append(id)
    for call in calls:
        task = jobs.get(call["id"], ("?",))[0]
        if call.get("alone") and len(by_value[task, call["value"]]) > 1:
            yield f"{task} {call['value']} became {by_value[task, call['value']]}"
    if not at_least_once:
        for id, (task, _, _, failures, _) in jobs.items():
            if starts[id] > failures + 1:
                yield f"{task} {id} ran {starts[id]} times and failed {failures}"

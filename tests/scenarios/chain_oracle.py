"""The oracle of the chain storm: triggers write down every change of a row with the commit it belongs to, and a replay
of that record judges how the store stood at each single commit.

It knows nothing of how the store decides: which chains have ended and who waits for whom is derived here anew, from
the record alone.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, groupby
from typing import Any

import apsw
from stored import is_postgres, table

from onejob import App
from onejob.core.job import State

_JOB = "'job', new.id, coalesce(new.chain, new.id), new.chain_index, new.state, new.follows, new.digest"

RECORD = f"""
create table storm_record (
    number integer primary key, by text, what text, job blob, chain blob, place integer, state text, follows blob,
    digest blob
);
create trigger storm_new_job after insert on onejob_job begin
    insert into storm_record (by, what, job, chain, place, state, follows, digest)
    values (storm_commit(), {_JOB});
end;
create trigger storm_job after update of state, follows, digest, chain, chain_index on onejob_job begin
    insert into storm_record (by, what, job, chain, place, state, follows, digest)
    values (storm_commit(), {_JOB});
end;
create trigger storm_no_job after delete on onejob_job begin
    insert into storm_record (by, what, job) values (storm_commit(), 'gone', old.id);
end;
create trigger storm_blocker after insert on onejob_blocker begin
    insert into storm_record (by, what, job, chain) values (storm_commit(), 'blocker', new.job, new.chain);
end;
"""

READ = "select by, what, job, chain, place, state, follows, digest from storm_record order by number"

_POSTGRES_JOB = """'job', uuid_send(new.id), uuid_send(coalesce(new.chain, new.id)), new.chain_index, new.state,
    uuid_send(new.follows), new.digest"""

POSTGRES_RECORD = (
    """create table storm_record (
        number bigint generated always as identity, by xid8 not null default pg_current_xact_id(), what text, job bytea,
        chain bytea, place integer, state text, follows bytea, digest bytea)""",
    f"""create function storm_job() returns trigger language plpgsql as $$ begin
        insert into storm_record (what, job, chain, place, state, follows, digest) values ({_POSTGRES_JOB});
        return null;
    end $$""",
    "create trigger storm_new_job after insert on {job} for each row execute function storm_job()",
    """create trigger storm_job after update of state, follows, digest, chain, chain_index on {job}
        for each row execute function storm_job()""",
    """create function storm_no_job() returns trigger language plpgsql as $$ begin
        insert into storm_record (what, job) values ('gone', uuid_send(old.id));
        return null;
    end $$""",
    "create trigger storm_no_job after delete on {job} for each row execute function storm_no_job()",
    """create function storm_blocker() returns trigger language plpgsql as $$ begin
        insert into storm_record (what, job, chain) values ('blocker', uuid_send(new.job), uuid_send(new.chain));
        return null;
    end $$""",
    "create trigger storm_blocker after insert on {blocker} for each row execute function storm_blocker()",
)
POSTGRES_READ = """
select by::text, what, job, chain, place, state, follows, digest
from storm_record order by pg_xact_commit_timestamp(xmin), by, number
"""
"""In the order of the commits, as everybody could see them; two may come in the same microsecond."""


async def record(app: App) -> None:
    """Have a store write everything down."""
    await app.store.open()
    async with app.transaction() as tx:
        for statement in POSTGRES_RECORD if is_postgres(app.url) else (RECORD,):
            names = {"job": table(app.url, "job"), "blocker": table(app.url, "blocker")}
            await tx.execute(statement.replace("{job}", names["job"]).replace("{blocker}", names["blocker"]))


async def judged(app: App) -> Oracle:
    """What is to be said of the record."""
    postgres = is_postgres(app.url)
    async with app.transaction(timeout=60) as tx:
        rows = await tx.execute(POSTGRES_READ if postgres else READ)
    return Oracle(lets_go_later=postgres).replay(rows)


def tell_commits(connection: apsw.Connection) -> None:
    """Let a connection say under which commit it writes; for `apsw.connection_hooks`."""
    commits = count(1)
    current = next(commits)
    name = f"{os.getpid()}-{id(connection)}"

    def committed() -> bool:
        nonlocal current
        current = next(commits)
        return False

    connection.create_scalar_function("storm_commit", lambda: f"{name}-{current}", 0)
    connection.set_commit_hook(committed, id="storm")


@contextmanager
def told_commits() -> Iterator[None]:
    """Stores that are opened inside the block can write where the triggers are."""
    apsw.connection_hooks.append(tell_commits)
    try:
        yield
    finally:
        apsw.connection_hooks.remove(tell_commits)


@dataclass
class Seen:
    """A job as the record shows it."""

    id: bytes
    chain: bytes
    place: int
    state: State
    follows: bytes | None
    blockers: list[bytes] = field(default_factory=list)


@dataclass
class Chain:
    """A chain as the record shows it: its jobs by place."""

    jobs: dict[int, Seen] = field(default_factory=dict)
    digest: bytes | None = None

    @property
    def ended(self) -> bool:
        """True if its last job has."""
        return self.jobs[max(self.jobs)].state.ended

    @property
    def runs(self) -> bool:
        """True from its first start to its end."""
        return not self.ended and (max(self.jobs) > 0 or self.jobs[0].state is State.RUNNING)


@dataclass
class Commit:
    """What one commit has done."""

    made: list[Seen] = field(default_factory=list)
    completed: set[bytes] = field(default_factory=set)
    started: list[Seen] = field(default_factory=list)
    touched: dict[bytes, None] = field(default_factory=dict)
    """The chains of all jobs that it wrote."""
    ended_before: set[bytes] = field(default_factory=set)
    """Of those, the ones that had ended."""


@dataclass
class Oracle:
    """Replays a record; `violations` says what must never have happened."""

    lets_go_later: bool = False
    """Who is let go need not be so in the very commit that ends what it waited for: somebody may have had its row."""
    jobs: dict[bytes, Seen] = field(default_factory=dict)
    chains: dict[bytes, Chain] = field(default_factory=dict)
    waiting: defaultdict[bytes, list[Seen]] = field(default_factory=lambda: defaultdict(list))
    """Who waits or waited for a chain."""
    keys: defaultdict[bytes, list[Chain]] = field(default_factory=lambda: defaultdict(list))
    violations: list[str] = field(default_factory=list)
    commits: int = 0
    released: int = 0
    """Jobs that were let go in the commit which ended the last chain that they waited for."""
    stranded: int = 0
    """Jobs that failed in the commit which ended such a chain."""

    def replay(self, record: Iterable[tuple[Any, ...]]) -> Oracle:
        for _, rows in groupby(record, key=lambda row: row[0]):
            self._judge(self._apply(rows))
            self.commits += 1
        return self

    def stuck(self) -> list[str]:
        """Chains that have not ended."""
        return [root.hex() for root, chain in self.chains.items() if not chain.ended]

    def _apply(self, rows: Iterable[tuple[Any, ...]]) -> Commit:
        commit = Commit()
        for _, what, id, root, *rest in rows:
            match what:
                case "job":
                    self._job(commit, id, root, *rest)
                case "blocker":
                    job = self.jobs[id]
                    job.blockers.append(root)
                    self.waiting[root].append(job)
                    commit.touched.setdefault(job.chain)
                case _:
                    self._say(self.jobs[id], "is gone")
        return commit

    def _job(self, commit: Commit, id: bytes, root: bytes, *rest: Any) -> None:
        place, state, follows, digest = rest
        chain, state = self.chains.setdefault(root, Chain()), State(state)
        if root not in commit.touched and chain.jobs and chain.ended:
            commit.ended_before.add(root)
        commit.touched.setdefault(root)
        job = self.jobs.get(id)
        if job is None:
            job = self.jobs[id] = Seen(id, root, place, state, follows)
            commit.made.append(job)
            if place in chain.jobs:
                self._say(job, f"is a second one at place {place} of its chain")
            chain.jobs[place] = job
        elif state is State.RUNNING and job.state is not State.RUNNING:
            commit.started.append(job)
        elif state is State.COMPLETED and job.state is not State.COMPLETED:
            commit.completed.add(id)
        if digest is not None and chain.digest is None:
            self.keys[digest].append(chain)
            chain.digest = digest
        job.state, job.follows = state, follows

    def _judge(self, commit: Commit) -> None:
        """How everything stands now that a commit is through."""
        for job in commit.made:
            self._look_at_origin(job, commit)
        for job in commit.started:
            self._look_at_start(job)
        for root in commit.touched:
            chain = self.chains[root]
            if root in commit.ended_before:
                self._say(chain.jobs[max(chain.jobs)], "goes on although its chain had ended")
            elif chain.ended:
                self._look_at_end(root)
            self._look_at_wait(chain.jobs[max(chain.jobs)])

    def _look_at_origin(self, job: Seen, commit: Commit) -> None:
        if job.place == 0:
            return
        before = self.chains[job.chain].jobs.get(job.place - 1)
        if before is None or before.id not in commit.completed:
            self._say(job, "was not made in the commit that completed the one before it")

    def _look_at_start(self, job: Seen) -> None:
        for root in job.blockers:
            if not self.chains[root].ended:
                self._say(job, f"started although chain {root.hex()}, for which it waits, had not ended")
        chain = self.chains[job.chain]
        if chain.digest is not None and sum(rival.runs for rival in self.keys[chain.digest]) > 1:
            self._say(job, "started although another chain of its key ran")

    def _look_at_end(self, root: bytes) -> None:
        for job in self.waiting[root]:
            self._look_at_wait(job)
            if job.state is State.FAILED:
                self.stranded += 1
            elif job.state is not State.BLOCKED:
                self.released += 1

    def _look_at_wait(self, job: Seen) -> None:
        if job.state is not State.BLOCKED or job.follows is not None or self.lets_go_later:
            return
        if all(self.chains[root].ended for root in job.blockers):
            self._say(job, "is blocked although nothing that it waits for lives")

    def _say(self, job: Seen, what: str) -> None:
        self.violations.append(f"job {job.id.hex()} at place {job.place} {what}")

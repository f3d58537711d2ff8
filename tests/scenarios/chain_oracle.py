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
        if job.state is not State.BLOCKED or job.follows is not None:
            return
        if all(self.chains[root].ended for root in job.blockers):
            self._say(job, "is blocked although nothing that it waits for lives")

    def _say(self, job: Seen, what: str) -> None:
        self.violations.append(f"job {job.id.hex()} at place {job.place} {what}")

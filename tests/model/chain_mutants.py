"""Known bugs of chains and blockers, each as a switch; see `mutants`."""

from __future__ import annotations

import pytest
from mutants import ErringStore, SettlingErrs, Switch, raw

from onejob.core.lifecycle import Move, Settlement
from onejob.store import Amended, Settled
from onejob.stores.sqlite import amend, blocking, enqueue
from onejob.stores.sqlite.blocking import NOBODY, Waits
from onejob.stores.sqlite.enqueue import _Batch
from onejob.stores.sqlite.session import Session
from onejob.stores.sqlite.statements import statements


class ChainsGoOnAfterAFailure(SettlingErrs):
    async def after(self, one: Settlement, settled: Settled) -> None:
        if settled is Settled.DONE and one.move is Move.FAIL and one.then is not None:
            [(chain, index)] = await self.sql(
                "select coalesce(chain, id), chain_index from onejob_job where id = ?", raw(one.lease.id)
            )
            await self.sql(
                """insert into onejob_job (id, queue, task, state, priority, due, accepted, updated, since, payload,
                max_crashes, chain, chain_index)
                select ?, ?, ?, 'waiting', 0, due, due, due, due, ?, 3, ?, ? from onejob_job where id = ?
                on conflict do nothing""",
                raw(one.then.id),
                one.then.queue,
                one.then.task,
                one.then.payload,
                chain,
                index + 1,
                raw(one.lease.id),
            )


class KeysAreFreedWhenTheFirstJobEnds(SettlingErrs):
    async def after(self, one: Settlement, settled: Settled) -> None:
        if settled is Settled.DONE and one.move is Move.COMPLETE:
            await self.sql(
                "delete from onejob_key where holder = ? and completed_until is null and follows is null",
                raw(one.lease.id),
            )


STORES: list[type[ErringStore]] = [ChainsGoOnAfterAFailure, KeysAreFreedWhenTheFirstJobEnds]


def swap(patch: pytest.MonkeyPatch, file: str, statement: str, old: str, new: str) -> None:
    """Let a statement say something else."""
    sql = statements(file)
    assert old in sql[statement]
    patch.setitem(sql, statement, sql[statement].replace(old, new))


def the_first_blocker_to_end_lets_go(patch: pytest.MonkeyPatch) -> None:
    swap(patch, "blockers", "release", "b.live = 1", "b.live = 2")


def who_waits_for_what_has_failed_runs(patch: pytest.MonkeyPatch) -> None:
    swap(patch, "blockers", "let_go", "returning job, chain, needed", "returning job, chain, 0")


def who_waits_for_what_has_failed_waits_for_ever(patch: pytest.MonkeyPatch) -> None:
    right = blocking.let_go

    def forgetful(session: Session, chains: list[tuple[bytes, str]], now: int) -> list[tuple[bytes, str]]:
        right(session, chains, now)
        return []

    patch.setattr(blocking, "let_go", forgetful)


def who_is_stranded_strands_nobody(patch: pytest.MonkeyPatch) -> None:
    right = blocking.let_go
    depth: list[bytes] = []

    def shallow(session: Session, chains: list[tuple[bytes, str]], now: int) -> list[tuple[bytes, str]]:
        if chains and chains[0][0] in depth:
            return []
        found = list(right(session, chains, now))
        depth[:] = [job for job, _ in found]
        return found

    patch.setattr(blocking, "let_go", shallow)


def revoking_a_chain_means_its_first_job(patch: pytest.MonkeyPatch) -> None:
    right = amend._revoke

    def first_only(session: Session, id: bytes, now: int) -> Amended:
        chain = amend._chain(session, id)
        return Amended.FINISHED if len(chain) > 1 and chain[0].root == id else right(session, id, now)

    patch.setattr(amend, "_revoke", first_only)


def the_beginning_of_a_living_chain_is_pruned(patch: pytest.MonkeyPatch) -> None:
    swap(patch, "prune", "old_chains", "t.chain_index > j.chain_index", "t.chain_index > 1000")


def what_is_yet_to_be_read_is_pruned(patch: pytest.MonkeyPatch) -> None:
    swap(patch, "prune", "old_chains", "w.ended is null", "w.ended is null and b.live = 1")


def a_chain_between_two_jobs_counts_as_queued(patch: pytest.MonkeyPatch) -> None:
    swap(patch, "enqueue", "find_holders", "iif(t.ended is null, 'running', t.state)", "t.state")


def a_chain_stands_as_its_first_job(patch: pytest.MonkeyPatch) -> None:
    swap(patch, "enqueue", "find_holders", "where t.chain = k.holder", "where t.chain = k.holder and false")


def circles_are_not_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(blocking, "_way_back", lambda *_: None)


def followers_are_let_go_before_their_blockers(patch: pytest.MonkeyPatch) -> None:
    swap(patch, "settle", "release_followers", "b.live = 1", "b.live = 2")


def retried_jobs_wait_for_nobody(patch: pytest.MonkeyPatch) -> None:
    def careless(_: Session, __: bytes) -> Waits:
        return NOBODY

    patch.setattr(blocking, "renew", careless)


def cancelling_a_chain_means_its_first_job(patch: pytest.MonkeyPatch) -> None:
    def first_only(self: _Batch, _: object, holder: bytes) -> None:
        self.flush()
        self._session.rows(statements("amend")["flag"], {"id": holder, "now": self.now})

    patch.setattr(enqueue._Batch, "_cancel", first_only)


SWITCHES: list[Switch] = [
    the_first_blocker_to_end_lets_go,
    who_waits_for_what_has_failed_runs,
    who_waits_for_what_has_failed_waits_for_ever,
    who_is_stranded_strands_nobody,
    revoking_a_chain_means_its_first_job,
    the_beginning_of_a_living_chain_is_pruned,
    what_is_yet_to_be_read_is_pruned,
    a_chain_between_two_jobs_counts_as_queued,
    a_chain_stands_as_its_first_job,
    circles_are_not_seen,
    followers_are_let_go_before_their_blockers,
    retried_jobs_wait_for_nobody,
    cancelling_a_chain_means_its_first_job,
]

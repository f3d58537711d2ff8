"""The pump: how many exchanges with the store are under way, what each takes along, and what is left if one fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import pytest

from onejob.core.errors import StoreBusy, StoreClosed
from onejob.core.job import ChainId, Claimed, JobId, Lease, Millis, WorkerId
from onejob.core.lane import Rate
from onejob.core.lifecycle import Move, Outcome, Settlement, Succeeded
from onejob.current import AbortReason
from onejob.store import Ask, Beat, Claims, Pulse, Settled, SettleReply
from onejob.worker import stock, trouble
from onejob.worker.attempt import Attempt, Roster
from onejob.worker.heartbeat import Heartbeat
from onejob.worker.pump import GATHERED, Pump
from onejob.worker.setup import Settings
from onejob.worker.traffic import WORTH_A_CALL, Share, Traffic

WIDE = 100
STOCK = 4 * WIDE
HALF = WIDE // 2
STRANGER = Lease(JobId("stranger"), b"token")


class Call:
    """A call that the store has not answered yet."""

    def __init__(self, bench: Bench, done: Sequence[Settlement], ask: Ask | None) -> None:
        self._bench = bench
        self.done = list(done)
        self.asked = 0 if ask is None else ask.limit
        self.stock = 0 if ask is None else ask.stock
        self.reply: asyncio.Future[SettleReply] = asyncio.get_running_loop().create_future()

    @property
    def ids(self) -> list[str]:
        return [one.lease.id for one in self.done]

    async def answer(self, jobs: int | None = None, next_due: int | None = None) -> None:
        """Settle everything, and give so many jobs, or as many as were asked for."""
        claimed = [self._bench.new_job() for _ in range(self.asked + self.stock if jobs is None else jobs)]
        self.reply.set_result(SettleReply([Settled.DONE] * len(self.done), Claims(claimed, next_due)))
        await rest()

    async def fail(self, error: BaseException) -> None:
        self.reply.set_exception(error)
        await rest()


class Bench:
    """A pump between a store that answers when it is told to, and handlers that return at once unless held."""

    def __init__(self, concurrency: int, rate: Rate | None = None, stock: int = 0, at_once: int = 2) -> None:
        self.calls: list[Call] = []
        self.roster: Roster = {}
        self.running = self.most = self.made = 0
        self.held: list[asyncio.Future[None]] = []
        self.holding = self.completing = False
        self.held_since = 0.0
        self._hints: asyncio.Queue[bool] = asyncio.Queue()
        self._beats = 0
        self.settings = Settings.checked(
            queues=("default",),
            concurrency=concurrency,
            stock=stock,
            rate=rate,
            children=None,
            max_jobs_per_child=None,
            max_memory_per_child=None,
            lease=30,
            heartbeat=0.1,
            drain=30,
            poll=3600,
            block_warning=1,
        )
        self.pump = Pump(
            store=self,  # type: ignore[arg-type]
            worker=WorkerId("w"),
            settings=self.settings,
            runner=self,  # type: ignore[arg-type]
            roster=self.roster,
            may_claim=lambda: True,
            holds=lambda asked: asked >= self.held_since,
            at_once=at_once,
        )

    def new_job(self) -> Claimed:
        self.made += 1
        id = f"job-{self.made}"
        return Claimed(
            Lease(JobId(id), b"token"),
            queue="default",
            task="work",
            payload=b"{}",
            options=None,
            attempt=1,
            failures=0,
            crashes=0,
            max_crashes=3,
            misses=0,
            accepted=Millis(0),
            due=Millis(0),
            chain=ChainId(id),
            chain_index=0,
            key=None,
        )

    @property
    def open(self) -> list[Call]:
        """The calls under way, the oldest first."""
        return [call for call in self.calls if not call.reply.done()]

    async def settle(self, done: Sequence[Settlement], ask: Ask | None = None) -> SettleReply:
        call = Call(self, done, ask)
        self.calls.append(call)
        return await call.reply

    def mark(self) -> int:
        return 0

    async def wait(self, *_: Any, **__: Any) -> bool:
        return await self._hints.get()

    async def hint(self) -> None:
        self._hints.put_nowait(True)
        await rest()

    async def beat(self, _: Beat) -> Pulse:
        """All that it runs is its own, and one job more."""
        self._beats += 1
        held = {lease.id: lease.token for lease in self.roster.copy()}
        return Pulse({**held, STRANGER.id: STRANGER.token}, frozenset())

    async def beats_more(self, count: int) -> None:
        """Wait for so many beats, of a thread with its own clock, to be heeded."""
        enough = self._beats + count + 1
        while self._beats < enough:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await rest()

    async def run(self, attempt: Attempt) -> Outcome:
        self.running += 1
        self.most = max(self.most, self.running)
        if self.holding:
            self.held.append(asyncio.get_running_loop().create_future())
            await self.held[-1]
        self.running -= 1
        if self.completing:  # as complete() does
            settlement = Settlement(attempt.claimed.lease, Move.COMPLETE)
            attempt.current.completed = settlement, SettleReply([Settled.DONE], Claims([]))
        return Succeeded(None)

    async def release(self, count: int) -> None:
        """Let so many held handlers return."""
        for gate in self.held[:count]:
            gate.set_result(None)
        del self.held[:count]
        await rest()

    async def end(self) -> None:
        """Stop, and answer whatever is still asked."""
        self.pump.stop_claiming()
        await self.release(len(self.held))
        while self.open:
            await self.open[0].answer(0)


async def rest() -> None:
    """Let everything go on that need not wait."""
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def pumping(concurrency: int = WIDE, **settings: Any) -> AsyncIterator[Bench]:
    bench = Bench(concurrency, **settings)
    task = asyncio.ensure_future(bench.pump.run())
    await rest()
    try:
        yield bench
        await bench.end()
        await asyncio.wait_for(task, 10)
        settled = [id for call in bench.calls for id in call.ids if not call.reply.exception()]
        assert sorted(settled) == sorted(set(settled))
        assert not bench.roster
    finally:
        task.cancel()
        await asyncio.wait({task})


@asynccontextmanager
async def two_under_way(**settings: Any) -> AsyncIterator[tuple[Bench, Call, Call]]:
    """A pump that has been given all it asked for, and so has shared its slots."""
    async with pumping(**settings) as bench:
        await bench.calls[0].answer()
        first, second = bench.open
        yield bench, first, second


async def test_plenty_of_work_is_shared_by_two_exchanges() -> None:
    async with two_under_way() as (bench, first, second):
        assert [(len(call.done), call.asked) for call in (first, second)] == [(HALF, HALF), (HALF, HALF)]
        assert not set(first.ids) & set(second.ids)
        for _ in range(5):
            await bench.open[0].answer()
            assert [(len(call.done), call.asked) for call in bench.open] == [(HALF, HALF), (HALF, HALF)]
        assert bench.most <= WIDE


@pytest.mark.parametrize("newest", [False, True], ids=["the older first", "the newer first"])
async def test_they_may_be_answered_in_either_order(newest: bool) -> None:
    async with two_under_way() as (bench, _, _):
        for _ in range(6):
            await bench.open[-1 if newest else 0].answer()
            assert len(bench.open) == 2
            assert sum(call.asked for call in bench.open) + bench.running == WIDE


async def test_what_is_asked_for_and_what_runs_never_exceed_the_slots() -> None:
    async with two_under_way() as (bench, first, second):
        bench.holding = True
        await first.answer()
        assert bench.open == [second]
        await second.answer()
        assert (bench.open, bench.running) == ([], WIDE)
        for _ in range(30):
            await bench.release(7)
            while bench.open:
                assert sum(call.asked for call in bench.open) + bench.running <= WIDE
                await bench.open[-1].answer()
        assert bench.most == WIDE


async def test_few_outcomes_wait_for_the_exchange_under_way() -> None:
    async with two_under_way() as (bench, first, second):
        bench.holding = True
        await first.answer()
        await bench.release(HALF // 2)
        assert bench.open == [second]
        await bench.release(HALF - HALF // 2)
        assert len(bench.open) == 2


async def test_fewer_jobs_than_asked_for_end_the_sharing() -> None:
    async with two_under_way() as (bench, first, second):
        await first.answer(3)
        assert bench.open == [second]
        await second.answer(0)
        [last] = bench.open
        assert (len(last.done), last.asked) == (3, WIDE)
        await last.answer(0)
        assert not bench.open


async def test_a_narrow_worker_makes_one_exchange_at_a_time() -> None:
    async with pumping(2 * WORTH_A_CALL - 1) as bench:
        for _ in range(5):
            [call] = bench.open
            assert call.asked == 2 * WORTH_A_CALL - 1
            await call.answer()


async def test_an_idle_worker_asks_once_and_then_only_when_there_is_a_hint() -> None:
    async with pumping() as bench:
        await bench.open[0].answer(0)
        assert len(bench.calls) == 1
        await bench.hint()
        assert [call.asked for call in bench.open] == [WIDE]
        await bench.open[0].answer(0)
        assert len(bench.calls) == 2


async def test_a_hint_that_comes_while_two_are_under_way_is_not_lost() -> None:
    async with two_under_way() as (bench, first, second):
        await bench.hint()
        await first.answer(0)
        await second.answer(0)
        assert [call.asked for call in bench.open] == [WIDE]
        await bench.open[0].answer(0)
        assert not bench.open


async def test_the_newest_call_says_when_a_job_becomes_due() -> None:
    async with two_under_way() as (bench, first, second):
        await second.answer(0, next_due=5)
        await first.answer(0)
        await asyncio.wait_for(_a_call(bench), 10)


async def _a_call(bench: Bench) -> None:
    while not bench.open:  # noqa: ASYNC110 - it is a timer of the loop that we wait for
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("newest", [False, True], ids=["the older", "the newer"])
async def test_one_that_fails_keeps_its_outcomes_and_settles_them_alone(
    newest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trouble, "FIRST_PAUSE", 0.0)
    async with two_under_way() as (bench, first, second):
        failing, other = (second, first) if newest else (first, second)
        await failing.fail(StoreBusy("not now"))
        assert bench.open == [other]  # trouble: one at a time
        await other.answer()
        [again] = bench.open
        assert again.asked == 0
        assert set(failing.ids) <= set(again.ids)
        assert not set(other.ids) & set(again.ids)
        await again.answer()
        assert bench.open[0].asked == WIDE  # all is well again
        await bench.open[0].answer()
        assert len(bench.open) == 2


async def test_both_fail_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trouble, "FIRST_PAUSE", 0.0)
    async with two_under_way() as (bench, first, second):
        await first.fail(StoreBusy("not now"))
        await second.fail(StoreBusy("not now"))
        [again] = bench.open
        assert again.asked == 0
        assert sorted(again.ids) == sorted(first.ids + second.ids)


async def test_one_that_waits_after_a_failure_does_not_hold_up_the_answer_of_the_other() -> None:
    async with pumping() as bench:
        await bench.calls[0].answer()
        first, second = bench.open
        await first.fail(StoreBusy("not now"))
        await second.answer(2)
        assert not set(second.ids) & {lease.id for lease in bench.roster}
        assert set(first.ids) <= {attempt.claimed.id for attempt in bench.pump.unsettled()}
        await asyncio.wait_for(_a_call(bench), 10)
        assert bench.open[0].asked == 0


async def test_stopping_waits_for_both_and_hands_back_what_they_bring() -> None:
    async with two_under_way() as (bench, first, second):
        bench.pump.stop_claiming()
        await first.answer()
        assert bench.running == 0
        assert bench.open == [second]
        await second.answer()
        [last] = bench.open
        assert last.asked == 0
        assert {one.move for one in last.done} == {Move.HAND_BACK}
        assert len(last.done) == WIDE


async def test_stopping_waits_for_a_claim_although_nothing_runs() -> None:
    async with pumping() as bench:
        bench.completing = True
        await bench.open[0].answer()
        [claim] = bench.open
        assert (claim.done, claim.asked, bench.roster) == ([], WIDE, {})
        bench.pump.stop_claiming()
        await claim.answer(1)
        [last] = bench.open
        assert [one.move for one in last.done] == [Move.HAND_BACK]


async def test_what_was_asked_for_under_a_lease_that_has_ended_goes_back_and_never_begins() -> None:
    """As in a process that was stopped in between: others may have begun these jobs, and those behind them in their lanes."""
    async with pumping(4) as bench:
        bench.holding, bench.held_since = True, monotonic()
        await bench.open[0].answer()
        assert bench.running == 0
        assert {one.move for one in bench.open[0].done} == {Move.HAND_BACK}
        assert len(bench.open[0].done) == 4
        await bench.open[0].answer()
        assert bench.running == 4, "this was asked for after it"


async def test_what_is_in_stock_when_its_lease_ends_goes_back_and_never_begins() -> None:
    async with stocked() as (bench, call):
        begun, waiting = bench.running, len(bench.roster) - WIDE - GATHERED
        bench.held_since = monotonic()
        await bench.release(WIDE)
        assert (begun, bench.running) == (WIDE, 0)
        await call.answer(0)
        moves = Counter(one.move for one in bench.open[0].done)
        assert moves == {Move.COMPLETE: WIDE, Move.HAND_BACK: waiting}


async def test_a_closed_store_ends_the_pump_and_breaks_off_the_other() -> None:
    bench = Bench(WIDE)
    task = asyncio.ensure_future(bench.pump.run())
    await rest()
    await bench.calls[0].answer()
    first, second = bench.open
    await second.fail(StoreClosed("closed"))
    with pytest.raises(StoreClosed):
        await asyncio.wait_for(task, 10)
    assert first.reply.cancelled()


async def test_cancelling_breaks_off_both() -> None:
    bench = Bench(WIDE)
    task = asyncio.ensure_future(bench.pump.run())
    await rest()
    await bench.calls[0].answer()
    first, second = bench.open
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert first.reply.cancelled()
    assert second.reply.cancelled()
    assert len(bench.pump.unsettled()) == WIDE


async def test_a_rate_counts_what_both_ask_for() -> None:
    async with two_under_way(rate=Rate(WIDE + HALF, per=3600)) as (bench, first, second):
        assert first.asked + second.asked == HALF
        await first.answer()
        await second.answer()
        while bench.open:
            await bench.open[0].answer()
        assert bench.made == WIDE + HALF


async def test_an_orphan_that_is_settled_takes_no_slot_and_frees_none() -> None:
    async with pumping() as bench:
        bench.holding = True
        await bench.open[0].answer()
        bench.pump.owe(Settlement(STRANGER, Move.HAND_BACK))
        await rest()
        [call] = bench.open
        assert (call.ids, call.asked) == ([STRANGER.id], 0)
        await call.answer()


async def test_a_lease_is_an_orphan_only_once_every_call_that_may_have_claimed_it_is_answered() -> None:
    async with two_under_way() as (bench, slow, _):
        heart = Heartbeat(bench, WorkerId("w"), bench.settings, bench.roster)  # type: ignore[arg-type]
        await heart.start(bench.pump, lambda _: None)
        try:
            await bench.beats_more(1)  # now the stranger has been seen
            for _ in range(5):
                await bench.open[-1].answer()
            await bench.beats_more(3)
            await bench.open[-1].answer()
            assert not any(STRANGER.id in call.ids for call in bench.calls)
            await slow.answer()
            await bench.beats_more(3)
            await bench.open[0].answer()
            assert any(STRANGER.id in call.ids for call in bench.calls)
        finally:
            await heart.stop()


@asynccontextmanager
async def stocked() -> AsyncIterator[tuple[Bench, Call]]:
    """A pump that has filled its stock, and has settled some jobs and asked for more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stock, "HORIZON", 3_600.0)
        patch.setattr(stock, "PATIENCE", 3_600.0)
        async with pumping(stock=STOCK, at_once=1) as bench:
            bench.holding = True
            await bench.open[0].answer()
            assert (bench.running, len(bench.roster), bench.open) == (WIDE, WIDE + STOCK, [])
            await bench.release(GATHERED)
            [call] = bench.open
            yield bench, call


async def test_quick_handlers_go_on_from_the_stock_during_a_call() -> None:
    async with stocked() as (bench, call):
        assert (len(call.done), call.asked, call.stock) == (GATHERED, 0, GATHERED)
        for _ in range(STOCK // HALF - 2):
            assert bench.running == WIDE
            await bench.release(HALF)
        assert bench.running == WIDE
        assert bench.open == [call]
        assert bench.most == WIDE


async def test_few_outcomes_wait_for_others_while_there_is_a_stock_but_not_for_long() -> None:
    async with stocked() as (bench, call):
        await call.answer()
        await bench.release(1)
        assert not bench.open
        await asyncio.wait_for(_a_call(bench), 10)
        assert [len(one.done) for one in bench.open] == [1]


async def test_what_the_stock_cannot_have_is_asked_for_when_there_is_a_slot() -> None:
    async with stocked() as (bench, call):
        await call.answer(0)  # the next one has a lane
        await bench.release(GATHERED)
        [settling] = bench.open
        assert (settling.asked, settling.stock) == (0, 0)
        await settling.answer()
        for _ in range(STOCK // GATHERED):
            await bench.release(GATHERED)
            if bench.running < WIDE:
                break
            assert [(one.asked, one.stock) for one in bench.open] == [(0, 0)]
            await bench.open[0].answer()
        assert bench.open[0].asked == WIDE - bench.running


async def test_what_waits_for_too_long_goes_back_and_nothing_follows_it() -> None:
    async with stocked() as (bench, call):
        stock.HORIZON, stock.PATIENCE = 0.01, 0.0  # until it is over
        await call.answer()
        await asyncio.wait_for(_a_call(bench), 10)
        [back] = bench.open
        assert {one.move for one in back.done} == {Move.HAND_BACK}
        assert (len(back.done), back.asked, back.stock) == (STOCK, 0, 0)
        await back.answer()
        assert (bench.running, len(bench.roster), bench.open) == (WIDE, WIDE, [])


async def test_stopping_hands_the_stock_back() -> None:
    async with stocked() as (bench, call):
        await call.answer()
        bench.pump.stop_claiming()
        await rest()
        [last] = bench.open
        assert [one.move for one in last.done].count(Move.HAND_BACK) == STOCK
        assert bench.running == WIDE


async def test_what_is_told_to_stop_before_it_began_never_begins() -> None:
    async with stocked() as (bench, call):
        waiting = [attempt for attempt in bench.roster.values() if not attempt.begun]
        waiting[0].tell(AbortReason.REVOKED)
        waiting[1].tell(AbortReason.LOST)
        await bench.release(2)
        assert [attempt.begun for attempt in waiting[:5]] == [False, False, True, True, False]
        await call.answer()
        await asyncio.wait_for(_a_call(bench), 10)
        moves = {one.lease.id: one.move for one in bench.open[0].done}
        assert [moves[attempt.claimed.id] for attempt in waiting[:2]] == [Move.HAND_BACK] * 2


def test_calls_have_ended_up_to_the_oldest_that_is_under_way() -> None:
    traffic = Traffic()
    first, second = traffic.begin([], 1), traffic.begin([], 2)
    traffic.end(second)
    assert (traffic.calls_begun, traffic.calls_ended, traffic.jobs) == (2, 0, 1)
    third = traffic.begin([], 4)
    traffic.end(first)
    assert (traffic.calls_begun, traffic.calls_ended, traffic.jobs) == (3, 2, 4)
    traffic.end(third)
    assert (traffic.calls_begun, traffic.calls_ended, traffic.jobs) == (3, 3, 0)


def test_outcomes_that_are_too_few_to_share_go_together() -> None:
    few = 2 * WORTH_A_CALL - 1
    assert Traffic().share(few, WIDE, shared=True) == Share(few, WIDE)
    assert Traffic().share(few + 1, WIDE, shared=True) == Share(WORTH_A_CALL, WIDE // 2)
    assert Traffic().share(few + 1, WIDE, shared=False) == Share(few + 1, WIDE)


def test_two_exchanges_become_equally_large() -> None:
    traffic = Traffic()
    traffic.begin([Settlement(STRANGER, Move.COMPLETE)] * 112, 112)
    assert traffic.share(375, 388, shared=True) == Share(244, 252), "the rest is for the one after"
    assert traffic.share(112, 388, shared=True) == Share(112, 388)
    assert traffic.share(55, 388, shared=True) is None, "half of the other one is the least"

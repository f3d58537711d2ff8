"""The runner: whatever a handler does becomes an outcome, and nothing it raises gets any further."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from onejob.app import App
from onejob.core.errors import Fail, InvalidOption, Snooze, WrongCall
from onejob.core.job import ChainId, Claimed, JobId, Lease, Millis
from onejob.core.lifecycle import Outcome, Raised, Returned, Snoozed, Succeeded, Unknown
from onejob.core.options import JobOptions, encode_options
from onejob.core.retry import Exponential, Fixed
from onejob.current import AbortReason, CurrentJob, current_job, running_job
from onejob.tasks import Task
from onejob.worker import WorkerSetup
from onejob.worker.attempt import Attempt, Interruption
from onejob.worker.runner import Runner


class Desk:
    """An app without a store, and a runner for its tasks."""

    def __init__(self) -> None:
        self.app = App("memory:")

    def add(self, function: Callable[..., Any]) -> Task[..., Any]:
        return self.app.task(name="subject")(function)

    def claimed(self, *args: Any, options: JobOptions | None = None, **changes: Any) -> Claimed:
        task = self.app.tasks.get("subject")
        payload = b"{}" if task is None else task.codec.encode(task.codec.bind(args, {}))
        fields: dict[str, Any] = {
            "lease": Lease(JobId("job-1"), b"token"),
            "queue": "default",
            "task": "subject",
            "payload": payload,
            "options": None if options is None else encode_options(options),
            "attempt": 1,
            "failures": 0,
            "crashes": 0,
            "max_crashes": 3,
            "misses": 0,
            "accepted": Millis(0),
            "due": Millis(0),
            "chain": ChainId("job-1"),
            "chain_index": 0,
            "key": None,
        }
        return Claimed(**fields | changes)

    def runner(self) -> Runner:
        return Runner(WorkerSetup(self.app.store, self.app.tasks, self.app.backoffs), threads=2)

    def run(self, function: Callable[..., Any], *args: Any, **options: Any) -> Outcome:
        self.add(function)
        return self.run_claimed(self.claimed(*args, options=JobOptions(**options) if options else None))

    def run_claimed(self, claimed: Claimed) -> Outcome:
        return asyncio.run(self.start(claimed, lambda _: None))

    async def start(self, claimed: Claimed, then: Callable[[Attempt], None]) -> Outcome:
        """Run an attempt as a worker does, and do something to it once its handler has begun."""
        attempt, runner = Attempt(claimed), self.runner()
        attempt.handle = asyncio.ensure_future(runner.run(attempt))
        await asyncio.sleep(0)
        then(attempt)
        try:
            return await attempt.handle
        finally:
            runner.close()

    def interrupted(
        self, function: Callable[..., Coroutine[Any, Any, Any]], why: Interruption, **options: Any
    ) -> Outcome:
        self.add(function)
        claimed = self.claimed(options=JobOptions(**options))
        return asyncio.run(self.start(claimed, lambda attempt: attempt.interrupt(why)))


@pytest.fixture
def desk() -> Desk:
    return Desk()


def in_both_ways(function: Callable[[], Any]) -> list[Callable[..., Any]]:
    """The same handler as a coroutine function and as a plain one."""

    async def in_loop() -> Any:
        return function()

    def in_thread() -> Any:
        return function()

    return [in_loop, in_thread]


def failed(outcome: Outcome) -> Raised:
    assert isinstance(outcome, Raised), outcome
    return outcome


def test_a_returned_value_is_encoded(desk: Desk) -> None:
    async def double(number: int) -> dict[str, int]:
        return {"twice": number * 2}

    assert desk.run(double, 21) == Succeeded(b'{"twice":42}')


def test_a_plain_function_runs_in_a_thread(desk: Desk) -> None:
    def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert desk.run(where) == Succeeded(b"false")


def test_no_value_is_no_result(desk: Desk) -> None:
    async def nothing() -> None:
        return None

    assert desk.run(nothing) == Succeeded(None)


@pytest.mark.parametrize("way", [0, 1], ids=["in the loop", "in a thread"])
def test_an_error_is_told_with_type_message_and_place(desk: Desk, way: int) -> None:
    def broken() -> None:
        raise ValueError("no such order")

    outcome = failed(desk.run(in_both_ways(broken)[way], attempts=3))
    first, *places = outcome.error.split("\n")
    assert first == "ValueError: no such order"
    assert "test_runner.py" in places[-1]
    assert "in broken" in places[-1]
    assert not any("onejob/worker" in place for place in places)
    assert not outcome.final


def test_the_cause_of_an_error_is_told_too(desk: Desk) -> None:
    async def chained() -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise RuntimeError("outer") from error

    assert "\ncaused by KeyError: 'inner'" in failed(desk.run(chained)).error


@pytest.mark.parametrize("way", [0, 1], ids=["in the loop", "in a thread"])
@pytest.mark.parametrize(
    "kind", [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, asyncio.CancelledError]
)
def test_what_would_end_a_program_only_fails_the_attempt(
    desk: Desk, kind: type[BaseException], way: int
) -> None:
    def leave() -> None:
        raise kind("bye")

    outcome = failed(desk.run(in_both_ways(leave)[way], attempts=2))
    assert kind.__name__ in outcome.error
    assert not outcome.final


@pytest.mark.parametrize("way", [0, 1], ids=["in the loop", "in a thread"])
def test_an_error_that_cannot_be_printed_gets_a_safe_text(desk: Desk, way: int) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise SystemExit

        __repr__ = __str__

    def mute() -> None:
        raise Mute

    assert (
        "Mute: <no message: its __str__ raised SystemExit>" in failed(desk.run(in_both_ways(mute)[way])).error
    )


def test_control_characters_and_lone_surrogates_are_escaped(desk: Desk) -> None:
    async def forge() -> None:
        raise ValueError("a\nINFO fake line\x1b[31m\x00 \ud800")

    first = failed(desk.run(forge)).error.split("\n")[0]
    assert first == r"ValueError: a\nINFO fake line\x1b[31m\x00 \ud800"


def test_an_error_text_is_at_most_8_kib(desk: Desk) -> None:
    async def long() -> None:
        raise ValueError("é\n" * 100_000)

    text = failed(desk.run(long)).error
    assert 4_000 < len(text.encode()) <= 8_192


def test_a_snooze_is_a_wish_and_charges_nothing(desk: Desk) -> None:
    async def later() -> None:
        raise Snooze(1.5)

    assert desk.run(later) == Snoozed(1_500)


@pytest.mark.parametrize("seconds", ["soon", -1, float("nan"), None])
def test_a_senseless_snooze_is_a_failure_that_says_why(desk: Desk, seconds: Any) -> None:
    async def later() -> None:
        raise Snooze(seconds)

    assert "Snooze(seconds) must be" in failed(desk.run(later)).error


def test_fail_is_final_whatever_retries_are_left(desk: Desk) -> None:
    async def give_up() -> None:
        raise Fail("card is stolen")

    assert desk.run(give_up, attempts=5) == Raised("Fail: card is stolen", 5, 0, final=True)


def test_an_error_named_in_never_is_final_and_so_are_its_subclasses(desk: Desk) -> None:
    async def look_up() -> None:
        raise KeyError("x")

    assert failed(desk.run(look_up, attempts=5, never=("builtins.LookupError",))).final


@pytest.mark.parametrize(
    "payload", [b"", b"\x80\x04\x95", b'{"number": "x"}', b'{"number":1,"number":2}', b"[" * 9_000]
)
def test_an_undecodable_payload_fails_at_once(desk: Desk, payload: bytes) -> None:
    async def handler(number: int) -> None:
        raise AssertionError("must not run")

    desk.add(handler)
    outcome = failed(desk.run_claimed(desk.claimed(1, payload=payload, options=JobOptions(attempts=9))))
    assert outcome.final
    assert outcome.error.startswith("undecodable: ")


@pytest.mark.parametrize("options", [b"", b"\xff", b'{"attempts":"many"}', b'{"newer_field":1}'])
def test_undecodable_options_fail_at_once(desk: Desk, options: bytes) -> None:
    async def handler() -> None:
        raise AssertionError("must not run")

    desk.add(handler)
    outcome = failed(desk.run_claimed(msgspec.structs.replace(desk.claimed(), options=options)))
    assert outcome.final
    assert outcome.error.startswith("undecodable: ")


def test_an_unknown_task_is_told_with_those_that_are_known(desk: Desk) -> None:
    desk.add(lambda: None)
    assert desk.run_claimed(desk.claimed(task="other")) == Unknown("subject")


def test_a_result_that_cannot_be_stored_fails_for_good_and_says_why(desk: Desk) -> None:
    async def opaque() -> object:
        return {"value": object()}

    outcome = failed(desk.run(opaque, attempts=5))
    assert outcome.final
    assert outcome.error.startswith("result of task subject cannot be stored: ")


def test_a_result_that_is_too_big_fails_for_good(desk: Desk) -> None:
    async def huge() -> str:
        return "x" * 2_000_000

    outcome = failed(desk.run(huge, attempts=5))
    assert outcome.final
    assert "exceeds maximum size" in outcome.error


async def broken() -> None:
    raise ConnectionError("refused")


@pytest.mark.accepts("G45")
@pytest.mark.parametrize(("failures", "wait"), [(0, 1_000), (1, 2_000), (2, 4_000), (3, 8_000)])
def test_exponential_retries_wait_1_2_4_8_seconds(desk: Desk, failures: int, wait: int) -> None:
    desk.add(broken)
    claimed = desk.claimed(options=JobOptions(attempts=9, backoff=Exponential(1.0)), failures=failures)
    assert failed(desk.run_claimed(claimed)).retry_in == wait


@pytest.mark.accepts("G46")
def test_fixed_retries_wait_the_same_each_time(desk: Desk) -> None:
    desk.add(broken)
    waits = {
        failed(
            desk.run_claimed(
                desk.claimed(options=JobOptions(attempts=9, backoff=Fixed(2.5)), failures=failures)
            )
        ).retry_in
        for failures in range(4)
    }
    assert waits == {2_500}


@pytest.mark.accepts("G47")
def test_jitter_spreads_retries_within_its_bounds(desk: Desk) -> None:
    desk.add(broken)
    claimed = desk.claimed(options=JobOptions(attempts=9, backoff=Fixed(10, jitter=0.1)))
    waits = {failed(desk.run_claimed(claimed)).retry_in for _ in range(12)}
    assert len(waits) > 1
    assert all(9_000 <= wait <= 11_000 for wait in waits)


@pytest.mark.accepts("G48")
def test_a_named_strategy_sees_the_failures_and_the_error(desk: Desk) -> None:
    class RateLimited(Exception):
        retry_after = 7

    @desk.app.backoff("retry-after")
    def wait(failures: int, error: BaseException) -> float:
        return getattr(error, "retry_after", 0) + failures

    async def call() -> None:
        raise RateLimited

    desk.add(call)
    claimed = desk.claimed(options=JobOptions(attempts=9, backoff="retry-after"), failures=2)
    assert failed(desk.run_claimed(claimed)).retry_in == 10_000


def raise_exit(failures: int, error: BaseException) -> float:
    raise SystemExit


@pytest.mark.parametrize("strategy", [None, raise_exit, lambda *_: "soon", lambda *_: -5, lambda *_: None])
def test_a_missing_or_broken_strategy_waits_a_minute_and_is_logged(
    desk: Desk, strategy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    if strategy is not None:
        desk.app.backoff("mine")(strategy)
    outcome = failed(desk.run(broken, attempts=3, backoff="mine"))
    assert outcome.retry_in == 60_000
    assert "backoff 'mine' of job job-1 (task subject) is missing or broken" in caplog.text


def test_a_coroutine_past_its_timeout_is_cancelled_and_may_be_retried(desk: Desk) -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    assert desk.run(forever, timeout=1, attempts=3, backoff=Fixed(4)) == Raised(
        "TimedOut after 0.001 s, the timeout of task subject", 3, 4_000
    )


def test_what_a_coroutine_returns_after_its_timeout_is_discarded(desk: Desk) -> None:
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert current_job().aborted.reason is AbortReason.TIMED_OUT
        return "done all the same"

    assert failed(desk.run(stubborn, timeout=1, attempts=2)).error.startswith("TimedOut after")


def test_a_thread_past_its_timeout_is_warned_of_and_fails_once_it_returns(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    def slow() -> str:
        assert current_job().aborted.wait(10)
        return "late"

    assert failed(desk.run(slow, timeout=1, attempts=2)).error.startswith("TimedOut after")
    assert "job job-1 runs task subject in a thread (timed out)" in caplog.text


def test_a_run_broken_off_at_shutdown_goes_back_uncharged(desk: Desk) -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    assert desk.interrupted(forever, Interruption.SHUTDOWN) == Returned()


def test_an_error_while_unwinding_at_shutdown_is_not_charged(desk: Desk) -> None:
    async def clumsy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("connection closed")

    assert desk.interrupted(clumsy, Interruption.SHUTDOWN, attempts=1) == Returned()


def test_a_run_that_finishes_in_spite_of_the_shutdown_counts(desk: Desk) -> None:
    async def quick() -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return 1
        raise AssertionError

    assert desk.interrupted(quick, Interruption.SHUTDOWN) == Succeeded(b"1")


def test_a_revoked_run_that_is_cancelled_ends_for_good(desk: Desk) -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    assert failed(desk.interrupted(forever, Interruption.REVOKED, attempts=9)).final


def test_the_current_job_is_known_in_coroutines_and_threads_and_nowhere_else(desk: Desk) -> None:
    def look() -> list[object]:
        job = current_job()
        return [
            job.id,
            job.task,
            job.queue,
            job.attempt,
            job.failures,
            job.chain,
            job.chain_index,
            job.idempotency_key,
        ]

    expected = b'["job-1","subject","default",1,0,"job-1",0,"job-1"]'
    for way in in_both_ways(look):
        assert Desk().run(way) == Succeeded(expected)
    assert running_job() is None
    with pytest.raises(WrongCall, match="inside a task"):
        current_job()


def test_the_job_logger_adds_its_fields_to_those_of_the_handler(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    async def talk() -> None:
        current_job().logger.info("charged", extra={"amount": 5})

    with caplog.at_level(logging.INFO, "onejob"):
        desk.run(talk)
    record = caplog.records[-1]
    assert (record.__dict__["job"], record.__dict__["task"], record.__dict__["amount"]) == (
        "job-1",
        "subject",
        5,
    )


def test_progress_is_a_small_json_value(desk: Desk) -> None:
    job = CurrentJob(desk.claimed())
    job.progress({"done": 3, "of": 10})
    assert job.latest_progress == b'{"done":3,"of":10}'
    with pytest.raises(InvalidOption, match="JSON value"):
        job.progress(object())
    with pytest.raises(InvalidOption, match="at most 65536 bytes"):
        job.progress("x" * 70_000)


def test_aborted_wakes_threads_and_coroutines(desk: Desk) -> None:
    job = CurrentJob(desk.claimed())
    assert not job.aborted
    assert job.aborted.wait(0) is False

    async def both() -> tuple[bool, AbortReason]:
        in_thread = asyncio.get_running_loop().run_in_executor(None, job.aborted.wait, 10)
        in_loop = asyncio.ensure_future(_awaited(job))
        await asyncio.sleep(0)
        threading.Thread(target=job.aborted.set, args=(AbortReason.REVOKED,)).start()
        return await in_thread, await in_loop

    assert asyncio.run(both()) == (True, AbortReason.REVOKED)
    job.aborted.set(AbortReason.LOST)
    assert job.aborted.reason is AbortReason.REVOKED


async def _awaited(job: CurrentJob) -> AbortReason:
    return await job.aborted


def test_a_blocking_wait_inside_the_loop_is_refused_and_names_the_right_call(desk: Desk) -> None:
    async def wrong() -> None:
        current_job().aborted.wait()

    assert (
        "WrongCall: aborted.wait() would block the event loop: write `await" in failed(desk.run(wrong)).error
    )

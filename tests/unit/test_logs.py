"""The log: one line per event, fields in `extra`, nothing that forges a line or clobbers a record."""

from __future__ import annotations

import asyncio
import inspect
import logging
from pathlib import Path
from typing import Any

import pytest

import onejob
from onejob import App, Fail, Fixed, Retry, Snooze, Unique
from onejob.core.job import ChainId, Claimed, JobId, Lease, Millis, WorkerId
from onejob.core.lifecycle import SETTLING, Move, Settlement
from onejob.keepers import Rescuer
from onejob.logs import event
from onejob.store import Ask, Beat, Settled
from onejob.testing import FakeClock
from onejob.worker.journal import note_end, note_start

OWN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def claimed(**changes: Any) -> Claimed:
    fields: dict[str, Any] = {
        "lease": Lease(JobId("job-1"), b"token"),
        "queue": "default",
        "task": "subject",
        "payload": b"{}",
        "options": None,
        "attempt": 2,
        "failures": 1,
        "crashes": 0,
        "max_crashes": 3,
        "misses": 0,
        "accepted": Millis(0),
        "due": Millis(0),
        "chain": ChainId("job-1"),
        "chain_index": 0,
        "key": "a\nb",
    }
    return Claimed(**fields | changes)


def check(record: logging.LogRecord) -> None:
    """What holds of every line."""
    assert record.name.partition(".")[0] == "onejob"
    assert record.getMessage().isprintable()
    fields = set(vars(record)) - OWN
    assert "event" in fields
    for name in fields:
        value = getattr(record, name)
        assert not isinstance(value, str) or value.isprintable(), name


def test_text_and_fields_are_escaped_and_reserved_names_get_a_prefix(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = logging.getLogger("onejob")
    with caplog.at_level(logging.INFO, "onejob"):
        event(
            source,
            logging.INFO,
            "test",
            "100 %s\r\nforged \x1b[2J",
            name="x\ny",
            message="m",
            args=(1,),
            level=3,
        )
    [record] = caplog.records
    check(record)
    assert record.getMessage() == "100 %s\\r\\nforged \\x1b[2J"
    assert (record.job_name, record.job_message, record.job_args, record.level) == ("x\\ny", "m", (1,), 3)
    assert record.name == "onejob"
    assert record.filename == Path(__file__).name


@pytest.mark.parametrize("settled", Settled)
@pytest.mark.parametrize("move", sorted(SETTLING))
def test_every_end_of_an_attempt_is_one_line_with_the_jobs_fields(
    move: Move, settled: Settled, caplog: pytest.LogCaptureFixture
) -> None:
    job = claimed()
    error = "ValueError: no\x07\n  file.py:1" if move in (Move.FAIL, Move.RETRY) else None
    with caplog.at_level(logging.DEBUG, "onejob"):
        note_end(Settlement(job.lease, move, delay=1500, error=error), settled, job)
    [record] = caplog.records
    check(record)
    assert (record.job, record.task, record.queue, record.attempt) == ("job-1", "subject", "default", 2)
    assert (record.move, record.settled, record.key) == (move, settled, "a\\nb")
    assert record.event.startswith("job.")


def test_an_end_without_an_attempt_and_a_start_are_lines_too(caplog: pytest.LogCaptureFixture) -> None:
    job = claimed(task="evil\ntask")
    with caplog.at_level(logging.DEBUG, "onejob"):
        note_end(Settlement(job.lease, Move.HAND_BACK), Settled.DONE, None)
        note_start(job, WorkerId("w-1"))
    for record in caplog.records:
        check(record)
    assert [record.event for record in caplog.records] == ["job.handed_back", "job.started"]


async def test_the_events_of_a_workers_life(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task(name="good", unique=Unique.once(by="who"))
    async def good(who: str) -> None: ...

    @app.task(name="again", retry=Retry(2, Fixed(0.001)))
    async def again() -> None:
        if onejob.current_job().attempt == 1:
            raise ValueError("line one\nline two \x1b[31m")

    @app.task(name="bad")
    async def bad() -> None:
        raise Fail("for good\nand ever")

    @app.task(name="later")
    async def later() -> None:
        raise Snooze(60)

    @app.task(name="revoked")
    async def revoked() -> None:
        await app.arevoke(onejob.current_job().id)

    with caplog.at_level(logging.DEBUG, "onejob"):
        async with app, app.worker() as worker:
            receipts = [await good.aenqueue("a\nb"), await good.aenqueue("a\nb")]
            receipts += [await task.aenqueue() for task in (again, bad, revoked, later)]
            async with asyncio.timeout(20):
                while worker.counts.total() < 6:  # noqa: ASYNC110 - a worker has no event for that
                    await asyncio.sleep(0.01)
    for record in caplog.records:
        if record.name.startswith("onejob"):
            check(record)
    events = [record.event for record in caplog.records if record.name.startswith("onejob")]
    assert {name: events.count(name) for name in set(events)} == {
        "worker.started": 1,
        "worker.stopped": 1,
        "job.created": 5,
        "job.kept": 1,
        "job.started": 6,
        "job.completed": 2,
        "job.retrying": 1,
        "job.failed": 1,
        "job.revoked": 1,
        "job.snoozed": 1,
    }
    assert (events[0], events[-1]) == ("worker.started", "worker.stopped")
    assert receipts[0].id == receipts[1].id


async def test_a_rescue_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    app = App("memory:", clock=clock)

    @app.task(name="subject")
    async def subject() -> None: ...

    async with app:
        receipt = await subject.aenqueue()
        await app.store.beat(Beat(WorkerId("w-dead"), 1_000, queues=("default",), concurrency=1))
        await app.store.claim(Ask(WorkerId("w-dead"), ("default",), 1))
        clock.advance(2)
        assert await Rescuer(app.store, 1.0).tick() == 1
    [record] = [record for record in caplog.records if record.name == "onejob.keepers"]
    check(record)
    assert (record.event, record.job, record.worker) == ("job.rescued", receipt.id, "w-dead")


def test_nothing_in_the_worker_logs_past_the_journal() -> None:
    for folder in ("worker", "keepers"):
        for file in (Path(inspect.getfile(App)).parent / folder).glob("*.py"):
            text = file.read_text()
            for method in ("debug", "info", "warning", "error", "exception"):
                assert f"log.{method}(" not in text, f"{file.name} uses log.{method}: use say(…) or event(…)"

"""Compression, and what becomes of stored bytes that nobody should trust (ACCEPTANCE.md, G41 to G44)."""

from __future__ import annotations

import functools
import pickle
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Sequence
from itertools import chain

import msgspec
import pytest

from onejob import App, JobFailed, Outcome, PayloadMismatch, PayloadTooLarge, Queue, State, Unique
from onejob.core.job import NewJob
from onejob.core.judge import Answer
from onejob.testing import FakeClock, adrain

MakeApp = Callable[..., App]
MEBIBYTE = 1_048_576


def packed(app: App, id: str) -> bytes:
    """A job's payload as it is stored."""
    job = app.job(id)
    assert job is not None
    return job.payload


@pytest.mark.accepts("G41")
async def test_a_queue_is_compressed_without_its_handlers_knowing(make_app: MakeApp) -> None:
    app = make_app(queues={"big": Queue(compression="gzip")})
    seen: list[tuple[str, dict[str, list[int]]]] = []

    @app.task(queue="big")
    async def take(text: str, table: dict[str, list[int]]) -> dict[str, list[int]]:
        seen.append((text, table))
        return table

    text, table = "grüße\n\0" * 500, {"numbers": list(range(1_000))}
    receipts = [await take.aenqueue(text, table), await take.using(queue="small").aenqueue(text, table)]
    await adrain(app)
    assert seen == [(text, table)] * 2
    assert [await receipt.aresult(0) for receipt in receipts] == [table] * 2
    jobs = [await app.ajob(receipt) for receipt in receipts]
    starts = [(job.payload[:2], (job.result or b"")[:2]) for job in jobs if job is not None]
    assert starts == [(b"\x1f\x8b", b"\x1f\x8b"), (b'{"', b'{"')]


@pytest.mark.accepts("G41")
async def test_a_whole_app_is_compressed_but_for_what_gains_nothing(make_app: MakeApp) -> None:
    app = make_app(compression="gzip", queues={"plain": Queue(compression=None)})

    @app.task
    async def take(text: str) -> str:
        return text

    for queue, text, start in (
        ("default", "again " * 100, b"\x1f\x8b"),
        ("default", "short", b'{"'),
        ("plain", "again " * 100, b'{"'),
    ):
        receipt = await take.using(queue=queue).aenqueue(text)
        job = await app.ajob(receipt)
        assert job is not None
        assert job.payload[:2] == start
        await adrain(app)
        assert await receipt.aresult(0) == text


@pytest.mark.accepts("G41")
async def test_duplicates_are_told_by_what_they_say_before_compression(make_app: MakeApp) -> None:
    app = make_app(compression="gzip")

    @app.task(unique=Unique.once(by="id", mismatch="raise"))
    async def save(id: int, text: str) -> None: ...

    first = await save.aenqueue(1, "again " * 100)
    same = await save.aenqueue(1, "again " * 100)
    assert (same.id, same.outcome, same.payload_differs) == (first.id, Outcome.KEPT, False)
    with pytest.raises(PayloadMismatch):
        await save.aenqueue(1, "never " * 100)
    assert (await app.aexplain(first)).next_outcome is Outcome.KEPT


@pytest.mark.accepts("G41")
async def test_compressed_calls_are_collected(make_app: MakeApp, clock: FakeClock) -> None:
    app = make_app(compression="gzip")
    seen: list[list[str]] = []

    @app.task(unique=Unique.collect(into="items", wait=1, max_items=10_000, by=()))
    async def index(items: list[str]) -> None:
        seen.append(items)

    lists = [["long enough to be worth it"] * 40, ["a"], ["and this one, too, is repeated"] * 40]
    first = await index.aenqueue(lists[0])
    for items in lists[1:]:
        assert (await index.aenqueue(items)).id == first.id
    await adrain(app, clock=clock)
    assert seen == [list(chain(*lists))]


@pytest.mark.accepts("G41")
async def test_a_collection_is_full_at_a_megabyte_before_compression(
    make_app: MakeApp, clock: FakeClock
) -> None:
    app = make_app(compression="gzip")
    seen: list[int] = []

    @app.task(unique=Unique.collect(into="items", wait=1, by=()))
    async def index(items: list[str]) -> None:
        seen.append(len(items))

    for _ in range(7):
        await index.aenqueue(["x" * 300_000])
    await adrain(app, clock=clock)
    assert seen == [3, 3, 1]


@pytest.mark.accepts("G42")
def test_fifteen_kilobytes_of_repetition_take_a_few_hundred_bytes(make_app: MakeApp) -> None:
    app = make_app(queues={"reports": Queue(compression="gzip")})

    @app.task(queue="reports")
    def report(rows: list[dict[str, str]]) -> None: ...

    rows = [{"status": "delivered", "country": "NL", "carrier": "post"}] * 275
    receipt = report.enqueue(rows)
    assert len(report.codec.encode(report.codec.bind((rows,), {}))) > 15_000
    assert len(packed(app, receipt.id)) < 400


@pytest.mark.accepts("G43")
@pytest.mark.parametrize("compression", ["gzip", None])
def test_the_limit_is_checked_before_compression_and_nothing_is_stored(
    make_app: MakeApp, compression: str | None
) -> None:
    app = make_app(compression=compression)

    @app.task
    def take(text: str) -> None: ...

    fits = MEBIBYTE - len('{"text":""}')
    assert take.enqueue("x" * fits).outcome is Outcome.CREATED
    with pytest.raises(PayloadTooLarge):
        take.enqueue("x" * (fits + 1))
    with pytest.raises(PayloadTooLarge):
        app.enqueue_many([take.job("small"), take.job("x" * (fits + 1))])
    assert app.counts() == {"default": {State.WAITING: 1}}


@pytest.mark.accepts("G44")
def test_the_message_says_how_big_and_what_to_do(make_app: MakeApp) -> None:
    app = make_app(compression="gzip")

    @app.task
    def take(text: str) -> None: ...

    with pytest.raises(PayloadTooLarge) as refused:
        take.enqueue("x" * (1_234_567 - len('{"text":""}')))
    assert str(refused.value).startswith(
        "Job data exceeds maximum size (1234567 bytes > 1MB). "
        "Use smaller payloads or store large data externally."
    )


async def test_a_result_that_is_too_big_fails_its_job_compressed_or_not(make_app: MakeApp) -> None:
    app = make_app(compression="gzip")

    @app.task
    async def make() -> str:
        return "x" * 2 * MEBIBYTE

    receipt = await make.aenqueue()
    [ran] = await adrain(app)
    assert "exceeds maximum size" in (ran.error or "")
    job = await app.ajob(receipt)
    assert job is not None
    assert job.state is State.FAILED


@functools.cache
def _bomb() -> bytes:
    """256 MiB of nothing as gzip: one block, again and again."""
    engine, zeros = zlib.compressobj(9, zlib.DEFLATED, 31), bytes(MEBIBYTE)
    first, again = (engine.compress(zeros) + engine.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    checksum = 0
    for _ in range(256):
        checksum = zlib.crc32(zeros, checksum)
    return first + again * 255 + b"\x03\x00" + struct.pack("<II", checksum, 256 * MEBIBYTE)


def _hostile() -> dict[str, bytes]:
    honest = zlib.compressobj(6, zlib.DEFLATED, 31)
    good = honest.compress(b'{"text":"%s"}' % (b"again " * 200)) + honest.flush()
    return {
        "a bomb": _bomb(),
        "cut short": good[:-4],
        "other bytes": good[:20] + b"\xff\x00\xff" + good[23:],
        "garbage behind it": good + b"!",
        "bombs in a row": b"\n".join([good, _bomb()]),
        "a pickle": pickle.dumps(print),
        "nothing": b"",
        "a key twice": b'{"text":"a","text":"b"}',
    }


def exchange(app: App, payloads: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the store take other bytes than it is sent, for the jobs with these texts."""
    right = app.store.enqueue

    def exchanged(job: NewJob) -> NewJob:
        text = msgspec.json.decode(job.payload)["text"]
        return msgspec.structs.replace(job, payload=payloads.get(text, job.payload))

    async def enqueue(jobs: Sequence[NewJob], *, now: int | None = None) -> list[Answer]:
        return await right([exchanged(job) for job in jobs], now=now)

    monkeypatch.setattr(app.store, "enqueue", enqueue)


@pytest.mark.parametrize("is_async", [True, False])
async def test_hostile_bytes_fail_their_job_and_the_worker_lives_on_in_flat_memory(
    make_app: MakeApp, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(clock=None, compression="gzip", dead_letter="dead")
    ran: list[str] = []

    async def take_async(text: str) -> None:
        ran.append(text)

    def take_sync(text: str) -> None:
        ran.append(text)

    task = app.task(name="take", retry=5)(take_async if is_async else take_sync)
    hostile = _hostile()
    exchange(app, hostile, monkeypatch)
    receipts = {what: await task.aenqueue(what) for what in hostile}
    last = await task.using(priority=-1).aenqueue("still here")
    tracemalloc.start()
    try:
        async with app.worker(concurrency=4):
            await last.aresult(timeout=20)
            for receipt in receipts.values():
                with pytest.raises(JobFailed, match="undecodable"):
                    await receipt.aresult(timeout=20)
        assert tracemalloc.get_traced_memory()[1] < 24 * MEBIBYTE
    finally:
        tracemalloc.stop()
    assert ran == ["still here"]
    for what, receipt in receipts.items():
        job = await app.ajob(receipt)
        assert job is not None, what
        assert (job.state, job.attempt) == (State.FAILED, 1), what
        assert (job.error or "").startswith("undecodable: "), what
    letters = await app.adead("default")
    assert {letter.origin for letter in letters} == {receipt.id for receipt in receipts.values()}

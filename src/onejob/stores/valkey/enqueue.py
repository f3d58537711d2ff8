"""enqueue: newcomers go to their queues, some at a time, by a script which judges and writes them in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onejob.absorbing import Absorbed
from onejob.core.errors import OnejobError
from onejob.core.job import NewJob
from onejob.core.judge import Answer, Outcome
from onejob.sql.ids import id_to_bytes
from onejob.stores.valkey import blocking
from onejob.stores.valkey.bounds import MOST_BYTES, PORTION
from onejob.stores.valkey.failures import admit
from onejob.stores.valkey.forms import answer_of
from onejob.stores.valkey.newcomers import Waited, newcomers
from onejob.stores.valkey.office import Office, ThreadLine, portions

Absorb = Callable[[Sequence[Absorbed], str], None]
"""Count duplicates of a queue."""


async def enqueue(office: Office, jobs: Sequence[NewJob], absorb: Absorb, now: int | None) -> list[Answer]:
    """Accept newcomers; see `Store.enqueue`."""
    waits = await blocking.waits(office, jobs, now) if any(job.blockers for job in jobs) else {}
    queues = {job.queue for job in jobs}
    if not office.knows(queues):
        await office.register(queues)
    small = len(jobs) <= PORTION and sum([len(job.payload) for job in jobs]) <= MOST_BYTES
    if small and len(queues) == 1 and not waits:
        queue = jobs[0].queue
        rows = await office.call("enqueue", queue, newcomers(jobs, waits), now=now)
        return _read(office, queue, jobs, rows, absorb)
    calls = [
        (queue, places)
        for queue, whole in _by_queue(jobs, waits)
        for places in portions(whole, lambda place: len(jobs[place].payload))
    ]
    return await _in_turn(office, jobs, calls, waits, absorb, now=now)


async def _in_turn(
    office: Office,
    jobs: Sequence[NewJob],
    calls: Sequence[tuple[str, Sequence[int]]],
    waits: Mapping[str, Sequence[Waited]],
    absorb: Absorb,
    *,
    now: int | None,
) -> list[Answer]:
    """The same by many calls, each made when the one before has been answered: while the server is at one, the next is written
    and what the last was answered is read.
    """
    answers: dict[int, Answer] = {}
    asked: asyncio.Task[Any] | None = None
    last: tuple[str, Sequence[int]] = ("", ())
    try:
        for queue, places in [*calls, last]:
            some = [jobs[place] for place in places]
            argument = newcomers(some, waits)
            rows = None if asked is None else await asked
            if some:
                asked = asyncio.create_task(office.call("enqueue", queue, argument, now=now))
                await asyncio.sleep(0)  # it is on its way
            if rows is not None:
                found = _read(office, last[0], [jobs[place] for place in last[1]], rows, absorb)
                answers |= zip(last[1], found, strict=True)
            last = queue, places
    except OnejobError as error:
        if answers:
            admit(error, len(answers), len(jobs))
        raise
    finally:
        if asked is not None and not asked.done():
            asked.cancel()
            await asyncio.wait((asked,))
    return [answers[place] for place in range(len(jobs))]


def _read(office: Office, queue: str, jobs: Sequence[NewJob], rows: Any, absorb: Absorb) -> list[Answer]:
    """What a call was answered, noted where it has to be."""
    answers: list[Answer] = []
    created: list[bytes] = []
    absorbed: list[Absorbed] = []
    for job, row in zip(jobs, rows, strict=True):
        answer = answer_of(row, job)
        answers.append(answer)
        if answer.outcome is Outcome.CREATED:
            created.append(id_to_bytes(job.id))
        elif job.plan is not None and answer.holder is not None:
            absorbed.append((job.plan.digest, answer.holder, answer.payload_differs))
    office.remember(created, queue)
    if absorbed:
        absorb(absorbed, queue)
    return answers


def enqueue_from_thread(office: Office, job: NewJob, absorb: Absorb, line: ThreadLine) -> Answer | None:
    """Accept a newcomer whose thread waits; see `Direct`."""
    if job.blockers:
        return None
    rows = office.call_from_thread(line, "enqueue", job.queue, newcomers([job], {}))
    if rows is None:
        return None
    return _read(office, job.queue, [job], rows, absorb)[0]


def _by_queue(jobs: Sequence[NewJob], waits: Mapping[str, Sequence[Waited]]) -> list[tuple[str, list[int]]]:
    """Queues and the newcomers for them, one after the other."""
    if waits:
        return _in_order(jobs, waits)
    by_queue: dict[str, list[int]] = {}
    for place, job in enumerate(jobs):
        by_queue.setdefault(job.queue, []).append(place)
    return list(by_queue.items())


def _in_order(jobs: Sequence[NewJob], waits: Mapping[str, Sequence[Waited]]) -> list[tuple[str, list[int]]]:
    """The same where some wait for others: nobody comes before whom he waits for, and nobody is judged by a holder that does
    not know yet whether it may wait, because another queue has to say so.
    """
    parts: list[tuple[str, list[int]]] = []
    unsure: set[bytes] = set()
    for place, job in enumerate(jobs):
        digest = None if job.plan is None else job.plan.digest
        if not parts or parts[-1][0] != job.queue or digest in unsure:
            parts.append((job.queue, []))
            unsure.clear()
        parts[-1][1].append(place)
        if digest is not None and any(queue != job.queue for _, queue, _ in waits.get(job.id, ())):
            unsure.add(digest)
    return parts

"""enqueue: newcomers go to their queues, each queue's in one script, which judges and writes them in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onejob.core.job import NewJob
from onejob.core.judge import Answer, Outcome
from onejob.sql.ids import id_to_bytes
from onejob.stores.valkey import blocking
from onejob.stores.valkey.forms import answer_of, newcomer
from onejob.stores.valkey.office import Office

Absorb = Callable[[str, bytes, str, bool], None]
"""Count a duplicate: its queue, its key's digest, the holder, and whether it came with other arguments."""


async def enqueue(office: Office, jobs: Sequence[NewJob], absorb: Absorb, now: int | None) -> list[Answer]:
    """Accept newcomers; see `Store.enqueue`."""
    waits = await blocking.waits(office, jobs, now)
    await office.register({job.queue for job in jobs})
    answers: dict[int, Answer] = {}
    for queue, places in _portions(jobs):
        rows = await office.call(
            "enqueue",
            queue,
            [newcomer(jobs[place], waits.get(jobs[place].id, ())) for place in places],
            now=now,
        )
        for place, row in zip(places, rows, strict=True):
            job, answer = jobs[place], answer_of(row, jobs[place])
            answers[place] = answer
            if answer.outcome is Outcome.CREATED:
                office.remember(id_to_bytes(job.id), queue)
            elif job.plan is not None and answer.holder is not None:
                absorb(queue, job.plan.digest, answer.holder, answer.payload_differs)
    return [answers[place] for place in range(len(jobs))]


def _portions(jobs: Sequence[NewJob]) -> list[tuple[str, list[int]]]:
    """Queues and the newcomers for them, one script each; where some wait for others, nobody comes before whom he waits for."""
    portions: list[tuple[str, list[int]]] = []
    if any(job.blockers for job in jobs):
        for place, job in enumerate(jobs):
            if not portions or portions[-1][0] != job.queue:
                portions.append((job.queue, []))
            portions[-1][1].append(place)
        return portions
    by_queue: dict[str, list[int]] = {}
    for place, job in enumerate(jobs):
        by_queue.setdefault(job.queue, []).append(place)
    return list(by_queue.items())

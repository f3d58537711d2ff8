"""Dead letters: made when a job fails for good, and gone once it is retried."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from onejob.core.dead_letter import copy_id, with_dead_letter
from onejob.core.job import JobId
from onejob.sql.ids import id_from_bytes, id_to_bytes
from onejob.stores.postgres.steps import Steps, ask
from onejob.stores.postgres.work import Work


class Letter(msgspec.Struct, frozen=True):
    """A dead letter, as far as a retry needs to know it."""

    id: str
    origin: str
    state: str
    queue: str
    origin_queue: str
    options: bytes | None


def bury(work: Work, jobs: Sequence[tuple[str, str]], now: int) -> Steps[None]:
    """Let a copy of each of these jobs, which have just failed, wait in the queue named with it."""
    if not jobs:
        return
    ids = [id for id, _ in jobs]
    queues = [queue for _, queue in jobs]
    options = {str(id): with_dead_letter(raw, None) for id, raw in (yield from ask("dead.options_of", ids))}
    copies = [copy_of(id) for id in ids]
    yield from ask("dead.bury", ids, copies, queues, [options.get(id) for id in ids], now)
    work.tell("work", queues)


def find(work: Work, id: str) -> Steps[Letter | None]:
    """The dead letter that has this id, or whose original has it."""
    for own, origin, *rest in (yield from ask("dead.find", id, copy_of(id))):
        return Letter(str(own), str(origin), *rest)
    return None


def exhume(work: Work, letter: Letter, now: int) -> Steps[None]:
    """Make an original again that is gone."""
    yield from ask("dead.exhume", letter.id, with_dead_letter(letter.options, letter.queue), now)
    work.tell("work", [letter.origin_queue])


def remove(work: Work, letter: Letter) -> Steps[None]:
    """Its original runs again."""
    yield from ask("dead.remove", letter.id)
    work.tell("done", [letter.queue])


def copy_of(id: str) -> JobId:
    """The id of a job's dead letter."""
    return id_from_bytes(copy_id(id_to_bytes(id)))

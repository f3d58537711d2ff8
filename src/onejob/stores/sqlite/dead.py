"""Dead letters: made when a job fails for good, and gone once it is retried."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from onejob.core.dead_letter import copy_id, with_dead_letter
from onejob.stores.sqlite.session import Session
from onejob.stores.sqlite.statements import statements


class Letter(msgspec.Struct, frozen=True):
    """A dead letter, as far as a retry needs to know it."""

    id: bytes
    origin: bytes
    state: str
    queue: str
    origin_queue: str
    options: bytes | None


def bury(session: Session, jobs: Iterable[tuple[bytes, str]], now: int) -> None:
    """Let a copy of each of these jobs, which have just failed, wait in the queue named with it."""
    sql = statements("dead")
    for id, queue in jobs:
        row = session.first(sql["options_of"], {"id": id})
        options = None if row is None else with_dead_letter(row[0], None)
        session.run(
            sql["bury"], {"id": id, "copy": copy_id(id), "queue": queue, "options": options, "now": now}
        )
        session.tell("work", [queue])


def find(session: Session, id: bytes) -> Letter | None:
    """The dead letter that has this id, or whose original has it."""
    row = session.first(statements("dead")["find"], {"id": id, "copy": copy_id(id)})
    return None if row is None else Letter(*row)


def exhume(session: Session, letter: Letter, now: int) -> None:
    """Make an original again that is gone."""
    options = with_dead_letter(letter.options, letter.queue)
    session.run(statements("dead")["exhume"], {"copy": letter.id, "options": options, "now": now})
    session.tell("work", [letter.origin_queue])


def remove(session: Session, letter: Letter) -> None:
    """Its original runs again."""
    session.run(statements("dead")["remove"], {"copy": letter.id})
    session.tell("done", [letter.queue])

"""Write what was judged: a statement for each kind of row, however many newcomers there are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from onejob.core.judge import Answer
from onejob.core.lane import LanePlan
from onejob.core.lifecycle import EXPIRED
from onejob.sql.lanes import stored_plan
from onejob.stores.postgres import blocking, lanes
from onejob.stores.postgres.ending import after_end, attach, end_queued, revoke_last, strand
from onejob.stores.postgres.holding import Kinds, Seen
from onejob.stores.postgres.judging import Ending, Judgement
from onejob.stores.postgres.newcomers import Changed, New
from onejob.stores.postgres.steps import Steps, ask
from onejob.stores.postgres.work import Work

Plans = dict[tuple[str, str], LanePlan]


def write(work: Work, seen: Seen, judged: Judgement, standing: Plans) -> Steps[list[Answer]]:
    """Write a judgement of which everything is locked; `standing` are the lanes' limits, and become those brought."""
    now, ending = seen.now, judged.ending
    if judged.changes:
        yield from _change(work, [judged.changes[id] for id in sorted(judged.changes)], now)
    if judged.hurried:
        yield from _tell(work, (yield from ask("enqueue.hurry_holders", now, sorted(judged.hurried))))
    if judged.made:
        yield from _make(work, seen, judged, now)
    if ending is not None:
        yield from _end(work, ending, judged, now)
    work.absorbed += judged.absorbed
    return (yield from _join_lanes(work, judged, standing))


def change_as_seen(work: Work, seen: Seen, changed: Changed) -> Steps[bool]:
    """Change one holder without a lane by itself; False if it is not as it was seen any more, or locked."""
    version = seen.versions[changed.holder.id]
    rows = yield from ask("enqueue.change_as_seen", seen.now, *changed.columns(), version)
    for _, queue, _ in rows:
        work.tell("work", [queue])
    return bool(rows)


def insert(
    now: int | None, rows: Sequence[tuple[object, ...]], numbers: list[int], kinds: Kinds, *, careful: bool
) -> Steps[None]:
    """Insert jobs, in order: the columns of each, and the kinds that they are of. Only if `careful`, ids may be there."""
    ids, *others = arrays(rows)
    shared = kinds.columns(0)
    statement = "enqueue.insert_jobs" if careful else "enqueue.insert_new_jobs"
    yield from ask(statement, now, ids, numbers if len(shared[0]) > 1 else None, *others, *shared)


def arrays(rows: Sequence[tuple[object, ...]]) -> list[list[object] | None]:
    """Rows as columns; None for one in which there is nothing."""
    columns = zip(*rows, strict=True)
    return [None if column.count(None) == len(rows) else list(column) for column in columns]


def _change(work: Work, changes: list[Changed], now: int) -> Steps[None]:
    """Change holders, sorted by id."""
    columns = [list(column) for column in zip(*[one.columns() for one in changes], strict=True)]
    yield from _tell(work, (yield from ask("enqueue.change_holders", now, *columns)))


def _tell(work: Work, rows: Iterable[tuple[object, str, str | None]]) -> Steps[None]:
    """Holders, whose queue and lane are these, may be ready now, or not any more."""
    places = {(queue, lane) for _, queue, lane in rows}
    work.tell("work", {queue for queue, _ in places})
    if any(lane is not None for _, lane in places):
        yield from lanes.touch(work, sorted(place for place in places if place[1] is not None))


def _make(work: Work, seen: Seen, judged: Judgement, now: int) -> Steps[None]:
    """Write the new jobs, their keys, and whom they wait for."""
    chains = judged.awaited()
    kinds = Kinds()
    numbers = [kinds.number(new.kind(now)) for new in judged.made]
    yield from insert(now, [new.columns() for new in judged.made], numbers, kinds, careful=seen.careful)
    work.tell("work", {new.job.queue for new in judged.made})
    keys = [new.key_columns() for digest, new in judged.takers.items() if seen.ours.get(digest) != new.job.id]
    if keys:
        yield from ask("enqueue.take_keys", *arrays(keys))
    waiting = [new for new in judged.made if new.waits.chains]
    if waiting:
        yield from blocking.put_many(work, [(new.job.id, new.waits, new.job.runs_anyway) for new in waiting])
    for new in waiting:
        if new.waits.reason is not None:
            yield from after_end(work, (yield from strand(work, new.job.id, new.waits.reason, now)), now)
    if chains:
        yield from attach(work, sorted(chains), now)


def _end(work: Work, ending: Ending, judged: Judgement, now: int) -> Steps[None]:
    """End a holder, or the chain that it began. Its successor has the key already, and is let go if it waits for that."""
    decision, holder = ending.decision, ending.holder
    if decision.expire_holder:
        yield from end_queued(work, holder.id, EXPIRED, now)
    if decision.end_holder:
        yield from end_queued(work, holder.id, _superseded(judged.made[0]), now)
    if decision.flag_holder:
        [(last,)] = yield from ask("enqueue.last_of_chain", holder.id)
        if last is not None:
            yield from revoke_last(work, str(last), _superseded(judged.made[0]), now)


def _superseded(new: New) -> str:
    return f"superseded by job {new.job.id}"


def _join_lanes(work: Work, judged: Judgement, standing: Plans) -> Steps[list[Answer]]:
    """The answers, once the lanes of new jobs have the limits that these bring."""
    answers = judged.answers
    touches: dict[tuple[str, str], tuple[str, str, bytes | None, bool]] = {}
    for new in judged.made:
        plan = new.job.lane
        if plan is None:
            continue
        place = (new.job.queue, plan.key)
        former = standing.get(place)
        if former != plan:
            standing[place] = plan
            touches[place] = (*place, stored_plan(plan), True)
        else:
            touches.setdefault(place, (*place, None, False))
        if former is not None and former != plan:
            answers[new.index] = msgspec.structs.replace(answers[new.index], former_lane=former)
    if touches:
        yield from lanes.touch_with_plans(work, list(touches.values()))
    return answers

"""Schedules as people hold them: declared in code, put at run time, listed, paused, run now and removed.

`app.schedule(…)` declares one; `app.schedules` is the handle for everything else. What is stored of one, and what
becomes of it, is `core.schedule`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from onejob.core import schedule as records
from onejob.core.errors import DuplicateJob, InvalidOption, StoreBusy, UnknownSchedule, WrongCall, shown
from onejob.core.job import JobId
from onejob.core.judge import Answer, Outcome
from onejob.core.options import check_name, whole_number
from onejob.core.schedule import CatchUp, Definition, Schedule, Template
from onejob.core.timing import Cron, Every, Timing, as_datetime
from onejob.ids import new_id
from onejob.keys import near
from onejob.plans import Call
from onejob.store import JobStore, Transaction

if TYPE_CHECKING:
    from onejob.client import Client

TRIES = 10
MOST_UPCOMING = 1_000


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it stands: a snapshot. Instants are milliseconds, as in a job; `next_run` and `last_run` datetimes."""

    id: str
    timing: Cron | Every | None
    """None if this process cannot read it: `problem` says why."""
    task: str
    queue: str
    catch_up: CatchUp
    declared: bool
    """It comes from the code of an app, and is put again whenever one of its workers starts."""
    paused: bool
    since: int
    """When it was first put."""
    next: int
    """The slot that is due next, unless it is paused."""
    last: int | None
    """The last slot that was not missed, the job that stands for it, and what became of the call."""
    job: JobId | None
    outcome: Outcome | None
    fired: int
    """How many slots that were so far; one that a key kept counts, too."""
    problem: str | None = None

    @property
    def next_run(self) -> dt.datetime | None:
        """When it is due next, in UTC; None while it is paused."""
        return None if self.paused else as_datetime(self.next)

    @property
    def last_run(self) -> dt.datetime | None:
        """The last slot that was not missed, in UTC."""
        return None if self.last is None else as_datetime(self.last)

    def upcoming(self, number: int) -> list[dt.datetime]:
        """The next slots, in UTC, as they would come if it were not paused."""
        whole_number("upcoming(…)", number, 0, MOST_UPCOMING)
        if self.timing is None:
            return []
        slots, slot = list[int](), self.next
        while len(slots) < number:
            slots.append(slot)
            slot = self.timing.after(slot, self.since)
        return [as_datetime(slot) for slot in slots]


class Schedules:
    """The schedules in an app's store."""

    __slots__ = ("_client",)

    def __init__(self, client: Callable[[], Client]) -> None:
        self._client = client

    def put(self, id: str, timing: Timing, job: Call[Any], *, catch_up: CatchUp = "one") -> ScheduleView:
        """Put a schedule, or change the one of that id; from then on it stands in the store.

        The same timing leaves the next slot alone; another one counts from now. `job` is a call made with
        `task.job(…)`. See `App.schedule`.
        """
        return self._client().call(
            self.aput(id, timing, job, catch_up=catch_up), instead="await app.schedules.aput(…)"
        )

    async def aput(
        self, id: str, timing: Timing, job: Call[Any], *, catch_up: CatchUp = "one"
    ) -> ScheduleView:
        """As `put`, in async code."""
        wanted = defined(id, timing, job, catch_up)
        store = self._outside_of_transactions()
        return view((await put_all(store, {id: wanted}, declared=False))[id])

    def list(self) -> list[ScheduleView]:
        """All schedules, by id."""
        return self._client().call(self.alist(), instead="await app.schedules.alist()")

    async def alist(self) -> list[ScheduleView]:
        """As `list`, in async code."""
        return [view(schedule) for schedule in await self._client().store.schedules()]

    def get(self, id: str) -> ScheduleView | None:
        """One schedule; None if there is none of that id."""
        return self._client().call(self.aget(id), instead="await app.schedules.aget(…)")

    async def aget(self, id: str) -> ScheduleView | None:
        """As `get`, in async code."""
        found = await self._client().store.schedules([check_name("Schedule", id)])
        return view(found[0]) if found else None

    def remove(self, id: str) -> bool:
        """Remove a schedule, and leave its jobs alone; False if there is none.

        One that is declared in code comes back with the next worker that starts: pause it, or remove it there first.
        """
        return self._client().call(self.aremove(id), instead="await app.schedules.aremove(…)")

    async def aremove(self, id: str) -> bool:
        """As `remove`, in async code."""
        return await self._outside_of_transactions().drop_schedule(check_name("Schedule", id))

    def pause(self, id: str) -> ScheduleView:
        """Let its slots go by until it is resumed, whatever restarts in between."""
        return self._client().call(self.apause(id), instead="await app.schedules.apause(…)")

    async def apause(self, id: str) -> ScheduleView:
        """As `pause`, in async code."""
        return await self._set_paused(id, paused=True)

    def resume(self, id: str) -> ScheduleView:
        """Let it fire again, from its next slot on."""
        return self._client().call(self.aresume(id), instead="await app.schedules.aresume(…)")

    async def aresume(self, id: str) -> ScheduleView:
        """As `resume`, in async code."""
        return await self._set_paused(id, paused=False)

    def run(self, id: str) -> JobId:
        """Make a job of it now, besides its slots; returns the job's id.

        If the schedule's job was made with `using(unique=…)`, that may be the holder's; a policy that says *raise*
        raises `DuplicateJob`.
        """
        return self._client().call(self.arun(id), instead="await app.schedules.arun(…)")

    async def arun(self, id: str) -> JobId:
        """As `run`, in async code."""
        answer = await run_now(self._client().store, id)
        if answer.outcome is Outcome.REJECTED:
            raise DuplicateJob(
                f"Schedule {id!r} made no job: {answer.id} ({answer.state}) holds its key, and the policy of its job "
                "says raise. Wait for that to end, or release the key.",
                holder=answer.id,
            )
        return answer.id

    def _outside_of_transactions(self) -> JobStore:
        """The store, if it can be written to: an open transaction holds its writer, and would be waited for in vain."""
        store = self._client().store
        if _open_transaction(store) is not None:
            raise WrongCall(
                "Schedules cannot be put, paused, resumed or removed inside app.transaction(): do it before or after the "
                "block. `run` can be part of it."
            )
        return store

    async def _set_paused(self, id: str, *, paused: bool) -> ScheduleView:
        store = self._outside_of_transactions()
        for _ in range(TRIES):
            found = await on_record(store, id)
            if not paused:
                _definition(found)
            changed = records.pause(found, paused=paused, now=await store.time())
            if changed is None or (await store.put_schedules([changed]))[0]:
                return view(changed or found)
        raise _contended(id)


def defined(id: str, timing: Timing, job: Call[Any], catch_up: CatchUp) -> Definition:
    """What a user says of a schedule, checked."""
    check_name("Schedule", id)
    if not isinstance(timing, (Cron, Every)):
        raise InvalidOption(
            f'Schedule {id!r} needs Cron("0 8 * * *", tz="Europe/Paris") or Every(300), not {shown(timing)}.'
        )
    if not isinstance(job, Call):
        raise InvalidOption(
            f"Schedule {id!r} needs a call made with task.job(…), as in report.job(kind='daily'), not {shown(job)}."
        )
    if catch_up not in ("one", "none"):
        raise InvalidOption(
            f'catch_up=… must be "one" (slots that were missed become one job) or "none", not {shown(catch_up)}.'
        )
    return Definition(timing, _template(id, job), catch_up)


async def put_all(
    store: JobStore, wanted: Mapping[str, Definition], *, declared: bool
) -> dict[str, Schedule]:
    """Put definitions over what is stored, each by compare-and-set, until all stand; returns them as they were then."""
    left: dict[str, Definition] = dict(wanted)
    stand: dict[str, Schedule] = {}
    for _ in range(TRIES):
        if not left:
            return stand
        found = {schedule.id: schedule for schedule in await store.schedules([*left])}
        now = await store.time()
        made = {
            id: records.put(found.get(id), id, definition, declared=declared, now=now)
            for id, definition in left.items()
        }
        changed = [schedule for schedule in made.values() if schedule is not None]
        written = await store.put_schedules(changed) if changed else []
        _note_put(schedule for schedule, done in zip(changed, written, strict=True) if done)
        lost = {schedule.id for schedule, done in zip(changed, written, strict=True) if not done}
        stand |= {id: schedule or found[id] for id, schedule in made.items() if id not in lost}
        left = {id: definition for id, definition in left.items() if id in lost}
    raise _contended(", ".join(left))


async def on_record(store: JobStore, id: str) -> Schedule:
    """The schedule of that id, or an error that names a near one."""
    found = await store.schedules([check_name("Schedule", id)])
    if found:
        return found[0]
    known = [schedule.id for schedule in await store.schedules()]
    hint = near(id, known)
    raise UnknownSchedule(f"There is no schedule {shown(id)}: {hint}")


async def run_now(store: JobStore, id: str) -> Answer:
    """Ask for a job of a schedule, besides its slots."""
    template = _definition(await on_record(store, id)).template
    transaction = _open_transaction(store)  # as with any enqueue
    enqueue = store.enqueue if transaction is None else transaction.enqueue
    [answer] = await enqueue([template.job(new_id(), id, None)])
    return answer


def view(schedule: Schedule) -> ScheduleView:
    """A stored schedule as people see it."""
    problem = readable(schedule)
    definition = None if problem is not None else schedule.read()
    return ScheduleView(
        id=schedule.id,
        timing=None if definition is None else definition.timing,
        task="" if definition is None else definition.template.task,
        queue="" if definition is None else definition.template.queue,
        catch_up="one" if definition is None else definition.catch_up,
        declared=schedule.declared,
        paused=schedule.paused,
        since=schedule.since,
        next=schedule.next,
        last=schedule.last,
        job=schedule.job,
        outcome=schedule.outcome,
        fired=schedule.fired,
        problem=problem,
    )


def readable(schedule: Schedule) -> str | None:
    """Why this process cannot read a stored schedule, such as a time zone that it does not know; None if it can."""
    try:
        schedule.read()
    except msgspec.MsgspecError as error:
        return str(error)
    return None


def has_vanished(one: ScheduleView, declared: Collection[str], tasks: Collection[str]) -> bool:
    """True for one that some code declared and this app's no longer does; with another's task, it is another's."""
    return one.declared and one.id not in declared and one.task in tasks


def _template(id: str, call: Call[Any]) -> Template:
    options = call.planner.options
    if options.at is not None or options.blockers:
        what = "at=…" if options.at is not None else "blockers=…"
        raise InvalidOption(
            f"{what} names one moment, and schedule {id!r} makes many jobs: leave it out of using(…)."
        )
    return Template(
        queue=options.queue,
        task=call.task,
        payload=call.payload,
        # A task's own policy is for calls that people make; slots are told apart by their time.
        plan=call.plan if options.policy_of_call else None,
        priority=options.priority,
        delay=options.delay,
        expires=options.expires,
        max_crashes=options.max_crashes,
        options=call.planner.stored_options,
        lane=call.lane,
    )


def _definition(schedule: Schedule) -> Definition:
    if (problem := readable(schedule)) is not None:
        raise InvalidOption(f"Schedule {schedule.id!r} cannot be read here: {problem}; put it again.")
    return schedule.read()


def _open_transaction(store: JobStore) -> Transaction | None:
    from onejob.transactions import open_transaction  # late: asyncio comes with it, and declaring needs none

    return open_transaction(store)


def _note_put(schedules: Iterable[Schedule]) -> None:
    import logging  # late: whoever only declares a schedule has no need of it

    from onejob.logs import event

    log = logging.getLogger("onejob.schedules")
    for schedule in schedules:
        timing, due = schedule.read().timing, f"{as_datetime(schedule.next):%Y-%m-%d %H:%M:%S} UTC"
        text = f"schedule {schedule.id}: {timing}, {'paused' if schedule.paused else f'next {due}'}"
        event(log, logging.INFO, "schedule.put", text, schedule=schedule.id, next=schedule.next)


def _contended(ids: str) -> StoreBusy:
    return StoreBusy(f"Schedule {ids} was changed by others again and again, {TRIES} times: try again.")

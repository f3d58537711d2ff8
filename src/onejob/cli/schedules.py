"""`onejob schedules`: what is due when, and what became of it; pausing, running and removing a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from onejob.app import App
from onejob.cli.amend import yes_option
from onejob.cli.output import (
    ABSORBED,
    NothingMatched,
    confirm,
    emit,
    emit_json,
    emit_json_lines,
    emit_table,
    end,
    example,
    json_option,
    on_terminal,
    printable,
    say,
)
from onejob.cli.source import Source, refuse_options, store_options
from onejob.cli.view import distance, instant, moment
from onejob.core.errors import UnknownSchedule
from onejob.core.job import State
from onejob.core.judge import Outcome
from onejob.core.timing import as_datetime
from onejob.schedules import MOST_UPCOMING, ScheduleView, has_vanished, on_record, run_now, view
from onejob.store import JobStore

COLUMNS: Final = (
    "schedule",
    "timing",
    "runs",
    "next",
    "last",
    "became",
    "last job",
    "fired",
    "declared",
    "note",
)
_id_argument = click.argument("id")


@click.group(
    invoke_without_command=True,
    epilog=example(
        "onejob schedules --url sqlite:///jobs.db", "onejob schedules --upcoming 10 --url sqlite:///jobs.db"
    ),
)
@store_options
@click.option(
    "--upcoming",
    metavar="N",
    type=click.IntRange(1, MOST_UPCOMING),
    help="Print the next N runs of all schedules instead, in order.",
)
@json_option
@click.pass_context
def schedules(context: click.Context, source: Source, upcoming: int | None, as_json: bool) -> None:
    """List schedules, pause, run or remove them.

    When each is due, which task it runs, its next and its last run, and what became of that. The jobs of one:
    onejob jobs schedule:daily-report
    """
    if context.invoked_subcommand is not None:
        refuse_options(context, "ID --json")
        return

    async def look(app: App) -> None:
        found = await app.schedules.alist()
        if missing := sorted(app.declared_schedules.keys() - {one.id for one in found}):
            say(f"Declared and not put yet, which a worker does when it starts: {', '.join(missing)}.")
        if not found:
            raise NothingMatched("There are no schedules in the store.")
        if upcoming is None:
            await _show(app, found, as_json)
        else:
            _show_upcoming(found, upcoming, await app.store.time(), as_json)

    source.run(look)


@schedules.command(epilog=example("onejob schedules remove daily-report --yes --url sqlite:///jobs.db"))
@_id_argument
@store_options
@yes_option
@json_option
def remove(source: Source, id: str, yes: bool, as_json: bool) -> None:
    """Remove a schedule; its jobs stay.

    Asks. One that is declared in code comes back with the next worker of its app: take it out there, or pause it.
    """

    async def act(app: App) -> None:
        found = await _found(app, id)
        confirm(f"Remove schedule {found.id} ({_timing(found)}, {printable(found.task)})?", yes=yes)
        removed = await app.schedules.aremove(id)
        if not removed:
            raise NothingMatched(f"Schedule {id} has been removed by somebody else.")
        if sentence := _comes_back(found, None if source.target is None or source.url is not None else app):
            say(sentence)
        emit_json({"schedule": id, "removed": True}) if as_json else emit(f"{id}: removed")

    source.run(act)


@schedules.command(epilog=example("onejob schedules pause daily-report --url sqlite:///jobs.db"))
@_id_argument
@store_options
@json_option
def pause(source: Source, id: str, as_json: bool) -> None:
    """Let a schedule's slots go by.

    Until it is resumed, whatever is started or deployed in between.
    """

    async def act(app: App) -> None:
        already = (await _found(app, id)).paused
        now = await app.schedules.apause(id)
        await _tell(app.store, now, "was paused already" if already else "paused", as_json)

    source.run(act)


@schedules.command(epilog=example("onejob schedules resume daily-report --url sqlite:///jobs.db"))
@_id_argument
@store_options
@json_option
def resume(source: Source, id: str, as_json: bool) -> None:
    """Let a paused schedule fire again.

    From its next slot on: those that came in the pause are let go.
    """

    async def act(app: App) -> None:
        paused = (await _found(app, id)).paused
        now = await app.schedules.aresume(id)
        due = moment(now.next, await app.store.time())
        await _tell(app.store, now, f"{'resumed' if paused else 'was not paused'}; next {due}", as_json)

    source.run(act)


@schedules.command(epilog=example("onejob schedules run daily-report --url sqlite:///jobs.db"))
@_id_argument
@store_options
@json_option
def run(source: Source, id: str, as_json: bool) -> None:
    """Make a job of a schedule now.

    Besides its slots, which stay as they are. Exit code 4: no new job, because another one holds its key.
    """

    async def act(app: App) -> None:
        await _found(app, id)
        answer = await run_now(app.store, id)
        if as_json:
            emit_json({"schedule": id, "job": answer.id, "outcome": answer.outcome})
        elif answer.outcome is Outcome.CREATED:
            emit(f"{id}: created {answer.id}")
        else:
            emit(f"{id}: {answer.outcome}, {answer.id} holds its key ({answer.state})")
        if answer.outcome is not Outcome.CREATED:
            end(ABSORBED)

    source.run(act)


def _comes_back(removed: ScheduleView, app: App | None) -> str | None:
    """What to say of one that code declares, or did once; `app` is None if only its store was named."""
    remedy = f"take it out there, or let it stand and pause it with onejob schedules pause {removed.id}."
    if app is not None and removed.id in app.declared_schedules:
        return f"It is declared in code, and comes back with the next worker that starts with that: {remedy}"
    # Of a schedule whose task this app does not have, another app's code may know.
    if removed.declared and (app is None or removed.task not in app.tasks):
        return f"If it is still declared in code, it comes back with the next worker that starts: {remedy}"
    return None


async def _found(app: App, id: str) -> ScheduleView:
    try:
        return view(await on_record(app.store, id))
    except UnknownSchedule as error:
        raise NothingMatched(str(error)) from None


async def _show(app: App, found: list[ScheduleView], as_json: bool) -> None:
    states = await _last_states(app.store, found)
    if as_json:
        emit_json_lines(_data(one, states) for one in found)
        return
    now = await app.store.time()
    emit_table(COLUMNS, [(*_row(one, states, now), _note(one, app)) for one in found])


def _show_upcoming(found: list[ScheduleView], number: int, now: int, as_json: bool) -> None:
    """The runs of all that fire, merged; of slots that have passed, only the last becomes a job."""
    runs = sorted((slot, one.id, one.task) for one in found for slot in _runs(one, number, now))[:number]
    if not runs:
        raise NothingMatched("No schedule is going to fire: all are paused, or cannot be read here.")
    if as_json:
        emit_json_lines({"slot": instant(slot), "schedule": id, "task": task} for slot, id, task in runs)
        return
    emit_table(("slot", "schedule", "runs"), [(_when(slot, now), id, task) for slot, id, task in runs])


def _runs(one: ScheduleView, number: int, now: int) -> list[int]:
    if one.paused or one.timing is None:
        return []
    slot = one.next if one.next > now else one.timing.latest(now, one.next, one.since)
    slots = [slot]
    while len(slots) < number:
        slots.append(slot := one.timing.after(slot, one.since))
    return slots


async def _tell(store: JobStore, now: ScheduleView, sentence: str, as_json: bool) -> None:
    if as_json:
        emit_json(_data(now, await _last_states(store, [now])))
    else:
        emit(f"{now.id}: {sentence}")


async def _last_states(store: JobStore, found: list[ScheduleView]) -> Mapping[str, State]:
    """How the last jobs of schedules stand; one that has been pruned is not there."""
    jobs = [await store.job(one.job) for one in found if one.job is not None]
    return {job.id: job.state for job in jobs if job is not None}


def _data(one: ScheduleView, states: Mapping[str, State]) -> dict[str, Any]:
    return {
        "schedule": one.id,
        "timing": None if one.timing is None else str(one.timing),
        "task": one.task,
        "queue": one.queue,
        "next": None if one.paused else instant(one.next),
        "last": instant(one.last),
        "last_job": one.job,
        "last_outcome": one.outcome,
        "last_job_state": None if one.job is None else states.get(one.job, "pruned"),
        "fired": one.fired,
        "declared": one.declared,
        "paused": one.paused,
        "catch_up": one.catch_up,
        "since": instant(one.since),
        "problem": one.problem,
    }


def _row(one: ScheduleView, states: Mapping[str, State], now: int) -> tuple[object, ...]:
    next_run, last_run = _when(None if one.paused else one.next, now), _when(one.last, now)
    declared = "declared" if one.declared else "put"
    became = _became(one, states)
    return one.id, _timing(one), one.task, next_run, last_run, became, one.job, one.fired, declared


def _note(one: ScheduleView, app: App) -> str:
    """What is unusual about it."""
    if one.problem is not None:
        return f"cannot be read: {one.problem}"
    if has_vanished(one, app.declared_schedules, app.tasks):
        return "paused, no longer in the code" if one.paused else "no longer in the code"
    return "paused" if one.paused else ""


def _became(one: ScheduleView, states: Mapping[str, State]) -> str:
    """How its last job stands; or what was done instead of making one."""
    if one.job is None:
        return ""
    if one.outcome is not Outcome.CREATED:
        return str(one.outcome)
    return str(states.get(one.job, "pruned"))


def _when(slot: int | None, now: int) -> str | None:
    """A slot as a cell: for people to the second, and how far away."""
    if slot is None or not on_terminal():
        return instant(slot)
    return f"{as_datetime(slot):%Y-%m-%d %H:%M:%S}Z ({distance(slot, now)})"


def _timing(one: ScheduleView) -> str:
    return "?" if one.timing is None else str(one.timing)

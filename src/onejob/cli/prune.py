"""`onejob prune`: removes ended jobs past their retention, as workers do now and then, at once."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from onejob.app import App
from onejob.cli.amend import SAMPLES, ask, progress, yes_option
from onejob.cli.output import NothingMatched, emit, emit_json, example, json_option, say
from onejob.cli.source import Source, store_options
from onejob.core.filter import JobFilter, span
from onejob.core.job import Job, State
from onejob.core.span import counted
from onejob.store import Pruned, Retention

BATCH = 1_000


@click.command(epilog=example("onejob prune --completed 1h --failed 7d --yes --url sqlite:///jobs.db"))
@store_options
@click.option(
    "--completed", metavar="SPAN", help="How long completed jobs stay.  [default: as the app says, or 1d]"
)
@click.option(
    "--failed", metavar="SPAN", help="How long failed jobs stay.  [default: as the app says, or 7d]"
)
@click.option(
    "--revoked", metavar="SPAN", help="How long revoked jobs stay.  [default: as the app says, or 1d]"
)
@yes_option
@json_option
def prune(source: Source, yes: bool, as_json: bool, **spans: str | None) -> None:
    """Remove ended jobs that have been kept long enough.

    Workers do this by themselves; here it is done at once. Shows what would go and asks. Forgotten keys and
    workers long dead go too; keys that are still remembered stay.
    """
    given = {name: span(f"--{name}", text) for name, text in spans.items() if text is not None}

    async def act(app: App) -> None:
        retention: Retention = msgspec.structs.replace(app.retention.stored(), **given)
        count, samples = await _outlived(app, retention)
        if count:
            ask("Remove", count, samples, yes=yes)
        removed = await _prune(app, retention, count)
        if as_json:
            emit_json(
                {name: number for name, number in msgspec.structs.asdict(removed).items() if name != "more"}
            )
        elif removed != Pruned():
            emit(
                f"removed {counted(removed.jobs, 'job')}, {counted(removed.keys, 'forgotten key')}, "
                f"{counted(removed.workers, 'dead worker')}"
            )
        if count:
            left, _ = await _outlived(app, retention)
            _account(count, left, removed.jobs)
        if removed == Pruned():
            raise NothingMatched("Nothing has been kept long enough to go.")

    source.run(act)


def _account(announced: int, left: int, removed: int) -> None:
    """Say where more or fewer went than were announced, one by one: a chain goes as a whole, by its last job."""
    if left:
        say(
            f"{counted(left, 'job')} of the {announced} stayed: of chains that go on or ended otherwise, or that others wait for."
        )
    if (others := removed - announced + left) > 0:
        say(f"{counted(others, 'job')} more went, of the same chains.")


async def _outlived(app: App, retention: Retention) -> tuple[int, list[Job]]:
    """How many ended jobs are past their retention, and some of them."""
    count = 0
    samples: list[Job] = []
    for state, kept in _kept(retention):
        wanted = JobFilter(states=frozenset({state}), ended=kept)
        count += await app.store.count(wanted)
        samples += (await app.store.jobs(wanted, SAMPLES)).jobs
    return count, samples[:SAMPLES]


def _kept(retention: Retention) -> list[tuple[State, int]]:
    return [
        (State.COMPLETED, retention.completed),
        (State.FAILED, retention.failed),
        (State.REVOKED, retention.revoked),
    ]


async def _prune(app: App, retention: Retention, count: int) -> Pruned:
    total: dict[str, Any] = {"jobs": 0, "keys": 0, "workers": 0, "expired": 0}
    with progress("Remove", count) as advance:
        while True:
            removed = await app.store.prune(retention, BATCH)
            for name in total:
                total[name] += getattr(removed, name)
            advance(removed.jobs)
            if not removed.more:
                return Pruned(**total)

"""The proof of `onejob demo`, counted in the demo's own table: one effect per job, and the right ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onejob.app import App
from onejob.cli.demo_storm import DOCUMENTS, PARTS, SESSIONS, TEXT, USERS, VERSIONS, WEBHOOKS, Tally
from onejob.core.job import JobId, State


@dataclass(frozen=True, slots=True)
class Claim:
    """One line of the proof."""

    holds: bool
    text: str


async def prove(app: App, tally: Tally, lost: JobId | None, probes: Sequence[JobId]) -> list[Claim]:
    """Compare what was asked with what has happened.

    `lost` is the job whose worker was killed, `probes` what each call got that asked for it meanwhile.
    """
    rows = await query(app, "select job, kind, detail from effects order by rowid")
    effects = [row for row in rows if row[1] not in ("part", "total")]
    jobs = Counter(job for job, _, _ in effects)
    asked, absorbed, created = tally.asked.total(), tally.absorbed.total(), tally.created
    return [
        Claim(
            created == tally.named and asked == len(created) + absorbed,
            f"{asked} calls made {len(created)} jobs; {absorbed} were absorbed, each told which job stands for it",
        ),
        Claim(
            set(jobs) == created and jobs.total() == len(created),
            f"{jobs.total()} effects for {len(created)} jobs: one each, none missing, none twice",
        ),
        *_as_meant([(kind, detail) for _, kind, detail in effects]),
        _added_up([(kind, detail) for _, kind, detail in rows]),
        await _survived(app, lost, probes),
    ]


async def query(app: App, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Ask the demo's own tables."""
    async with app.transaction() as tx:
        return await tx.execute(statement, parameters)


def _as_meant(effects: list[tuple[str, str]]) -> list[Claim]:
    """Whether the right things happened, not only the right number of them."""
    times, of_kind = Counter(effects), Counter(kind for kind, _ in effects)
    last = dict(detail.split(" ", 1) for kind, detail in effects if kind in ("edit", "search"))
    once = all(
        of_kind[kind] == size and all(times[kind, f"{name}-{number}"] == 1 for number in range(size))
        for kind, name, size in (("click", "user", USERS), ("webhook", "event", WEBHOOKS))
    )
    newest = all(last.get(f"document-{number}") == f"v{VERSIONS}" for number in range(DOCUMENTS))
    whole = all(last.get(f"session-{number}") == TEXT for number in range(SESSIONS))
    return [
        Claim(once, f"{USERS} users were welcomed and {WEBHOOKS} webhooks handled, each once"),
        Claim(
            newest and whole,
            f"{DOCUMENTS} documents are saved as last edited; {SESSIONS} searches ran for what was typed last",
        ),
    ]


def _added_up(effects: list[tuple[str, str]]) -> Claim:
    """Whether every part was counted once, and all of them before they were added up."""
    report = [pair for pair in effects if pair[0] in ("part", "total")]
    parts, total = report[:-1], str(sum(range(PARTS)))
    return Claim(
        Counter(parts) == Counter(("part", str(number)) for number in range(PARTS))
        and report[-1:] == [("total", total)],
        f"{PARTS} parts of a report were counted, each once, and the job that waited for them added up {total}",
    )


async def _survived(app: App, lost: JobId | None, probes: Sequence[JobId]) -> Claim:
    job = None if lost is None else await app.ajob(lost)
    if job is None:
        return Claim(False, "no worker was killed in the middle of its work")
    once = await query(app, "select count(*) from effects where job = ?", job.id) == [(1,)]
    kept = sum(id == job.id for id in probes)
    resumed = job.state is State.COMPLETED and job.attempt > 1 and job.crashes > 0 and job.failures == 0
    return Claim(
        resumed and once and bool(probes) and kept == len(probes),
        f"the killed worker's job took effect once, in attempt {job.attempt}; {kept} of {len(probes)} calls "
        "meanwhile were kept by its key",
    )

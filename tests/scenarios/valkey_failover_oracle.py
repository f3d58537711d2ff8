"""What a failover may cost, and what it may not: the histories of a soak, held against what the last primary has.

Replication is asynchronous, so what a primary acknowledged and had not sent is gone with it: calls, starts and ends. That
is counted. While one primary reigns everything is as strict as ever, and so is all that is on record in the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import valkey_oracle as strict
from servers.layout import Reader
from servers.layout_checks import inspect_layout, problems_between, problems_inside
from valkey_oracle import ENDED_WELL, FOREVER, Event, Job, Run, ValkeyResult
from valkey_soak_app import GRAVES

PARTS_OF_CHAINS = "jcrebOZaAghf"
"""The letters of what jobs of chains, and whoever waits for chains, have on record; see `records.lua`."""
OF_KEYS = "kKn"
CUT, OVER = "cut", "over"
"""Events of a failover: before anything is done to the primary, and when another has answered all."""


@dataclass
class AfterFailovers(ValkeyResult):
    """A soak's result, and what is missing of what was acknowledged, which is no violation."""

    failovers: int = 0
    lost_calls: int = 0
    """Acknowledged, and nowhere to be found."""
    lost_starts: int = 0
    """Runs whose start nobody knows of any more: their jobs ran again beside them or after them, or are gone."""
    beside: int = 0
    """Of these, the ones that still ran when another began the same job."""


@dataclass
class Torn(AfterFailovers):
    """The same where what is between queues may tear: one fell back and the other did not, because it is on another node, or
    because a message was under way when its sender fell back."""

    stuck: int = 0
    """Jobs that wait for what another queue has forgotten, or failed for it."""
    torn: int = 0
    """What a queue knows of another that has forgotten it."""
    cut_short: int = 0
    """Of these, chains whose next job is gone: they are never over, and hold their keys."""
    left: int = 0
    """Jobs of chains that lack a part, which are neither pruned nor deleted."""

    def note_left_over(self, found: list[str]) -> None:
        """Parts of chains may be left, with the keys of those that are cut short, but no place in a line or lane."""
        for one in found:
            _, count, _, letter, *_rest = one.split()
            is_held = letter in OF_KEYS and int(count) <= self.cut_short
            if letter not in PARTS_OF_CHAINS and not is_held:
                self.leaks.append(one)
            elif letter == "j":
                self.left += int(count)


@dataclass
class Reign:
    """The time in which one primary answered, and nobody doubted that."""

    since: int
    until: int
    runs: list[Run] = field(default_factory=list[Run])
    calls: list[Event] = field(default_factory=list[Event])


def reigns_of(history: Iterable[Event]) -> list[Reign]:
    found = [Reign(0, FOREVER)]
    for event in history:
        if event["event"] == CUT:
            found[-1].until = event["at"]
        elif event["event"] == OVER:
            found.append(Reign(event["at"], FOREVER))
    return found


def judged(folder: Path, url: str) -> AfterFailovers:
    """Hold everything against everything, once nobody writes any more."""
    history = strict.events(folder)
    jobs = strict.jobs_of(Reader(url).read())
    calls = [event for event in history if event["event"] == "call"]
    runs, _ = strict.runs_of(history)
    last = {run.job: run for run in runs if run.job in jobs and run.attempt == jobs[run.job].head.attempt}
    starts = [*starts_of(history)]
    result = AfterFailovers(
        sum(event["number"] for event in history if event["event"] == "attempt"),
        len(calls),
        len(jobs),
        len(starts),
        crashes=sum(job.head.crashes for job in jobs.values()),
    )
    reigns = reigns_of(history)
    for reign in reigns:
        reign.runs = [run for run in starts if reign.since <= run.begin < reign.until]
        reign.calls = [call for call in calls if reign.since <= call["began"] and call["at"] < reign.until]
        judge_reign(result, reign)
    unsure = {event["subject"] for event in history if event["event"] == "unsure"}
    now = reigns[-1]
    result.lost += [f"{call} is not on record" for call in now.calls if call["id"] not in jobs]
    result.lost += _unended(jobs)
    result.stale = [*strict._stale(now.calls, runs, unsure)]
    result.early = [*strict._early(now.runs, last)]
    result.late = [*strict._late(jobs)]
    result.chains = [*strict._chains(jobs, last)]
    result.letters = [*strict._letters(jobs)]
    result.leaks = inspect_layout(url)
    result.failovers = len(reigns) - 1
    result.lost_calls = sum(call["id"] not in jobs for call in calls)
    known = {(id, attempt) for id, job in jobs.items() for attempt in range(1, job.head.attempt + 1)}
    result.lost_starts = len(starts) - len({(run.job, run.attempt) for run in starts} & known)
    result.beside = sum(1 for _ in _at_once(starts))
    return result


def judged_with_tears(folder: Path, url: str) -> Torn:
    """The same where what is between queues may tear."""
    result, queues = Torn(**vars(judged(folder, url))), Reader(url).read()
    jobs = strict.jobs_of(queues)
    stuck = [*_unended(jobs)]
    result.stuck = len(stuck)
    result.lost = [one for one in result.lost if one not in stuck]
    result.leaks = problems_inside(queues)
    between = problems_between(queues)
    result.torn = len(between) + len(result.chains) + len(result.letters)
    result.cut_short = sum("has no next job" in problem for problem in between)
    result.chains, result.letters = [], []
    result.early = [one for one in result.early if one.split()[3] in jobs]
    return result


def starts_of(history: Iterable[Event]) -> Iterator[Run]:
    """Every run there was, also of starts that are no longer on record; each until its own end, whoever begins beside it."""
    under_way: dict[tuple[int, str, int], Run] = {}
    for event in history:
        if event["event"] in ("begin", "end"):
            which = (event["pid"], event["job"], event["attempt"])
            if event["event"] == "begin":
                under_way[which] = run = Run(
                    event["job"], event["attempt"], event["at"], FOREVER, "unfinished", event
                )
                yield run
            elif which in under_way:
                run = under_way.pop(which)
                run.end, run.how = event["at"], event["how"]


def judge_reign(result: ValkeyResult, reign: Reign) -> None:
    """While one primary leads, everything is as strict as without failovers."""
    result.overlaps += strict._overlaps(reign.runs)
    result.overlaps += _at_once(reign.runs)
    result.slots += strict._slots(reign.runs, {})
    result.order += strict._out_of_order(reign.calls, reign.runs)
    result.doubled += strict._doubled(reign.calls, {}, reign.runs)
    begun: set[tuple[str, int]] = set()
    for run in reign.runs:
        if (run.job, run.attempt) in begun:
            result.doubled.append(f"{run.seen['task']} {run.job} began its attempt {run.attempt} twice")
        begun.add((run.job, run.attempt))


def _at_once(runs: Iterable[Run]) -> Iterator[str]:
    """Runs of one job beside each other."""
    by_job: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_job[run.job].append(run)
    for some in by_job.values():
        for place, run in enumerate(some):
            if any(other.end > run.begin for other in some[:place]):
                yield f"{run.seen['task']} {run.job} ran twice at once"


def _unended(jobs: dict[str, Job]) -> Iterator[str]:
    """What is on record has ended as it should."""
    for job in jobs.values():
        state = job.head.state.decode()
        if state not in ENDED_WELL.get(job.task, "c") and job.queue != GRAVES:
            yield f"{job.task} {job.id} in {job.queue} is {state}"

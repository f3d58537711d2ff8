"""What must never be seen in a soak on Valkey: the histories of all processes, held against what is on the server.

A run is what a handler wrote between its begin and its end; it lies within the time that the store gave it. The run of a
worker that was killed ends with the worker, and that of one who lost its job at the latest when the job began anew, or,
if the worker was stopped in its midst, when the job ended without it.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

from servers.layout import Queue, Reader, Record
from servers.layout_checks import inspect_layout
from soak_result import Result, created_twice, out_of_order
from stage import most_in_any
from valkey_soak_app import GRAVES, LINKS, RATE, WIDTH

FOREVER = 2**63
ENDED_WELL = {"restart": "cv", "doomed": "f"}
"""How jobs of a task may end; all others complete."""
ALONE = ("in_flight", "once", "throttle", "coalesce", "latest", "debounce", "collect", "restart", "trail")
FRESH = ("coalesce", "latest", "debounce")
Event = dict[str, Any]


@dataclass
class ValkeyResult(Result):
    """What became of a soak."""

    crashes: int = 0
    late: list[str] = field(default_factory=list[str])
    chains: list[str] = field(default_factory=list[str])
    letters: list[str] = field(default_factory=list[str])

    def note_left_over(self, found: list[str]) -> None:
        """What was still there once everything had been pruned."""
        self.leaks += found


@dataclass
class Run:
    """One attempt at a job, as its handler saw it."""

    job: str
    attempt: int
    begin: int
    end: int
    how: str
    seen: Event
    stunned: bool = False
    """Its worker was stopped while it ran."""


@dataclass
class Job:
    """A job as it stands on the server."""

    id: str
    queue: str
    task: str
    head: Record
    card: Record
    result: bytes | None


def events(folder: Path) -> list[Event]:
    """All that was written so far, in order; a line that is being written is left out."""
    found: list[Event] = []
    for file in folder.glob("*.history"):
        text = file.read_text()
        found += [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return sorted(found, key=lambda event: event["at"])


def runs_of(history: Iterable[Event]) -> tuple[list[Run], list[str]]:
    """The runs in the order in which they began, and which of them were begun twice."""
    found: dict[tuple[str, int], Run] = {}
    last: dict[str, Run] = {}
    open_in: defaultdict[int, dict[tuple[str, int], Run]] = defaultdict(dict)
    doubled: list[str] = []
    for event in history:
        which = (event.get("job", ""), event.get("attempt", 0))
        if event["event"] == "begin":
            if which in found:
                doubled.append(f"{event['task']} {which} began twice")
            before = last.get(event["job"])
            if before is not None:
                before.end = min(before.end, event["at"])
            run = Run(*which, event["at"], FOREVER, "unfinished", event)
            found[which] = last[event["job"]] = open_in[event["pid"]][which] = run
        elif event["event"] == "end" and which in open_in[event["pid"]]:
            run = open_in[event["pid"]].pop(which)
            run.end, run.how = min(run.end, event["at"]), event["how"]
        elif event["event"] == "stunned":
            for run in open_in[event["victim"]].values():
                run.stunned = True
        elif event["event"] == "killed":
            for run in open_in.pop(event["victim"], {}).values():
                run.end, run.how = min(run.end, event["at"]), "killed"
    return sorted(found.values(), key=lambda run: run.begin), doubled


def jobs_of(queues: dict[str, Queue]) -> dict[str, Job]:
    """All jobs on the server by their ids."""
    found: dict[str, Job] = {}
    for name, queue in queues.items():
        for id, head in queue.heads.items():
            if id in queue.cards:
                text, card = str(UUID(bytes=id)), queue.cards[id]
                task = card.task.decode().rpartition(".")[2]
                found[text] = Job(text, name, task, head, card, queue.of("r").get(id))
    return found


def judged(folder: Path, url: str) -> ValkeyResult:
    """Hold everything against everything, once nobody writes any more."""
    history = events(folder)
    queues = Reader(url).read()
    jobs = jobs_of(queues)
    calls = [event for event in history if event["event"] == "call"]
    runs, doubled = runs_of(history)
    last = {run.job: run for run in runs if run.job in jobs and run.attempt == jobs[run.job].head.attempt}
    _end_stunned(last.values(), jobs)
    result = ValkeyResult(
        sum(event["number"] for event in history if event["event"] == "attempt"),
        len(calls),
        len(jobs),
        len(runs),
        crashes=sum(job.head.crashes for job in jobs.values()),
    )
    result.lost = [*_lost(calls, jobs, runs, last)]
    result.lost += ["a blocker" for event in history if event["event"] == "unknown"]
    result.doubled = [*doubled, *_doubled(calls, jobs, runs)]
    result.overlaps = [*_overlaps(runs)]
    result.slots = [*_slots(runs, jobs)]
    result.order = [*_out_of_order(calls, runs)]
    unsure = {event["subject"] for event in history if event["event"] == "unsure"}
    result.stale = [*_stale(calls, runs, unsure)]
    result.early = [*_early(runs, last)]
    result.late = [*_late(jobs)]
    result.chains = [*_chains(jobs, last)]
    result.letters = [*_letters(jobs)]
    result.leaks = inspect_layout(url)
    return result


def _end_stunned(last: Iterable[Run], jobs: dict[str, Job]) -> None:
    """Nobody waits for a handler whose worker was stopped for longer than its lease: the job may have ended meanwhile."""
    epoch = time.time_ns() - time.monotonic_ns()
    for run in last:
        ended = jobs[run.job].head.ended
        if run.stunned and ended:
            run.end = min(run.end, ended * 1_000_000 - epoch)


def _lost(calls: list[Event], jobs: dict[str, Job], runs: list[Run], last: dict[str, Run]) -> Iterator[str]:
    """Whatever was acknowledged is on record and has ended as it should; whatever completed has run."""
    items = {item for run in runs if run.how == "done" for item in run.seen.get("items", ())}
    for call in calls:
        if call["id"] not in jobs:
            yield f"{call} is not on record"
        if "item" in call and call["item"] not in items:
            yield f"item {call['item']}"
    for job in jobs.values():
        state = job.head.state.decode()
        if state not in ENDED_WELL.get(job.task, "c") and job.queue != GRAVES:
            yield f"{job.task} {job.id} in {job.queue} is {state}"
        if state == "c" and (job.id not in last or last[job.id].how != "done"):
            yield f"{job.task} {job.id} completed, and its last run did not"


def _doubled(calls: list[Event], jobs: dict[str, Job], runs: list[Run]) -> Iterator[str]:
    yield from created_twice(calls)
    values: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    items: defaultdict[int, set[str]] = defaultdict(set)
    for run in runs:
        if run.job in jobs and run.attempt > jobs[run.job].head.attempt:
            yield f"{run.seen['task']} {run.job} began its attempt {run.attempt}, which is not on record"
        if run.seen["task"] not in ALONE:
            values[run.seen["task"], run.seen["value"]].add(run.job)
        for item in run.seen.get("items", ()):
            items[item].add(run.job)
    yield from (f"{what} became {some}" for what, some in values.items() if len(some) > 1)
    yield from (f"item {item} is in {some}" for item, some in items.items() if len(some) > 1)


def _overlaps(runs: list[Run]) -> Iterator[str]:
    """Runs under one key come one after the other."""
    by_subject: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.seen["subject"] is not None:
            by_subject[run.seen["subject"]].append(run)
    for subject, some in by_subject.items():
        for one, other in pairwise(some):
            if other.begin < one.end:
                yield f"{subject}: {one.job} {one.attempt} and {other.job} {other.attempt}"


def _slots(runs: list[Run], jobs: dict[str, Job]) -> Iterator[str]:
    """No more at a time than a lane has slots, and no more in a window than its rate allows."""
    by_lane: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.seen["lane"] is not None:
            by_lane[run.seen["lane"]].append(run)
    for lane, some in by_lane.items():
        slots = {"ordered": 1, "wide": WIDTH, "paced": 4}[lane.partition("-")[0]]
        for place, run in enumerate(some):
            beside = [other for other in some[:place] if other.end > run.begin]
            if len(beside) >= slots:
                yield f"{lane}: {run.job} beside {len(beside)}"
    starts: defaultdict[bytes, list[int]] = defaultdict(list)
    for job in jobs.values():
        if job.task == "paced" and job.head.started:
            starts[job.head.lane].append(job.head.started)
    most = {lane: most_in_any(RATE.window / 1000, times) for lane, times in starts.items()}
    yield from (f"{lane!r}: {count} starts in a window" for lane, count in most.items() if count > RATE.max)


def _out_of_order(calls: list[Event], runs: list[Run]) -> Iterator[str]:
    times = {call["id"]: (call["began"], call["at"]) for call in calls if "lane" in call}
    return out_of_order(times, [(run.job, run.seen["lane"]) for run in runs])


def _stale(calls: list[Event], runs: list[Run], unsure: set[str]) -> Iterator[str]:
    """Every accepted call is seen by a run that begins after it; where calls came one by one, the last by the last."""
    done: dict[str, Run] = {}
    for run in runs:
        if run.how == "done" and run.seen["task"] in FRESH:
            done[run.seen["subject"]] = run
    newest: dict[str, Event] = {}
    for call in calls:
        if call.get("subject"):
            newest[call["subject"]] = max(
                call, newest.get(call["subject"], call), key=lambda one: one["began"]
            )
    for subject, call in newest.items():
        run = done.get(subject)
        if run is None or run.begin < call["began"]:
            yield f"{subject}: call {call['value']} was not seen"
        elif call.get("alone") and subject not in unsure and run.seen["value"] != call["value"]:
            yield f"{subject}: {run.seen['value']} instead of {call['value']}"


def _early(runs: list[Run], last: dict[str, Run]) -> Iterator[str]:
    """Nobody begins before whom he waits for has ended."""
    for run in runs:
        for blocker in run.seen.get("blockers", ()):
            if blocker not in last or last[blocker].how != "done" or last[blocker].end > run.begin:
                yield f"{run.job} began before {blocker} was done"


def _late(jobs: dict[str, Job]) -> Iterator[str]:
    """What a job returned is of its last attempt: whoever lost it to another changed nothing."""
    for job in jobs.values():
        if job.head.state == b"c" and job.result is not None and not job.head.next:
            attempt = json.loads(job.result)
            if attempt != job.head.attempt:
                yield f"{job.task} {job.id} was completed by attempt {attempt}, at its {job.head.attempt}th"


def _chains(jobs: dict[str, Job], last: dict[str, Run]) -> Iterator[str]:
    """A chain has one job for each of its places, each after the one before."""
    chains: defaultdict[bytes, list[Job]] = defaultdict(list)
    for job in jobs.values():
        if job.task == "trail":
            chains[job.head.chain or UUID(job.id).bytes].append(job)
    for chain, some in chains.items():
        some.sort(key=lambda job: job.head.place_in_chain)
        if [job.head.place_in_chain for job in some] != [*range(LINKS)]:
            yield f"{chain.hex()} has {[job.head.place_in_chain for job in some]}"
        for one, other in pairwise(job.id for job in some if job.id in last):
            if last[one].end > last[other].begin:
                yield f"{chain.hex()}: {other} before {one} was done"


def _letters(jobs: dict[str, Job]) -> Iterator[str]:
    """Every job that failed for good has one copy among the dead letters."""
    copies = Counter(str(UUID(bytes=job.card.origin)) for job in jobs.values() if job.card.origin)
    failed = {job.id for job in jobs.values() if job.task == "doomed" and job.queue != GRAVES}
    yield from (f"{id} has {copies[id]} dead letters" for id in failed if copies[id] != 1)
    yield from (f"a dead letter of {id}" for id in copies.keys() - failed)

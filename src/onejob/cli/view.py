"""Jobs, keys, lanes, limits and workers as people and programs read them: instants as ISO 8601 in UTC, payloads as plain JSON."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final, cast

import msgspec

from onejob.cli.rates import rate_text
from onejob.core.contents import calls_in, value_in
from onejob.core.job import Job, State
from onejob.core.lane import LanePlan, QueueLimits, Rate
from onejob.core.span import span
from onejob.store import Key, LaneView, WorkerView

JOB_COLUMNS: Final = ("id", "state", "queue", "task", "key", "lane", "chain", "try", "age", "error")
KEY_COLUMNS: Final = ("key", "queue", "task", "holder", "state", "taken", "absorbed", "differing", "ended")
LANE_COLUMNS: Final = ("lane", "queue", "slots", "ready", "rate", "opens", "on retry", "head")
LIMITS_COLUMNS: Final = ("queue", "concurrency", "running", "rate", "paused")
WORKER_COLUMNS: Final = ("worker", "host", "pid", "queues", "running", "concurrency", "seen", "alive")


def instant(milliseconds: int | None) -> str | None:
    """A point in time for programs."""
    if milliseconds is None:
        return None
    moment = dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(milliseconds: int | None, now: int) -> str:
    """A point in time for people: when, and how far from now."""
    if milliseconds is None:
        return ""
    return f"{instant(milliseconds)} ({distance(milliseconds, now)})"


def distance(milliseconds: int, now: int) -> str:
    """How far from now a point in time is."""
    away = now - milliseconds
    return f"{span(away)} ago" if away >= 0 else f"in {span(away)}"


def job_data(job: Job) -> dict[str, Any]:
    """A job with everything that is known of it, as plain data."""
    calls, options = calls_in(job.payload), value_in(job.options)
    made_by: dict[str, Any] = cast("dict[str, Any]", options) if isinstance(options, dict) else {}
    return {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "state": job.state,
        "key": job.key,
        "lane": job.lane,
        "args": calls[0] if calls and len(calls) == 1 else calls,
        "payload_bytes": len(job.payload),
        "items": job.items,
        "priority": job.priority,
        "attempt": job.attempt,
        "failures": job.failures,
        "crashes": job.crashes,
        "max_crashes": job.max_crashes,
        "misses": job.misses,
        "accepted": instant(job.accepted),
        "updated": instant(job.updated),
        "due": instant(job.due),
        "expires": instant(job.expires),
        "started": instant(job.started),
        "ended": instant(job.ended),
        "worker": job.worker,
        "aborting": job.aborting,
        "follows": job.follows,
        "chain": job.chain,
        "chain_index": job.chain_index,
        "blockers": job.blockers,
        "schedule": made_by.get("schedule"),
        "slot": instant(made_by.get("slot")),
        "origin": job.origin,
        "origin_queue": job.origin_queue,
        "options": options,
        "progress": value_in(job.progress),
        "result": value_in(job.result),
        "error": job.error,
    }


def job_fields(job: Job, last: Job | None, now: int, *, for_people: bool) -> dict[str, object]:
    """The same as text; what says nothing is left out. `last` is the last job of its chain."""
    data = job_data(job)
    data["args"] = (
        _json(data["args"], for_people) if data["args"] is not None else "(the payload cannot be read)"
    )
    for name in ("accepted", "updated", "due", "expires", "started", "ended"):
        data[name] = moment(getattr(job, name), now) if for_people else data[name]
    for name in ("options", "progress", "result"):
        data[name] = None if data[name] is None else _json(data[name], for_people)
    if job.result is None and job.state is State.COMPLETED:
        data["result"] = "null"
    always = {"id", "task", "queue", "state", "args", "attempt"}
    if last is None or not last.chain_index:
        del data["chain"], data["chain_index"]
    else:
        always.add("chain_index")
        data["chain_state"] = str(last.state)
    return {
        name: value for name, value in data.items() if name in always or value not in (None, "", 0, False)
    }


def job_row(job: Job, now: int, *, for_people: bool) -> tuple[object, ...]:
    """A job as a line of a list."""
    accepted = span(now - job.accepted) if for_people else instant(job.accepted)
    error = (job.error or "").split("\n", 1)[0]
    chain = f"{job.chain}/{job.chain_index}" if job.chain_index else None
    return job.id, str(job.state), job.queue, job.task, job.key, job.lane, chain, job.attempt, accepted, error


def key_data(key: Key, now: int) -> dict[str, Any]:
    """A key as plain data; `holds` says whether anybody still holds it."""
    return {
        "key": key.text,
        "queue": key.queue,
        "task": key.task,
        "holder": key.holder.id,
        "state": key.holder.state,
        "holds": key.holder.at(now) is not None,
        "since": instant(key.holder.since),
        "generation": key.generation,
        "absorbed": key.absorbed,
        "differing": key.differing,
        "ended": instant(key.ended_at),
        "digest": key.digest.hex(),
    }


def key_row(key: Key, now: int, *, for_people: bool) -> tuple[object, ...]:
    """A key as a line of a list."""
    since, ended = key.holder.since, key.ended_at
    taken = f"{span(now - since)} ago" if for_people else instant(since)
    stopped = None if ended is None else f"{span(now - ended)} ago" if for_people else instant(ended)
    state = str(key.holder.state)
    return key.text, key.queue, key.task, key.holder.id, state, taken, key.absorbed, key.differing, stopped


def lane_data(lane: LaneView) -> dict[str, Any]:
    """A lane as plain data."""
    return {
        "lane": lane.plan.key,
        "queue": lane.queue,
        **plan_data(lane.plan),
        "taken": lane.taken,
        "holders": lane.holders,
        "ready": lane.ready,
        "head": lane.head,
        "opens": instant(lane.opens_at),
    }


def plan_data(plan: LanePlan) -> dict[str, Any]:
    """The limits of a lane as plain data."""
    return {
        "concurrency": plan.concurrency,
        "rate": rate_data(plan.rate),
        "on_retry": "hold" if plan.hold else "release",
    }


def lane_row(lane: LaneView, now: int, *, for_people: bool) -> tuple[object, ...]:
    """A lane as a line of a list; for people, what is as usual is left out."""
    plan = lane.plan
    slots = f"{lane.taken}/{plan.concurrency}"
    on_retry = "hold" if plan.hold else "" if for_people else "release"
    opens = _opening(lane.opens_at, now) if for_people else instant(lane.opens_at)
    return plan.key, lane.queue, slots, lane.ready, rate_text(plan.rate), opens, on_retry, lane.head


def limits_data(limits: QueueLimits) -> dict[str, Any]:
    """A queue's limits as plain data."""
    return {
        "concurrency": limits.concurrency,
        "rate": rate_data(limits.rate),
        "paused": limits.paused,
    }


def limits_text(limits: QueueLimits) -> str:
    """A queue's limits in a few words; nothing if there are none."""
    paused = "paused" if limits.paused else ""
    concurrency = "" if limits.concurrency is None else f"{limits.concurrency} at a time"
    return ", ".join(part for part in (paused, concurrency, rate_text(limits.rate)) if part)


def limits_row(queue: str, limits: QueueLimits, running: int) -> tuple[object, ...]:
    """A queue's limits as a line of a list."""
    paused = "paused" if limits.paused else ""
    return queue, limits.concurrency, running, rate_text(limits.rate), paused


def rate_data(rate: Rate | None) -> dict[str, Any] | None:
    """A rate as plain data, in seconds."""
    return None if rate is None else {"max": rate.max, "per": rate.per}


def worker_data(worker: WorkerView) -> dict[str, Any]:
    """A worker as plain data."""
    data = msgspec.structs.asdict(worker)
    return {**data, "started": instant(worker.started), "seen": instant(worker.seen)}


def worker_row(worker: WorkerView, now: int, *, for_people: bool) -> tuple[object, ...]:
    """A worker as a line of a list."""
    seen = f"{span(now - worker.seen)} ago" if for_people else instant(worker.seen)
    queues = ",".join(worker.queues)
    alive = "alive" if worker.alive else "dead"
    return worker.id, worker.host, worker.pid, queues, worker.running, worker.concurrency, seen, alive


def _opening(at: int | None, now: int) -> str:
    if at is None:
        return ""
    return "now" if at <= now else f"in {span(at - now)}"


def _json(value: object, for_people: bool) -> str:
    data = msgspec.json.encode(value)
    return (msgspec.json.format(data, indent=2) if for_people and len(data) > 60 else data).decode()

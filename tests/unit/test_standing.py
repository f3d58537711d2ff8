"""Why a job waits, in words, for the corners that a running worker does not easily come into."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from onejob import QueueLimits, Rate, State
from onejob.core.job import Job, JobId, WorkerId
from onejob.core.lane import LanePlan
from onejob.standing import Surroundings, first_before, how_it_stands
from onejob.store import Delay, LaneView, WorkerView

NOW = 1_000_000
SERVING = WorkerView(WorkerId("w-1"), ("mail",), "here", 1, 10, NOW, NOW, alive=True, running=3)


def job(id: str = "me", state: State = State.PARKED, **facts: Any) -> Job:
    plain = {"id": id, "chain": id, "queue": "mail", "task": "send", "payload": b"{}", "lane": "x"}
    times = {"priority": 0, "accepted": 0, "updated": 0, "due": NOW - 5_000}
    return Job(**{**plain, **times, "state": state, **facts})


def view(*holders: str, concurrency: int = 1, **facts: Any) -> LaneView:
    rate = facts.pop("rate", None)
    return LaneView(
        queue="mail",
        plan=LanePlan("x", concurrency, rate),
        holders=[JobId(id) for id in holders],
        taken=len(holders),
        **{"ready": 4, **facts},
    )


def told(one: Job, **around: Any) -> str:
    return "\n".join(how_it_stands(one, Surroundings(now=NOW, workers=[SERVING], **around)))


@pytest.mark.parametrize(
    ("lane", "before"),
    [
        (view("a"), "a"),
        (view("a", "b", "c", concurrency=3, head="me"), "a"),
        (view("a", concurrency=3, head="b"), "b"),
        (view("a", concurrency=3, head="me"), None),
        (view("me", "a", concurrency=2, head="b"), None),
        (view("a", "b", concurrency=1), "a"),
    ],
)
def test_whom_a_ready_job_waits_for(lane: LaneView, before: str | None) -> None:
    assert first_before(job(), lane) == before


def test_a_delay_that_has_passed_is_told_as_such() -> None:
    assert "delayed; not due yet, due in 2 s." in told(job(state=State.DELAYED, due=NOW + 2_000))
    assert "delayed; has been due for 1 s." in told(job(state=State.DELAYED, due=NOW - 1_000))
    snoozed = job(state=State.DELAYED, due=NOW - 1_000, attempt=1)
    assert "delayed; snoozed by its handler, and has been due for 1 s." in told(snoozed)


def test_one_of_several_is_named_where_a_wide_lane_is_full() -> None:
    lane = view("a", "b", "c", concurrency=3)
    said = told(job(), lane=lane, before=job("a", State.RUNNING), ahead=1)
    assert "parked behind job a (running) and 2 more; it has been due for 5 s." in said
    assert "1 job of its lane is ahead of it." in said
    assert 'Its lane "x" takes 3 at a time: 3 of 3 slots in use, 4 jobs are ready.' in said


def test_a_free_slot_is_the_next_ones() -> None:
    said = told(job(), lane=view(concurrency=2, head="b"), before=job("b", State.WAITING))
    assert "parked behind job b (waiting); it has been due" in said


def test_a_job_that_kept_its_slot_waits_for_the_rate_alone() -> None:
    lane = view("me", rate=Rate(1, per=60), opens_at=NOW + 12_000)
    said = told(job(), lane=lane)
    assert "in queue 'mail': parked; it has been due for 5 s." in said
    assert "The rate window of its lane opens in 12 s (1 per 60 s)." in said


def test_a_window_that_has_opened_holds_nobody_up() -> None:
    around = Surroundings(now=NOW, lane=view("me", rate=Rate(1, per=60), opens_at=NOW))
    assert around.opens_in is None


def test_a_parked_job_that_nobody_serves_says_so() -> None:
    said = "\n".join(how_it_stands(job(), Surroundings(now=NOW)))
    assert "parked; it has been due for 5 s; no worker serves queue 'mail'" in said
    assert "start one with `onejob worker MODULE:APP --queues mail`" in said


def test_two_whom_only_a_worker_would_let_in_do_not_wait_for_each_other() -> None:
    lane, before = view(concurrency=3, head="b"), job("b")
    said = "\n".join(how_it_stands(job(), Surroundings(now=NOW, lane=lane, before=before)))
    assert "parked; it has been due for 5 s; no worker serves queue 'mail'" in said
    assert "parked behind job b (parked); it has been due" in told(job(), lane=lane, before=before)


def test_a_job_whose_worker_fell_silent_is_not_called_running() -> None:
    lost = job(state=State.RUNNING, lane=None, worker="w-2", started=NOW - 90_000, attempt=1)
    silent = msgspec.structs.replace(SERVING, id=WorkerId("w-2"), seen=NOW - 60_000, alive=False)

    def stands(one: Job, *workers: WorkerView) -> str:
        [said] = how_it_stands(one, Surroundings(now=NOW, workers=workers))
        return said.partition("queue 'mail': ")[2]

    began = "started 90 s ago on worker w-2, attempt 1, which stopped beating"
    assert stands(lost, silent) == (
        f"{began} 60 s ago; its lease has ended, and the next worker that starts runs it again: start one with "
        "`onejob worker MODULE:APP`."
    )
    assert stands(lost, silent, SERVING).endswith("and any live worker runs it again when it looks next.")
    assert stands(lost, SERVING).startswith(f"{began}; its lease has ended")
    worn = msgspec.structs.replace(lost, crashes=3)
    assert stands(worn, SERVING).endswith("lets it fail (max_crashes is 3) when it looks next.")
    flagged = msgspec.structs.replace(worn, aborting=True)
    assert stands(flagged, SERVING).endswith("revokes it when it looks next.")
    alive = msgspec.structs.replace(silent, alive=True)
    assert stands(lost, alive) == "running for 90 s on worker w-2, attempt 1."


def test_every_gate_that_is_closed_is_named() -> None:
    limits = QueueLimits(20, Rate(500, per=60), paused=True)
    said = told(job(state=State.WAITING, lane=None), limits=limits, running=20)
    assert "Queue paused: nothing of 'mail' starts until somebody resumes it (onejob resume mail)." in said
    assert "The queue limit of 20 is full: so many jobs of 'mail' are running." in said
    assert "Queue 'mail' starts at most 500 per 60 s, all its jobs together." in said
    assert "limit of 20" not in told(job(state=State.WAITING, lane=None), limits=limits, running=19)


def test_what_does_not_wait_for_its_turn_is_told_nothing_of_gates() -> None:
    limits = QueueLimits(1, None, paused=True)
    assert "paused" not in told(job(state=State.DELAYED), limits=limits, running=5)


def test_a_session_that_has_locked_the_job_is_named() -> None:
    delay = Delay(
        what="its row", session=4711, application="billing", age=180_000, idle=True, query="update orders …"
    )
    said = told(job(state=State.WAITING, lane=None), delays=[delay])
    assert (
        "Database session 4711 (application 'billing', in a transaction for 3 min, idle now) has locked its row: no worker "
        "can start the job before that transaction ends. It last said: update orders …"
    ) in said

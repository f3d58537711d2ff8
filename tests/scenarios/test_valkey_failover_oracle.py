"""The oracle of failovers sees what must not happen while one primary leads, and lets pass what a failover explains."""

from __future__ import annotations

import itertools

from valkey_failover_oracle import CUT, OVER, AfterFailovers, Event, judge_reign, reigns_of, starts_of

TWICE = [("begin", 1), ("begin", 2), ("end", 1), ("end", 2)]
"""Two processes that run one attempt of one job beside each other."""


def history(*happened: tuple[str, int]) -> list[Event]:
    """Events, each by the process that it is of, one after the other."""
    times = itertools.count(1)
    run = {
        "job": "j",
        "attempt": 1,
        "task": "plain",
        "value": 1,
        "subject": None,
        "lane": None,
        "how": "done",
    }
    return [{"event": event, "pid": pid, "at": next(times), **run} for event, pid in happened]


def seen(events: list[Event]) -> dict[str, list[str]]:
    result, starts = AfterFailovers(), [*starts_of(events)]
    for reign in reigns_of(events):
        reign.runs = [run for run in starts if reign.since <= run.begin < reign.until]
        judge_reign(result, reign)
    return result.violations()


def test_a_job_that_runs_twice_at_once_under_one_primary_is_seen() -> None:
    assert seen(history(*TWICE)).keys() == {"overlaps", "doubled"}
    assert seen(history((CUT, 0), (OVER, 0), *TWICE)).keys() == {"overlaps", "doubled"}


def test_a_job_whose_start_was_lost_may_run_beside_itself() -> None:
    events = [*TWICE[:1], (CUT, 0), (OVER, 0), *TWICE[1:]]
    assert seen(history(*events)) == {}


def test_an_attempt_that_begins_again_under_one_primary_is_seen() -> None:
    assert seen(history(("begin", 1), ("end", 1), ("begin", 2), ("end", 2))).keys() == {"doubled"}

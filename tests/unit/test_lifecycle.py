"""The state machine: every move in its table, and what the end of an attempt leads to."""

import itertools
from typing import Any

import pytest

from onejob.core.job import ENDED, LIVE, QUEUED, ChainId, Claimed, JobId, Lease, Millis, State
from onejob.core.lifecycle import (
    ENDING,
    MAX_MISSES,
    MISS_DELAY,
    MOVES,
    SETTLING,
    Crashed,
    Lost,
    Move,
    Raised,
    Returned,
    Settlement,
    Snoozed,
    Succeeded,
    Unknown,
    after_attempt,
)
from onejob.core.options import JobOptions, encode_options

LEASE = Lease(JobId("j"), b"token")

# Every legal move, written out: from, to.
LEGAL = {
    Move.PROMOTE: ("delayed parked", "waiting parked"),
    Move.PARK: ("waiting", "parked"),
    Move.RELEASE: ("blocked", "waiting parked delayed"),
    Move.POSTPONE: ("waiting parked delayed", "waiting parked delayed"),
    Move.START: ("waiting", "running"),
    Move.COMPLETE: ("running", "completed revoked"),
    Move.RETRY: ("running", "waiting parked delayed revoked"),
    Move.SNOOZE: ("running", "waiting parked delayed revoked"),
    Move.HAND_BACK: ("running", "waiting parked delayed revoked"),
    Move.MISS: ("running", "waiting parked delayed revoked"),
    Move.LOSE: ("running", "waiting parked delayed revoked"),
    Move.PERISH: ("running", "failed revoked"),
    Move.CRASH: ("running", "waiting parked delayed revoked"),
    Move.SUCCUMB: ("running", "failed revoked"),
    Move.FAIL: ("running", "failed revoked"),
    Move.REVOKE: ("blocked delayed parked waiting", "revoked"),
    Move.EXPIRE: ("blocked delayed parked waiting", "revoked"),
    Move.STRAND: ("blocked", "failed"),
    Move.REVIVE: ("failed revoked", "waiting parked delayed blocked"),
}


def claimed(**changes: Any) -> Claimed:
    given: dict[str, Any] = {
        "lease": LEASE,
        "queue": "hooks",
        "task": "send",
        "payload": b"{}",
        "options": None,
        "attempt": 1,
        "failures": 0,
        "crashes": 0,
        "max_crashes": 3,
        "misses": 0,
        "accepted": Millis(0),
        "due": Millis(0),
        "chain": ChainId("j"),
        "chain_index": 0,
        "key": None,
    }
    return Claimed(**{**given, **changes})


def test_the_table_of_moves_is_complete_and_as_written_here() -> None:
    assert set(MOVES) == set(Move) == set(LEGAL)
    for move, (source, target) in LEGAL.items():
        assert MOVES[move].source == frozenset(source.split()), move
        assert MOVES[move].target == frozenset(target.split()), move


def test_the_states_are_queued_running_or_ended() -> None:
    assert {*QUEUED, State.RUNNING, *ENDED} == set(State)
    assert not QUEUED & ENDED
    assert QUEUED | {State.RUNNING} == LIVE
    assert [state for state in State if state.queued] == ["blocked", "delayed", "parked", "waiting"]
    assert [state for state in State if state.ended] == ["completed", "failed", "revoked"]


def test_only_a_start_leads_to_running_and_only_settling_leads_out() -> None:
    assert [move for move, rule in MOVES.items() if State.RUNNING in rule.target] == [Move.START]
    leaving = {move for move, rule in MOVES.items() if State.RUNNING in rule.source}
    assert (
        leaving
        == SETTLING
        == set(Move)
        - {
            Move.PROMOTE,
            Move.PARK,
            Move.RELEASE,
            Move.STRAND,
            Move.POSTPONE,
            Move.START,
            Move.REVOKE,
            Move.EXPIRE,
            Move.REVIVE,
        }
    )


def test_a_completed_job_never_moves_again_and_an_ended_one_only_by_an_operator() -> None:
    assert not [move for move, rule in MOVES.items() if State.COMPLETED in rule.source]
    assert [move for move, rule in MOVES.items() if rule.source & ENDED] == [Move.REVIVE]


def test_every_live_state_can_reach_every_way_to_end_that_applies() -> None:
    steps = {(a, b) for rule in MOVES.values() for a, b in itertools.product(rule.source, rule.target)}
    # Parking comes with lanes; until then no move leads there, and only revocation leads out.
    for start in LIVE - {State.PARKED}:
        reached = {start}
        while grown := {b for a, b in steps if a in reached} - reached:
            reached |= grown
        assert reached >= ENDED, start


def test_a_flagged_job_can_end_revoked_by_every_settling_move() -> None:
    assert all(State.REVOKED in MOVES[move].target for move in SETTLING)


def test_each_move_charges_exactly_its_own_budget() -> None:
    charges = {
        move: (rule.attempt, rule.failures, rule.crashes, rule.misses)
        for move, rule in MOVES.items()
        if (rule.attempt, rule.failures, rule.crashes, rule.misses) != (0, 0, 0, 0)
    }
    assert charges == {
        Move.START: (1, 0, 0, 0),
        Move.RETRY: (0, 1, 0, 0),
        Move.FAIL: (0, 1, 0, 0),
        Move.HAND_BACK: (-1, 0, 0, 0),
        Move.MISS: (-1, 0, 0, 1),
        Move.LOSE: (0, 0, 1, 0),
        Move.PERISH: (0, 0, 1, 0),
        Move.CRASH: (0, 0, 1, 0),
        Move.SUCCUMB: (0, 0, 1, 0),
    }


def test_only_a_rescue_needs_the_worker_to_be_gone() -> None:
    assert {move for move, rule in MOVES.items() if rule.orphaned} == {Move.LOSE, Move.PERISH}


def test_the_moves_that_end_a_job_say_how_it_then_stands() -> None:
    assert ENDING == {
        Move.COMPLETE: State.COMPLETED,
        Move.FAIL: State.FAILED,
        Move.PERISH: State.FAILED,
        Move.SUCCUMB: State.FAILED,
    }
    assert all(state in MOVES[move].target for move, state in ENDING.items())
    assert all(MOVES[move].target & QUEUED for move in SETTLING - set(ENDING))


def test_a_return_completes_with_its_result() -> None:
    assert after_attempt(claimed(), Succeeded(b"1")) == Settlement(LEASE, Move.COMPLETE, result=b"1")
    assert after_attempt(claimed(), Succeeded(None)) == Settlement(LEASE, Move.COMPLETE)


def test_an_error_is_retried_while_attempts_are_left() -> None:
    again = Settlement(LEASE, Move.RETRY, delay=2_000, error="boom")
    over = Settlement(LEASE, Move.FAIL, error="boom")
    for failures, expected in ((0, again), (1, again), (2, over), (7, over)):
        assert after_attempt(claimed(failures=failures), Raised("boom", 3, 2_000)) == expected


@pytest.mark.accepts("G49")
def test_an_error_without_retries_or_a_final_one_fails_at_once() -> None:
    assert after_attempt(claimed(), Raised("boom", 1, 0)).move is Move.FAIL
    assert after_attempt(claimed(), Raised("boom", 1_000, 0, final=True)).move is Move.FAIL


def test_crashes_snoozes_and_misses_do_not_spend_attempts() -> None:
    tried = claimed(attempt=50, crashes=2, misses=9, failures=1)
    assert after_attempt(tried, Raised("boom", 3, 0)).move is Move.RETRY


def test_a_snooze_waits_as_long_as_it_asked() -> None:
    assert after_attempt(claimed(failures=9), Snoozed(60_000)) == Settlement(LEASE, Move.SNOOZE, delay=60_000)


def test_a_job_given_back_waits_again_at_once() -> None:
    assert after_attempt(claimed(), Returned()) == Settlement(LEASE, Move.HAND_BACK)


def test_an_unknown_task_is_handed_back_for_ten_minutes_and_then_fails() -> None:
    assert MISS_DELAY * MAX_MISSES == 10 * 60_000
    assert MISS_DELAY == 15_000
    for misses in (0, MAX_MISSES - 1):
        assert after_attempt(claimed(misses=misses), Unknown("a, b")) == Settlement(
            LEASE, Move.MISS, delay=MISS_DELAY
        )
    failed = after_attempt(claimed(misses=MAX_MISSES), Unknown("a, b"))
    assert failed.move is Move.FAIL
    assert failed.error == (
        "UnknownTask: no worker of queue 'hooks' knew task 'send' for 10 minutes; the last one knows a, b"
    )


@pytest.mark.parametrize(
    ("crashes", "max_crashes", "move"),
    [(0, 3, Move.LOSE), (2, 3, Move.LOSE), (3, 3, Move.PERISH), (0, 0, Move.PERISH), (5, 3, Move.PERISH)],
)
def test_a_lost_job_runs_again_while_its_crash_budget_lasts(
    crashes: int, max_crashes: int, move: Move
) -> None:
    settled = after_attempt(claimed(crashes=crashes, max_crashes=max_crashes, failures=99), Lost("w1"))
    assert settled.move is move
    assert (settled.error or "").startswith("Lost: worker w1 stopped beating while running this job")
    assert settled.delay == 0


def test_a_job_that_perished_says_how_often_it_was_lost() -> None:
    error = after_attempt(claimed(crashes=3), Lost("w1")).error or ""
    assert error.endswith("; lost 4 times, max_crashes is 3")


@pytest.mark.parametrize(
    ("crashes", "max_crashes", "move", "delay"),
    [
        (0, 3, Move.CRASH, 1_000),
        (2, 3, Move.CRASH, 4_000),
        (40, 50, Move.CRASH, 60_000),
        (3, 3, Move.SUCCUMB, 0),
        (0, 0, Move.SUCCUMB, 0),
    ],
)
def test_a_job_whose_process_died_waits_longer_each_time_until_its_crash_budget_is_spent(
    crashes: int, max_crashes: int, move: Move, delay: int
) -> None:
    job = claimed(crashes=crashes, max_crashes=max_crashes, failures=99)
    settled = after_attempt(job, Crashed("Crashed: killed by SIGKILL"))
    assert (settled.move, settled.delay) == (move, delay)
    assert (settled.error or "").startswith("Crashed: killed by SIGKILL")


def test_a_job_that_succumbed_says_how_often_it_crashed_and_goes_where_failed_ones_go() -> None:
    options = encode_options(JobOptions(dead_letter="graves"))
    settled = after_attempt(claimed(crashes=3, options=options), Crashed("Crashed: exit code 1"))
    assert settled.error == "Crashed: exit code 1; crashed 4 times, max_crashes is 3"
    assert settled.dead_letter == "graves"

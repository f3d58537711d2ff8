"""The judgement, as pure examples: one newcomer, one holder, one instant, and what must be written."""

from itertools import product
from typing import Any

import msgspec
import pytest

from onejob.core.dedup import FOREVER, Plan, Standing, Unique, Verdict, compile_rules, forced
from onejob.core.job import ChainId, JobId, NewJob, State
from onejob.core.judge import (
    REMEMBERED_CALLS,
    Answer,
    Call,
    Change,
    Decision,
    Holder,
    Outcome,
    initial_state,
    judge,
    keep,
    may_revive,
)
from onejob.core.options import MAX_PAYLOAD

OLD, NEW = JobId("old"), JobId("new")
NOW = 1_000_000
AGE = 2_000
"""How long ago the holder was accepted."""
SINCE = NOW - AGE


def newcomer(
    policy: Unique | None, *, force: bool = False, fingerprint: bytes = b"b", items: int = 0, **changes: Any
) -> NewJob:
    plan = None
    if policy is not None:
        rules = compile_rules(policy, None)
        assert rules is not None
        plan = Plan(b"digest", "key", forced(rules) if force else rules, fingerprint, items)
    return NewJob(**{"id": NEW, "queue": "q", "task": "t", "payload": b'{"v":2}', "plan": plan, **changes})


def holder(state: State = State.WAITING, policy: Unique | None = None, **changes: Any) -> Holder:
    """A holder accepted two seconds ago under `policy` (its own memory of an end comes from there)."""
    rules = compile_rules(policy or Unique.in_flight(), None)
    assert rules is not None
    since = changes.get("since", SINCE)
    given: dict[str, Any] = {
        "id": ChainId(OLD),
        "state": state,
        "since": since,
        "completed_until": rules.forget_at(Standing.COMPLETED, since),
        "failed_until": rules.forget_at(Standing.FAILED, since),
        "accepted": SINCE,
        "due": SINCE,
        "attempt": 0 if state.queued else 1,
        "fingerprint": b"a",
    }
    return Holder(**{**given, **changes})


def answer(verdict: Verdict, outcome: Outcome, state: State = State.WAITING, **changes: Any) -> Answer:
    made = outcome is Outcome.CREATED
    given = {"holder": OLD, "state": state, "age": AGE, "payload_differs": True}
    return Answer(NEW if made else OLD, outcome, verdict, **{**given, **changes})


def created(verdict: Verdict, state: State, **changes: Any) -> Decision:
    given = {"creates": True, "due": NOW, "since": NOW}
    return Decision(answer(verdict, Outcome.CREATED, state), **{**given, **changes})


def changed(verdict: Verdict, outcome: Outcome, **changes: Any) -> Decision:
    given = {"due": SINCE, "calls": (Call(NEW, outcome, OLD),)}
    return Decision(answer(verdict, outcome), change=Change(**{**given, **changes}))


FIRST = Decision(Answer(NEW, Outcome.CREATED), creates=True, due=NOW, since=NOW)


@pytest.mark.accepts("Q1")
def test_without_a_plan_or_a_holder_a_job_is_created() -> None:
    assert judge(newcomer(None), None, NOW) == FIRST
    assert judge(newcomer(None), holder(), NOW) == FIRST
    assert judge(newcomer(Unique.in_flight()), None, NOW) == FIRST


def test_a_created_job_is_due_after_its_delay_or_its_policys_wait() -> None:
    assert judge(newcomer(Unique.in_flight(), delay=500), None, NOW).due == NOW + 500
    assert judge(newcomer(Unique.debounce(3)), None, NOW).due == NOW + 3_000
    assert judge(newcomer(Unique.collect(wait=3), items=1), None, NOW).due == NOW + 3_000
    assert judge(newcomer(Unique.collect(wait=3, max_items=5), items=5), None, NOW).due == NOW


@pytest.mark.accepts("Q11", "Q12", "Q13")
@pytest.mark.parametrize("state", [State.BLOCKED, State.DELAYED, State.PARKED, State.WAITING, State.RUNNING])
def test_keep_returns_the_holder_and_writes_nothing(state: State) -> None:
    assert judge(newcomer(Unique.in_flight()), holder(state), NOW) == Decision(
        answer(Verdict.KEEP, Outcome.KEPT, state)
    )


def test_keep_says_whether_arguments_and_options_differ() -> None:
    alike = judge(newcomer(Unique.in_flight(), fingerprint=b"a"), holder(), NOW).answer
    assert (alike.payload_differs, alike.options_differ) == (False, False)
    assert judge(newcomer(Unique.in_flight(), priority=1), holder(), NOW).answer.options_differ
    assert judge(newcomer(Unique.in_flight(), options=b"{}"), holder(), NOW).answer.options_differ
    gone = holder(State.COMPLETED, Unique.once(), gone=True)
    assert not judge(newcomer(Unique.once(), priority=1), gone, NOW).answer.options_differ


def test_a_strict_keep_rejects_other_arguments_and_keeps_the_same() -> None:
    policy = Unique.once(mismatch="raise")
    assert judge(newcomer(policy), holder(), NOW) == Decision(answer(Verdict.RAISE, Outcome.REJECTED))
    same = judge(newcomer(policy, fingerprint=b"a"), holder(), NOW)
    assert same == Decision(answer(Verdict.KEEP, Outcome.KEPT, payload_differs=False))


def test_raise_rejects_and_writes_nothing() -> None:
    for fingerprint in (b"a", b"b"):
        made = judge(newcomer(Unique(queued="raise"), fingerprint=fingerprint), holder(), NOW)
        assert made == Decision(answer(Verdict.RAISE, Outcome.REJECTED, payload_differs=fingerprint == b"b"))


@pytest.mark.accepts("Q5", "Q9", "F7")
def test_run_creates_a_job_that_takes_the_key_and_leaves_the_holder_alone() -> None:
    assert judge(newcomer(Unique.in_flight(within=2)), holder(), NOW) == created(Verdict.RUN, State.WAITING)
    assert judge(newcomer(Unique.in_flight(within=2)), holder(State.RUNNING), NOW) == created(
        Verdict.RUN, State.RUNNING
    )


@pytest.mark.accepts("F16")
def test_force_runs_whatever_the_holder_does() -> None:
    for state in (State.WAITING, State.RUNNING):
        assert judge(newcomer(Unique.once(), force=True), holder(state), NOW) == created(Verdict.RUN, state)


@pytest.mark.accepts("N10", "N11")
def test_update_changes_the_queued_holder_in_its_place() -> None:
    made = judge(newcomer(Unique.latest(), delay=9_000), holder(due=NOW + 50), NOW)
    assert made == changed(Verdict.UPDATE, Outcome.UPDATED, due=NOW + 50)


def test_follow_creates_a_job_behind_the_running_holder() -> None:
    made = judge(newcomer(Unique.latest()), holder(State.RUNNING), NOW)
    assert made == created(Verdict.FOLLOW, State.RUNNING, follows=ChainId(OLD))
    assert initial_state(made.due, made.follows, NOW) is State.BLOCKED


def test_a_debounced_follower_also_waits_for_quiet() -> None:
    made = judge(newcomer(Unique.debounce(3)), holder(State.RUNNING), NOW)
    assert (made.follows, made.due) == (OLD, NOW + 3_000)


def test_past_the_window_latest_follows_what_is_still_alive() -> None:
    for state in (State.WAITING, State.RUNNING):
        made = judge(newcomer(Unique.latest(within=1)), holder(state), NOW)
        assert (made.answer.verdict, made.follows) == (Verdict.FOLLOW, OLD)


def test_later_is_due_when_the_holders_window_ends_and_counts_from_there() -> None:
    policy = Unique.throttle(5, trailing=True)
    for state in (State.RUNNING, State.COMPLETED, State.FAILED):
        made = judge(newcomer(policy), holder(state, policy), NOW)
        assert made == created(Verdict.LATER, state, due=SINCE + 5_000, since=SINCE + 5_000)
    delayed = judge(newcomer(policy, delay=60_000), holder(State.RUNNING, policy), NOW)
    assert (delayed.due, delayed.since) == (NOW + 60_000, NOW + 60_000)


def test_starts_of_a_trailing_throttle_keep_their_distance() -> None:
    policy = Unique.throttle(5, trailing=True)
    waiting = holder(State.RUNNING, policy, since=NOW + 3_000)
    made = judge(newcomer(policy), waiting, NOW + 4_000)
    assert (made.due, made.since) == (NOW + 8_000, NOW + 8_000)
    early = judge(newcomer(policy), holder(State.DELAYED, policy, since=NOW + 3_000, due=NOW + 3_000), NOW)
    assert early.answer.verdict is Verdict.UPDATE
    assert early.answer.age == -3_000


def test_cancel_revokes_a_queued_holder_and_flags_a_running_one() -> None:
    queued = judge(newcomer(Unique.restart()), holder(), NOW)
    assert queued == created(Verdict.CANCEL, State.WAITING, end_holder=True)
    running = judge(newcomer(Unique.restart()), holder(State.RUNNING), NOW)
    assert running == created(Verdict.CANCEL, State.RUNNING, flag_holder=True, follows=ChainId(OLD))


# Rule 2: two policies meet.


@pytest.mark.parametrize(
    ("mine", "theirs", "state", "outcome"),
    [
        (Unique.once(), Unique.in_flight(), State.COMPLETED, Outcome.CREATED),
        (Unique.once(), Unique.once(), State.COMPLETED, Outcome.KEPT),
        (Unique.in_flight(), Unique.once(), State.COMPLETED, Outcome.CREATED),
        (Unique.throttle(60), Unique.once(), State.FAILED, Outcome.CREATED),
        (Unique.throttle(60), Unique.throttle(60), State.FAILED, Outcome.KEPT),
        (Unique.once(failed="keep"), Unique.throttle(60), State.REVOKED, Outcome.KEPT),
        (Unique.once(), Unique.once(within=1), State.COMPLETED, Outcome.CREATED),
        (Unique.once(within=1), Unique.once(), State.COMPLETED, Outcome.CREATED),
    ],
)
def test_the_newcomer_judges_and_the_holder_says_what_is_remembered(
    mine: Unique, theirs: Unique, state: State, outcome: Outcome
) -> None:
    assert judge(newcomer(mine), holder(state, theirs), NOW).answer.outcome is outcome


def test_a_forgotten_holder_is_not_even_mentioned() -> None:
    assert judge(newcomer(Unique.once()), holder(State.COMPLETED, Unique.in_flight()), NOW) == FIRST


def test_memory_ends_at_its_instant() -> None:
    remembered = holder(State.COMPLETED, completed_until=NOW)
    assert remembered.at(NOW - 1) is remembered
    assert remembered.at(NOW) is None
    assert holder(State.COMPLETED, completed_until=FOREVER).at(FOREVER - 1) is not None


def test_a_holder_past_its_expiry_counts_as_revoked_from_that_instant() -> None:
    expiring = holder(expires=NOW)
    assert expiring.at(NOW - 1) is expiring
    assert expiring.at(NOW) is None
    kept = holder(policy=Unique.throttle(60), expires=NOW)
    assert judge(newcomer(Unique.throttle(60)), kept, NOW).answer == answer(
        Verdict.KEEP, Outcome.KEPT, State.REVOKED
    )
    assert holder(State.RUNNING, expires=NOW).at(NOW) is not None


# Rule 4: update and postpone.


@pytest.mark.accepts("G26")
def test_postpone_starts_the_quiet_period_again() -> None:
    made = judge(newcomer(Unique.debounce(3)), holder(due=NOW + 1_000), NOW)
    assert made == changed(Verdict.POSTPONE, Outcome.POSTPONED, due=NOW + 3_000)


def test_postpone_puts_a_due_holder_back_to_delayed() -> None:
    made = judge(newcomer(Unique.debounce(3)), holder(due=NOW - 1), NOW)
    assert made.change is not None
    assert initial_state(made.change.due, None, NOW) is State.DELAYED


@pytest.mark.parametrize(
    ("max_wait", "outcome", "due"),
    [
        (10, Outcome.POSTPONED, NOW + 3_000),
        (4, Outcome.POSTPONED, SINCE + 4_000),
        (3, Outcome.POSTPONED, SINCE + 3_000),
        (2, Outcome.UPDATED, NOW + 1),
    ],
)
def test_postpone_never_goes_past_max_wait(max_wait: int, outcome: Outcome, due: int) -> None:
    policy = Unique.debounce(min(3, max_wait), max_wait=max_wait)
    made = judge(newcomer(policy), holder(due=NOW + 1), NOW)
    assert (made.answer.outcome, made.change and made.change.due) == (outcome, due)


def test_postpone_never_comes_before_a_retrys_backoff() -> None:
    made = judge(newcomer(Unique.debounce(3)), holder(attempt=1, due=NOW + 60_000), NOW)
    assert made.change is not None
    assert made.change.due == NOW + 60_000


def test_update_says_that_the_holders_options_stay() -> None:
    made = judge(newcomer(Unique.latest(), priority=9), holder(), NOW)
    assert (made.answer.outcome, made.answer.options_differ) == (Outcome.UPDATED, True)


# Rule 5: follow.


@pytest.mark.parametrize(
    "policy",
    [Unique.restart(), Unique.in_flight(within=1), Unique.throttle(60, trailing=True, queued="later")],
    ids=["cancel", "run", "later"],
)
def test_whoever_takes_the_key_of_a_holder_that_never_started_inherits_whom_it_followed(
    policy: Unique,
) -> None:
    followed = ChainId("first")
    made = judge(newcomer(policy), holder(State.BLOCKED, follows=followed), NOW)
    assert (made.creates, made.follows) == (True, followed)


def test_a_follower_of_a_queued_holder_follows_the_holder_itself() -> None:
    made = judge(newcomer(Unique(queued="follow")), holder(State.BLOCKED, follows=ChainId("first")), NOW)
    assert made.follows == OLD


def test_a_follower_that_expired_hands_its_place_on() -> None:
    made = judge(newcomer(Unique.latest()), holder(State.BLOCKED, follows=ChainId("first"), expires=NOW), NOW)
    assert (made.creates, made.follows) == (True, "first")


# Rule 6: collect.

GATHER = Unique.collect(wait=3, max_items=5)


def gathering(**changes: Any) -> Holder:
    return holder(State.DELAYED, GATHER, **{"items": 2, "size": 100, "due": NOW + 1_000, **changes})


def test_collect_appends_and_keeps_the_due_time() -> None:
    made = judge(newcomer(GATHER, items=2), gathering(), NOW)
    assert made.answer == answer(Verdict.COLLECT, Outcome.COLLECTED, State.DELAYED, payload_differs=False)
    assert made.change == Change(due=NOW + 1_000, append=True, calls=(Call(NEW, Outcome.COLLECTED, OLD),))


def test_the_item_that_fills_a_collection_makes_it_due_at_once() -> None:
    made = judge(newcomer(GATHER, items=3), gathering(), NOW)
    assert made.change is not None
    assert (made.change.append, made.change.due) == (True, NOW)
    retried = judge(newcomer(GATHER, items=3), gathering(attempt=1, due=NOW + 60_000), NOW)
    assert retried.change is not None
    assert retried.change.due == NOW + 60_000


def test_what_no_longer_fits_follows_and_the_full_one_is_hurried() -> None:
    for changes in ({"items": 5}, {"items": 3}, {"size": MAX_PAYLOAD}):
        made = judge(newcomer(GATHER, items=3), gathering(**changes), NOW)
        assert (made.answer.verdict, made.follows, made.hurry_holder) == (Verdict.FOLLOW, OLD, True)
        assert (made.creates, made.change, made.due) == (True, None, NOW + 3_000)


def test_a_full_holder_that_is_due_or_backing_off_is_not_hurried() -> None:
    assert not judge(newcomer(GATHER, items=3), gathering(items=5, due=NOW), NOW).hurry_holder
    assert not judge(newcomer(GATHER, items=3), gathering(items=5, attempt=1), NOW).hurry_holder


def test_a_collection_is_full_at_the_last_byte() -> None:
    payload = b'{"items":[1]}'
    # The newline between two calls takes a byte too.
    last = MAX_PAYLOAD - len(payload) - 1
    assert judge(newcomer(GATHER, items=1, payload=payload), gathering(size=last), NOW).change is not None
    assert judge(newcomer(GATHER, items=1, payload=payload), gathering(size=last + 1), NOW).creates


def test_while_a_collection_runs_the_next_one_follows_it() -> None:
    made = judge(newcomer(GATHER, items=1), holder(State.RUNNING, GATHER, items=5), NOW)
    assert (made.answer.verdict, made.follows, made.due) == (Verdict.FOLLOW, OLD, NOW + 3_000)


# Rule 7: a retried call after a lost reply.


def test_a_call_repeated_after_it_created_the_holder_gets_created_again_and_writes_nothing() -> None:
    for state in (State.WAITING, State.RUNNING, State.COMPLETED):
        mine = holder(state, id=ChainId(NEW))
        assert judge(newcomer(Unique.latest()), mine, NOW) == Decision(Answer(NEW, Outcome.CREATED))


@pytest.mark.parametrize("outcome", [Outcome.UPDATED, Outcome.POSTPONED, Outcome.COLLECTED])
def test_a_call_repeated_after_it_changed_a_holder_gets_its_answer_and_writes_nothing(
    outcome: Outcome,
) -> None:
    calls = (Call(JobId("x"), Outcome.UPDATED, OLD), Call(NEW, outcome, OLD))
    for state in (State.WAITING, State.RUNNING, State.COMPLETED):
        made = judge(newcomer(Unique.latest()), holder(state, calls=calls), NOW)
        assert made == Decision(Answer(OLD, outcome))


def test_a_repeated_call_names_the_job_it_changed_even_if_another_holds_the_key_now() -> None:
    calls = (Call(NEW, Outcome.UPDATED, JobId("older")),)
    assert judge(newcomer(Unique.latest()), holder(calls=calls), NOW) == Decision(
        Answer(JobId("older"), Outcome.UPDATED)
    )


def test_a_holder_remembers_the_last_few_calls() -> None:
    calls = tuple(Call(JobId(str(number)), Outcome.UPDATED, OLD) for number in range(REMEMBERED_CALLS))
    made = judge(newcomer(Unique.latest()), holder(calls=calls), NOW)
    assert made.change is not None
    assert [call.id for call in made.change.calls] == [*(str(n) for n in range(1, REMEMBERED_CALLS)), NEW]


def test_remembered_calls_go_with_the_key_to_its_next_holder() -> None:
    calls = (Call(JobId("x"), Outcome.UPDATED, OLD),)
    for found in (
        holder(State.RUNNING, calls=calls),
        holder(State.COMPLETED, calls=calls),
        holder(State.BLOCKED, calls=calls, since=NOW - 90_000),
    ):
        assert judge(newcomer(Unique.latest(within=60)), found, NOW).calls == calls


# Rule 9: a caller inside the holder's own running chain.


@pytest.mark.parametrize(
    "policy",
    [
        Unique.in_flight(),
        Unique.once(),
        Unique.throttle(60),
        Unique.restart(),
        Unique.in_flight(running="raise"),
    ],
    ids=["in_flight", "once", "throttle", "restart", "raise"],
)
def test_a_handler_that_asks_for_its_own_key_gets_a_follower(policy: Unique) -> None:
    made = judge(newcomer(policy, caller=ChainId(OLD)), holder(State.RUNNING), NOW)
    assert made == created(Verdict.FOLLOW, State.RUNNING, follows=ChainId(OLD))


def test_a_handler_of_another_chain_is_a_stranger() -> None:
    made = judge(newcomer(Unique.in_flight(), caller=ChainId("other")), holder(State.RUNNING), NOW)
    assert made.answer.outcome is Outcome.KEPT


def test_a_handler_finds_its_own_follower_kept() -> None:
    made = judge(
        newcomer(Unique.in_flight(), caller=ChainId("runner")), holder(follows=ChainId("runner")), NOW
    )
    assert made.answer.outcome is Outcome.KEPT


# Rule 10: an operator's retry.


@pytest.mark.parametrize(
    ("policy", "found", "allowed"),
    [
        (None, holder(State.RUNNING), True),
        (Unique.in_flight(), None, True),
        (Unique.in_flight(), holder(State.RUNNING, id=ChainId(NEW)), True),
        (Unique.in_flight(), holder(State.COMPLETED), True),
        (Unique.in_flight(), holder(State.WAITING), False),
        (Unique.in_flight(), holder(State.RUNNING), False),
        (Unique.in_flight(within=1), holder(State.RUNNING), True),
        (Unique.once(), holder(State.COMPLETED, Unique.once()), False),
        (Unique.latest(), holder(State.RUNNING), False),
        (Unique.restart(), holder(State.WAITING), False),
        (Unique.in_flight(), holder(State.WAITING, expires=NOW), True),
    ],
)
def test_a_retry_may_have_its_key_if_it_is_vacant_its_own_or_the_cell_is_run(
    policy: Unique | None, found: Holder | None, allowed: bool
) -> None:
    rules = None if policy is None else compile_rules(policy, None)
    assert may_revive(NEW, rules, found, NOW) is allowed


def test_a_job_that_was_forced_once_asks_its_policy_when_it_is_retried() -> None:
    rules = compile_rules(Unique.in_flight(), None)
    assert rules is not None
    assert not may_revive(NEW, forced(rules), holder(State.RUNNING), NOW)


def test_where_a_new_job_stands() -> None:
    assert initial_state(NOW, None, NOW) is State.WAITING
    assert initial_state(NOW + 1, None, NOW) is State.DELAYED
    assert initial_state(NOW, ChainId(OLD), NOW) is State.BLOCKED
    assert initial_state(NOW + 1, ChainId(OLD), NOW) is State.BLOCKED


def test_remembered_calls_are_stored_as_short_lists() -> None:
    calls = (Call(NEW, Outcome.UPDATED, OLD),)
    data = msgspec.json.encode(calls)
    assert data == b'[["new","updated","old"]]'
    assert msgspec.json.decode(data, type=tuple[Call, ...]) == calls


POLICIES = [
    Unique.in_flight(),
    Unique.in_flight(within=AGE / 1000),
    Unique.in_flight(within=AGE / 1000 + 1),
    Unique.once(),
    Unique.once(mismatch="raise"),
    Unique.throttle(AGE / 1000 + 1),
    Unique.coalesce(),
    Unique.latest(),
    Unique(queued="keep", running="raise"),
]


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_the_short_way_to_keep_says_what_the_judgement_says(policy: Unique, state: State) -> None:
    for force, fingerprint, expires, calls, caller, gone, own, lane in product(
        (False, True),
        (b"a", b"b"),
        (None, NOW, NOW + 1),
        ((), (Call(NEW, Outcome.UPDATED, OLD),)),
        (None, ChainId(OLD), ChainId("other")),
        (False, True),
        (policy, Unique.in_flight()),
        (None, "l"),
    ):
        job = newcomer(policy, force=force, fingerprint=fingerprint, caller=caller)
        found = holder(state, own, expires=expires, calls=calls, gone=gone, lane=lane)
        assert job.plan is not None
        answer, decision = keep(job, job.plan, found, NOW), judge(job, found, NOW)
        if answer is not None:
            assert decision == Decision(answer)
            assert answer.outcome is Outcome.KEPT
        else:
            assert (
                calls
                or caller == OLD
                or not decision.is_an_answer
                or decision.answer.outcome is not Outcome.KEPT
            )

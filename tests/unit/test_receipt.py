"""A receipt says what happened, to whom, and why, in one line that needs no manual."""

from __future__ import annotations

from typing import Any

import pytest

from onejob import App, DuplicateJob, Outcome, PayloadMismatch, State, Unique, Verdict
from onejob.core.job import JobId
from onejob.core.judge import Answer
from onejob.receipt import Receipt, refusal

NEW = JobId("0198f000-0000-7000-8000-000000000002")
OLD = JobId("0198f000-0000-7000-8000-000000000001")

app = App("memory:")


LATEST = Unique.latest(by=("kind", "id"))


@app.task(name="send", queue="hooks")
def send(id: str, kind: str = "task", note: str = "") -> int:
    return len(note)


def receipt(answer: Answer, policy: Unique | None = LATEST) -> Receipt[int]:
    return Receipt(answer, send.using(unique=policy).job("task-123"), app.client)


def held(outcome: Outcome, verdict: Verdict, *, id: JobId = OLD, **changes: Any) -> Answer:
    facts = {"holder": OLD, "state": State.WAITING, "age": 400} | changes
    return Answer(id, outcome, verdict, **facts)


@pytest.mark.accepts("N25", "Q12")
@pytest.mark.parametrize("outcome", list(Outcome))
def test_only_a_created_job_is_not_deduplicated(outcome: Outcome) -> None:
    assert receipt(held(outcome, Verdict.KEEP)).deduplicated is (outcome is not Outcome.CREATED)


def test_it_carries_every_fact_of_the_answer() -> None:
    made = receipt(held(Outcome.UPDATED, Verdict.UPDATE, payload_differs=True, options_differ=True))
    assert (made.id, made.holder, made.holder_state, made.age) == (OLD, OLD, State.WAITING, 0.4)
    assert (made.outcome, made.verdict) == (Outcome.UPDATED, Verdict.UPDATE)
    assert (made.queue, made.task, made.key) == ("hooks", "send", "task/task-123")
    assert made.payload_differs
    assert made.options_differ


def test_without_a_holder_there_is_no_age() -> None:
    assert receipt(Answer(NEW, Outcome.CREATED)).age is None


@pytest.mark.accepts("G27")
def test_new_or_none_is_for_the_habit_of_none() -> None:
    new = receipt(Answer(NEW, Outcome.CREATED))
    assert new.new_or_none() is new
    assert receipt(held(Outcome.KEPT, Verdict.KEEP)).new_or_none() is None


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            held(Outcome.KEPT, Verdict.KEEP),
            f'kept: key "task/task-123" is held by {OLD} (waiting, 0.4 s old, same arguments)',
        ),
        (
            held(Outcome.UPDATED, Verdict.UPDATE, payload_differs=True, options_differ=True),
            f'updated: key "task/task-123" is held by {OLD} (waiting, 0.4 s old, other arguments, other options)',
        ),
        (Answer(NEW, Outcome.CREATED), f'created: {NEW} holds key "task/task-123"'),
        (
            held(Outcome.CREATED, Verdict.FOLLOW, id=NEW, state=State.RUNNING, age=90_000),
            f'created: {NEW} takes key "task/task-123" and follows {OLD} (running, 90 s old, same arguments)',
        ),
        (
            held(Outcome.CREATED, Verdict.RUN, id=NEW, state=State.COMPLETED, age=7_200_000),
            f'created: {NEW} takes key "task/task-123" from {OLD} (completed, 2 h old, same arguments)',
        ),
        (
            held(Outcome.CREATED, Verdict.LATER, id=NEW),
            f'created: {NEW} takes key "task/task-123" and waits for the window of {OLD} '
            "(waiting, 0.4 s old, same arguments) to end",
        ),
        (
            held(Outcome.CREATED, Verdict.CANCEL, id=NEW),
            f'created: {NEW} takes key "task/task-123" and revokes {OLD} (waiting, 0.4 s old, same arguments)',
        ),
        (Answer(OLD, Outcome.COLLECTED), f"collected: this call had been collected before, into {OLD}"),
    ],
)
def test_it_explains_itself(answer: Answer, words: str) -> None:
    assert str(receipt(answer)) == words


def test_a_job_that_is_not_unique_says_so() -> None:
    made = receipt(Answer(NEW, Outcome.CREATED), policy=None)
    assert made.key is None
    assert str(made) == f"created: {NEW}, not unique"


def test_the_representation_is_as_telling() -> None:
    assert (
        repr(receipt(Answer(NEW, Outcome.CREATED))) == f'<Receipt created: {NEW} holds key "task/task-123">'
    )


def test_a_refusal_names_key_holder_state_age_and_remedy() -> None:
    error = refusal(receipt(held(Outcome.REJECTED, Verdict.RAISE, state=State.RUNNING, age=3_200)))
    assert type(error) is DuplicateJob
    assert error.holder == OLD
    for part in ('"task/task-123"', "'send'", "'hooks'", OLD, "running", "3.2 s old", "force=True"):
        assert part in str(error)


def test_a_refused_mismatch_is_told_apart() -> None:
    strict = Unique.once(by="id", mismatch="raise")
    error = refusal(receipt(held(Outcome.REJECTED, Verdict.RAISE, payload_differs=True), policy=strict))
    assert type(error) is PayloadMismatch
    assert "other arguments" in str(error)

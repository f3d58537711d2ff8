"""From a row to a job: its arguments, its key, when it is due, and why it cannot become one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from onejob import App, Unique
from onejob.core.dedup import Standing, Verdict
from onejob.core.job import JobId
from onejob.intake.due import DueTimes
from onejob.intake.rows import DAY, BadRow, Newcomer, RowReader, rules_for
from onejob.tasks import Sender

NOW = 1_800_000_000_000
"""2027-01-15T08:00:00Z"""
RULES = rules_for(shared=True, flagged=True, look_ahead=0)
ROW = {"id": 1, "to": "+49", "text": "hello", "other": 5}


@pytest.fixture
def app() -> App:
    return App("memory:")


def sender(app: App, **settings: Any) -> Sender[..., Any]:
    @app.task(name="send", **settings)
    def send(to: str, text: str = "-", *args: int, **more: int) -> None: ...

    return send


def reader(given: Sender[..., Any], **settings: Any) -> RowReader:
    return RowReader("sms", given, DueTimes(), RULES, **{"arguments": None, "key": None, **settings})


def read(given: RowReader, row: Any = ROW, due: int = NOW) -> Newcomer:
    return given.newcomer(row, 1, due, NOW)


def test_the_columns_named_like_parameters_are_the_arguments(app: App) -> None:
    made = read(reader(sender(app)))
    assert made.call.arguments == {"to": "+49", "text": "hello", "args": [], "more": {}}


def test_a_parameter_with_a_default_needs_no_column(app: App) -> None:
    made = reader(sender(app))
    assert read(made, {"to": "+49"}).call.arguments["text"] == "-"
    assert made.missing(("id", "to")) is None
    wrong = made.missing(("id", "tos", "text"))
    assert wrong is not None
    assert "no column 'to' for the parameter of that name of task 'send': did you mean 'tos'" in wrong
    assert reader(sender(App("memory:")), arguments=dict).missing(()) is None


def test_objects_have_attributes_for_columns(app: App) -> None:
    @dataclass
    class Message:
        to: str

    assert read(reader(sender(app)), Message("+49")).call.arguments["to"] == "+49"


def test_a_function_says_what_the_arguments_are(app: App) -> None:
    made = reader(sender(app), arguments=lambda row: {"to": row["to"] * 2})
    assert read(made).call.arguments["to"] == "+49+49"


@pytest.mark.parametrize(
    ("settings", "row", "pattern"),
    [
        ({}, {"to": None}, "to must be str, not None"),
        ({}, {}, "is missing 'to'"),
        ({}, {"to": "x" * 1_100_000}, "exceeds maximum size"),
        ({}, {"to": "\ud800"}, "lone surrogate"),
        ({"arguments": lambda row: row["phone"]}, ROW, "arguments=… raised KeyError: 'phone'"),
        ({"arguments": lambda row: 5}, ROW, "arguments=… returned 5, which is no mapping"),
        ({"arguments": lambda row: {5: 5}}, ROW, "is missing 'to'"),
        ({"key": lambda row: 1 / 0}, ROW, "key=… raised ZeroDivisionError"),
        ({"key": lambda row: None}, ROW, "key=… returned None, which is no text"),
        ({"key": lambda row: ""}, ROW, "A key must be 1 to 1024 characters"),
        ({"key": lambda row: "\ud800"}, ROW, "surrogates"),
    ],
)
def test_a_row_that_is_no_good_says_why(
    app: App, settings: dict[str, Any], row: dict[str, Any], pattern: str
) -> None:
    with pytest.raises(BadRow, match=pattern):
        read(reader(sender(app), **settings), row)


def test_a_row_without_an_id_is_no_good(app: App) -> None:
    with pytest.raises(BadRow, match="has no id"):
        reader(sender(app)).newcomer(ROW, None, NOW, NOW)


def test_a_due_time_that_is_none_is_told_of_the_row(app: App) -> None:
    with pytest.raises(BadRow, match="its due time 'soon' cannot be read"):
        reader(sender(app)).due("soon")


def test_the_key_is_the_one_of_a_policy_with_that_text(app: App) -> None:
    task = sender(app)
    made = read(reader(task))
    assert made.key == "job-1-2027-01-15T08:00:00"
    same = task.using(unique=Unique(key=made.key)).job("+49")
    assert same.plan is not None
    assert same.plan.digest == made.digest
    assert reader(task).newcomer(ROW, 1, NOW, NOW, "-sms_16").key == "job-1-2027-01-15T08:00:00-sms_16"


def test_the_scope_of_the_tasks_own_policy_is_kept(app: App) -> None:
    task = sender(app, unique=Unique.once(scope="queue"))
    made = read(reader(task))
    assert made.digest == task.planner.realm.digest((made.key,))


def test_a_job_is_due_when_its_row_is_and_expires_so_long_after(app: App) -> None:
    made = reader(sender(app, expires=60, priority=7))
    late = read(made, due=NOW - 5_000).new_job(JobId("a"), NOW)
    assert (late.delay, late.expires, late.priority) == (0, 60_000, 7)
    early = read(made, due=NOW + 5_000).new_job(JobId("a"), NOW)
    assert (early.delay, early.expires) == (5_000, 65_000)


def test_without_a_flag_a_row_is_too_old_once_its_key_could_be_forgotten(app: App) -> None:
    made = reader(sender(app), oldest=30 * DAY * 1000)
    read(made, due=NOW - 30 * DAY * 1000)
    with pytest.raises(BadRow, match="more than 30 days past due"):
        read(made, due=NOW - 30 * DAY * 1000 - 1)


def test_where_flag_and_job_are_one_commit_only_a_live_job_counts() -> None:
    assert [RULES.verdict(standing, 10**12) for standing in Standing] == [
        Verdict.KEEP,
        Verdict.KEEP,
        Verdict.FOLLOW,
        Verdict.RUN,
        Verdict.RUN,
    ]


def test_elsewhere_a_key_remembers_for_a_day_and_as_long_as_its_job_lives() -> None:
    rules = rules_for(shared=False, flagged=True, look_ahead=0)
    inside, outside = (
        [rules.verdict(standing, age) for standing in (Standing.QUEUED, Standing.COMPLETED, Standing.FAILED)]
        for age in (DAY * 1000 - 1, DAY * 1000)
    )
    assert inside == [Verdict.KEEP] * 3
    assert outside == [Verdict.KEEP, Verdict.RUN, Verdict.RUN]
    unflagged = rules_for(shared=False, flagged=False, look_ahead=3_600_000)
    assert unflagged.window == (30 * DAY + 3600) * 1000

"""From a row to a job: its arguments, its key and its due time, each checked before anything is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction
from typing import Any, Final, TypeAlias, cast

import msgspec

from onejob.core.dedup import Rules, Unique, check_key, compile_rules
from onejob.core.errors import InvalidOption, OnejobError, shown
from onejob.core.identity import key_text
from onejob.core.job import JobId, NewJob
from onejob.hooks import headline
from onejob.intake.due import BadDue, DueTimes
from onejob.intake.sources import Rows, Source
from onejob.keys import near
from onejob.plans import Call, Planner
from onejob.tasks import Sender

ArgumentsOf: TypeAlias = Callable[[Any], Mapping[str, Any]]
"""A function of the user's from a row to the task's arguments by name."""
KeyOf: TypeAlias = Callable[[Any], str]
"""A function of the user's from a row to its job's key."""

DAY: Final = 86_400
MEMORY_WITHOUT_FLAG: Final = 30 * DAY
"""Seconds past its due time for which a row without a flag is known by its key."""


class BadRow(Exception):
    """A row cannot become a job; the message says why, from the row's point of view."""


class Newcomer(msgspec.Struct, frozen=True):
    """A row that can become a job."""

    id: Any
    due: int
    call: Call[Any]

    @property
    def key(self) -> str:
        """Its key as people read it."""
        assert self.call.plan is not None
        return self.call.plan.text

    @property
    def digest(self) -> bytes:
        """Its key as stores know it."""
        assert self.call.plan is not None
        return self.call.plan.digest

    def new_job(self, id: JobId, now: int) -> NewJob:
        """The job that a store is asked to accept at an instant: due when the row is, or at once."""
        made = self.call.planner.new_job(self.call, id, None, lambda: now)
        delay = max(0, self.due - now)
        # A row is fetched before its time, so that `expires` counts from that time.
        expires = None if made.expires is None else made.expires + delay
        return msgspec.structs.replace(made, delay=delay, expires=expires)


class RowReader:
    """Turns the rows of one source into newcomers."""

    def __init__(
        self,
        intake: str,
        sender: Sender[..., Any],
        times: DueTimes,
        rules: Rules,
        *,
        arguments: ArgumentsOf | None,
        key: KeyOf | None,
        oldest: int | None = None,
    ) -> None:
        """`oldest` is how long (ms) past its due time a row is still taken; None is for ever."""
        self.times = times
        self._rules = rules
        self._arguments = arguments
        self._key = key
        self._oldest = oldest
        given = sender.planner
        _check_sender(intake, given)
        self._realm = given.realm
        self._planner: Planner[Any] = Planner(
            given.task,
            given.codec,
            msgspec.structs.replace(given.options, unique=None),
            None,
            given.queues,
            backoffs=given.backoffs,
        )

    @property
    def task(self) -> str:
        """The task whose jobs rows become."""
        return self._planner.task

    @property
    def queue(self) -> str:
        """Where they wait."""
        return self._planner.options.queue

    def missing(self, columns: tuple[str, ...]) -> str | None:
        """Say which parameter of the task has no column to be read from; None if all have, or need none."""
        if self._arguments is not None:
            return None
        for name, needed in self._planner.codec.by_name.items():
            if needed and name not in columns:
                hint = near(name, columns)
                return f"no column {name!r} for the parameter of that name of task {self.task!r}: {hint}"
        return None

    def due(self, value: object) -> int:
        """When a row is due; raises `BadRow`."""
        try:
            return self.times.instant(value)
        except BadDue as bad:
            raise BadRow(str(bad)) from None

    def newcomer(self, row: Any, id: object, due: int, now: int, suffix: str = "") -> Newcomer:
        """What is asked for on behalf of a row; raises `BadRow`. `suffix` tells apart tables whose ids may repeat."""
        if id is None:
            raise BadRow("it has no id")
        if self._oldest is not None and due < now - self._oldest:
            days = self._oldest // (DAY * 1000)
            raise BadRow(f"it is more than {days} days past due, and without a flag nobody knows it any more")
        try:
            text = self._key_of(row, id, due, suffix)
            key = self._realm.digest((text,)), key_text((text,))
            return Newcomer(
                id, due, self._planner.call((), self._arguments_of(row), under=(key, self._rules))
            )
        except BadRow:
            raise
        except OnejobError as error:
            raise BadRow(str(error)) from None
        except Exception as error:  # the user's own functions may raise anything
            raise BadRow(headline(error)) from None

    def _key_of(self, row: Any, id: object, due: int, suffix: str) -> str:
        if self._key is None:
            return check_key(f"job-{id}-{self.times.written(due)}{suffix}")
        try:
            key = self._key(row)
        except Exception as error:
            raise BadRow(f"key=… raised {headline(error)}") from None
        if not isinstance(key, str):
            raise BadRow(f"key=… returned {shown(key)}, which is no text")
        return check_key(key)

    def _arguments_of(self, row: Any) -> Mapping[str, Any]:
        if self._arguments is None:
            return {name: value_of(row, name) for name in self._planner.codec.by_name if has(row, name)}
        try:
            made = cast("object", self._arguments(row))
        except Exception as error:
            raise BadRow(f"arguments=… raised {headline(error)}") from None
        if not isinstance(made, Mapping):
            raise BadRow(f"arguments=… returned {shown(made)}, which is no mapping of names to values")
        return cast("Mapping[str, Any]", made)


def reader_of(
    intake: str,
    source: Source,
    sender: Sender[..., Any],
    *,
    arguments: ArgumentsOf | None,
    key: KeyOf | None,
    look_ahead: int,
) -> RowReader:
    """Read the rows of a source for a task."""
    flagged = source.flagged is not None if isinstance(source, Rows) else source.flag is not None
    return RowReader(
        intake,
        sender,
        DueTimes(source.tz, source.due_as),
        rules_for(shared=one_commit(source), flagged=flagged, look_ahead=look_ahead),
        arguments=arguments,
        key=key,
        oldest=None if flagged else MEMORY_WITHOUT_FLAG * 1000,
    )


def one_commit(source: Source) -> bool:
    """True if a row's flag and its job are written together: then a row that is not flagged has no job."""
    return not isinstance(source, Rows) and source.database is None and source.flag is not None


def rules_for(*, shared: bool, flagged: bool, look_ahead: int) -> Rules:
    """How a key of an intake is judged: what a row that is seen again gets.

    Where flag and job are one commit the flag says it all, and the key only guards a job that lives. Elsewhere the
    key bridges the gap between the two; and where there is no flag, it is all that is known.
    """
    if shared:
        policy = Unique.in_flight()
    else:
        window = DAY if flagged else MEMORY_WITHOUT_FLAG + look_ahead / 1000
        policy = Unique.once(failed="keep", within=window, hold=True)
    rules = compile_rules(policy, None)
    assert rules is not None
    return rules


def check_functions(arguments: object, key: object) -> None:
    """Refuse what cannot be called with a row."""
    for option, function, returns in (
        ("arguments", arguments, "a mapping of arguments by name"),
        ("key", key, "the key of its job"),
    ):
        if function is not None and (not callable(function) or iscoroutinefunction(function)):
            raise InvalidOption(
                f"intake({option}=…) must be a plain function of a row that returns {returns}, or None, not "
                f"{shown(function)}."
            )


def has(row: Any, name: str) -> bool:
    """True if a row has a column of that name."""
    return name in row if isinstance(row, Mapping) else hasattr(row, name)


def value_of(row: Any, name: str) -> Any:
    """What a row has in a column: a mapping's value, or an object's attribute."""
    return cast("Mapping[str, Any]", row)[name] if isinstance(row, Mapping) else getattr(row, name)


def _check_sender(intake: str, planner: Planner[Any]) -> None:
    options = planner.options
    for wrong, option, remedy in (
        (options.policy_of_call, "unique", "the key of a row is the intake's: give it with key=…"),
        (options.force, "force", "each row becomes one job"),
        (options.at is not None, "at", "a job is due when its row is"),
        (options.delay, "delay", "a job is due when its row is: take task.using(delay=0)"),
        (options.blockers, "blockers", "the jobs of rows wait for nobody"),
    ):
        if wrong:
            raise InvalidOption(
                f"Intake {intake!r} cannot take {option}=… of task {planner.task!r}: {remedy}."
            )

"""What `current_job().blockers` is: the chains a job waited for, each with the output of its last job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from onejob.codec import decode_result
from onejob.core.errors import JobFailed, JobRevoked, ResultGone
from onejob.core.job import ChainId, State
from onejob.core.wording import reason
from onejob.store import Blocker as Found

TypeOf = Callable[[str], Any]
"""The type that a task returns, by its name; `Any` for one that is not known here."""


class Blocker:
    """A chain that this job waited for, as it stood when the run began."""

    __slots__ = ("_found", "_type_of")

    def __init__(self, found: Found, type_of: TypeOf) -> None:
        self._found = found
        self._type_of = type_of

    @property
    def id(self) -> ChainId:
        """The chain's id, which is its first job's."""
        return self._found.chain

    @property
    def task(self) -> str:
        """The task of its last job, whose result is the chain's; empty if it is no longer on record."""
        return self._found.task

    @property
    def state(self) -> State | None:
        """How it ended; None if it is no longer on record."""
        return self._found.state

    @property
    def error(self) -> str | None:
        """What it failed of, or why it was revoked."""
        return self._found.error

    @property
    def output(self) -> Any:
        """What its last job returned, as the type which that task declares, if this program has the task.

        Raises `JobFailed` or `JobRevoked` if it did not complete, and `ResultGone` if it is no longer on record.
        """
        found = self._found
        match found.state:
            case State.COMPLETED:
                return decode_result(found.result, self._type_of(found.task))
            case State.FAILED | State.REVOKED:
                kind = JobFailed if found.state is State.FAILED else JobRevoked
                why = reason(found.state, found.error)
                raise kind(
                    f"Blocker {self.id} has no output: its last job, of task {found.task!r}, {found.state}: {why}",
                    id=self.id,
                )
            case None:
                raise ResultGone(
                    f"Blocker {self.id} has no output any more: it was deleted, or pruned. App(retention=…) says how "
                    "long ended jobs are kept."
                )
            case _:
                raise ResultGone(
                    f"Blocker {self.id} has no output now: it was retried, and is {found.state}."
                )

    def __repr__(self) -> str:
        return f"<Blocker {self.id}: {self.state or 'gone'}>"


def as_given(found: Iterable[Found], type_of: TypeOf) -> tuple[Blocker, ...]:
    """What a handler gets to see of the chains that its job waited for, in their order."""
    return tuple(Blocker(one, type_of) for one in found)

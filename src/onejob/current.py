"""The job a handler is running: what `current_job()` returns, and how the handler learns that it should stop.

The worker makes a `CurrentJob` for each start and puts it into the handler's context; threads get a copy.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol

import msgspec

from onejob.core.chain import continuation_id
from onejob.core.errors import InvalidOption, WrongCall, shown
from onejob.core.job import ChainId, Claimed, JobId, Lease, NewJob
from onejob.core.options import decode_options
from onejob.core.timing import as_datetime

if TYPE_CHECKING:
    from onejob.blockers import Blocker
    from onejob.completion import Completion
    from onejob.core.lifecycle import Settlement
    from onejob.core.options import Seconds
    from onejob.logs import JobLogger
    from onejob.plans import Call
    from onejob.store import SettleReply
    from onejob.tasks import Sender

__all__ = [
    "AbortReason",
    "Aborted",
    "CurrentJob",
    "Workplace",
    "bind",
    "bind_lifespan",
    "current_job",
    "running_job",
]

P = ParamSpec("P")

MAX_PROGRESS = 65_536


class AbortReason(StrEnum):
    """Why a run no longer counts."""

    REVOKED = "revoked"
    LOST = "lost"
    """The lease ended; the job goes on without this run, and nothing it writes through onejob is accepted."""
    TIMED_OUT = "timed out"


class Aborted:
    """Whether a handler has been asked to stop, because whatever it returns no longer counts.

    `if job.aborted: …` anywhere; `job.aborted.wait(timeout)` in threads; `await job.aborted` in coroutines.
    """

    __slots__ = ("_lock", "_waiters", "reason")

    def __init__(self) -> None:
        self.reason: AbortReason | None = None
        self._waiters: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return self.reason is not None

    def __repr__(self) -> str:
        return f"<Aborted: {self.reason or 'no'}>"

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until the job is asked to stop; False when the time is up."""
        if _loop_runs_here():
            raise WrongCall("aborted.wait() would block the event loop: write `await current_job().aborted`.")
        told = threading.Event()
        self.when_set(told.set)
        try:
            return told.wait(timeout)
        finally:
            self.forget(told.set)

    def __await__(self) -> Generator[Any, None, AbortReason]:
        """Wait in a coroutine until the job is asked to stop; gives the reason."""
        return self._wait_in_loop().__await__()

    def set(self, reason: AbortReason) -> None:
        """Tell the handler, from whatever thread; the first reason stands. For the worker and for tests."""
        with self._lock:
            if self.reason is not None:
                return
            self.reason = reason
            waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()

    async def _wait_in_loop(self) -> AbortReason:
        import asyncio  # for handlers only

        loop = asyncio.get_running_loop()
        told = asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(told.set)

        self.when_set(wake)
        try:
            await told.wait()
        finally:
            self.forget(wake)
        assert self.reason is not None
        return self.reason

    def when_set(self, wake: Callable[[], object]) -> None:
        """Call this, from whatever thread, once the job is asked to stop, or now if it has been."""
        with self._lock:
            if self.reason is None:
                self._waiters.append(wake)
                return
        wake()

    def forget(self, wake: Callable[[], object]) -> None:
        """Do not call this any more."""
        with self._lock:
            if wake in self._waiters:
                self._waiters.remove(wake)


class Workplace(Protocol):
    """What a worker has for the jobs that it runs."""

    def completion(self, job: CurrentJob, output: object, timeout: Seconds | None) -> Completion:
        """See `CurrentJob.complete`."""
        ...


class CurrentJob:
    """The job that is being run, as its handler sees it."""

    blockers: Sequence[Blocker] = ()
    """The chains that it waited for, in the order given when it was made; each has an `output`."""
    workplace: Workplace | None = None
    """Set by the worker, as is everything that follows; None where a job cannot complete by itself."""
    continuation: Call[Any] | None = None
    """How the chain goes on if this run completes."""
    settling = False
    """Its own `complete()` is ending it: whether its lease held, the store will say there."""
    completed: tuple[Settlement, SettleReply] | None = None
    """How its own `complete()` has ended it."""
    over = False
    """Its handler has returned."""

    latest_progress: bytes | None = None
    """The newest `progress`, encoded; the worker sends it with its next heartbeat."""

    def __init__(self, claimed: Claimed) -> None:
        self._claimed = claimed

    @property
    def id(self) -> JobId:
        """The job's id."""
        return self._claimed.lease.id

    @property
    def lease(self) -> Lease:
        """The right to settle this start of it."""
        return self._claimed.lease

    @property
    def chain(self) -> ChainId:
        """The chain this job belongs to; a lone job is a chain of one."""
        return self._claimed.chain

    @property
    def chain_index(self) -> int:
        """Its place in the chain, from 0."""
        return self._claimed.chain_index

    @property
    def task(self) -> str:
        """The task's name."""
        return self._claimed.task

    @property
    def queue(self) -> str:
        """The queue it was taken from."""
        return self._claimed.queue

    @property
    def attempt(self) -> int:
        """Which start this is, from 1."""
        return self._claimed.attempt

    @property
    def failures(self) -> int:
        """How many earlier runs raised an error."""
        return self._claimed.failures

    @property
    def key(self) -> str | None:
        """The key it took, as people read it; None for a job that is not unique."""
        return self._claimed.key

    @property
    def lane(self) -> str | None:
        """The key of the lane it runs in; None if it has none."""
        return self._claimed.lane

    @cached_property
    def schedule(self) -> str | None:
        """The schedule that made it; None for a job of any other kind."""
        return decode_options(self._claimed.options).schedule

    @cached_property
    def slot(self) -> dt.datetime | None:
        """The nominal time, in UTC, that its schedule made it for; None if it was asked for besides."""
        slot = decode_options(self._claimed.options).slot
        return None if slot is None else as_datetime(slot)

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this job, and for no other job: hand it to what must act only once."""
        return self._claimed.lease.id

    @property
    def lifespan(self) -> Any:
        """What the app's `@app.lifespan` yielded in this worker; None if it has none, or in another process."""
        return _lifespan.get()

    @cached_property
    def aborted(self) -> Aborted:
        """True once this run has been asked to stop."""
        with _making:
            return self.__dict__.setdefault("aborted", Aborted())

    @cached_property
    def logger(self) -> JobLogger:
        """A logger that adds job, task, queue and attempt to each record."""
        from onejob.logs import JobLogger  # for handlers only: who defines tasks imports this module, too

        fields = {"job": self.id, "task": self.task, "queue": self.queue, "attempt": self.attempt}
        return JobLogger(fields)

    def progress(self, value: object) -> None:
        """Say how far the work is: any small JSON value. The newest is stored with the next heartbeat."""
        try:
            data = msgspec.json.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidOption(f"progress(…) takes a JSON value, not {shown(value)}: {error}.") from error
        if len(data) > MAX_PROGRESS:
            raise InvalidOption(
                f"progress(…) takes at most {MAX_PROGRESS} bytes, not {len(data)}: say how far it is, not what it is."
            )
        self.latest_progress = data

    def continue_with(self, task: Sender[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Let the chain go on with this call, of a task or of `task.using(…)`, if this run completes; once.

        The next job is made in the commit that completes this one. It has no key of its own: that is the chain's.
        """
        planner = getattr(task, "planner", None)
        if planner is None:
            raise InvalidOption(
                f"continue_with(…) takes a task, or task.using(…), and then its arguments, not {shown(task)}."
            )
        call: Call[Any] = planner.continuation(args, kwargs)
        with _making:
            if self.over or self.completed is not None:
                raise WrongCall(
                    f"Job {self.id} has ended, so its chain cannot go on with {call.task!r}: call continue_with(…) "
                    "before its handler returns, and before or inside `complete()`."
                )
            if self.continuation is not None:
                raise WrongCall(
                    f"continue_with can only be called once: job {self.id} goes on with {self.continuation.task!r} "
                    "already, and a chain is a line. For several next steps, enqueue them and continue with a job "
                    "that has them as blockers: task.using(blockers=[…])."
                )
            self.continuation = call

    def complete(self, output: object = None, *, timeout: Seconds | None = None) -> Completion:
        """Complete this job as the last act of its handler: `async with` or `with` it `as tx`.

        What `tx` executes, what is enqueued in the block, the job's end with `output` (or `tx.output = …`) as its
        result and the continuation are one commit. Whatever the block raises undoes it all and is for the handler
        to raise; so do `LeaseLost` and `JobRevoked`, if the run may not complete any more. The block holds the
        store's writer: at most `timeout` seconds, 5 unless given, and never more than half a lease.
        """
        if self.workplace is None:
            raise WrongCall(
                "complete() needs the worker that runs the job, and no worker runs this one. In a test, enqueue the "
                "job and run it with onejob.testing.drain(app)."
            )
        return self.workplace.completion(self, output, timeout)

    def next_job(self, clock: Callable[[], int]) -> NewJob | None:
        """The chain's next job, as a store is to make it; None if the chain ends here. For the worker."""
        call = self.continuation
        if call is None:
            return None
        return call.planner.new_job(call, continuation_id(self.chain, self.chain_index + 1), None, clock)

    def __repr__(self) -> str:
        return f"<CurrentJob {self.id}: {self.task}, attempt {self.attempt}>"


_making = threading.Lock()
_running: ContextVar[CurrentJob | None] = ContextVar("onejob_running_job", default=None)

_lifespan: ContextVar[Any] = ContextVar("onejob_lifespan", default=None)

bind = _running.set
"""Make a job the current one of this context; for the worker and for tests."""

bind_lifespan = _lifespan.set
"""Make a value what `current_job().lifespan` is in this context; for the worker and for tests."""


def current_job() -> CurrentJob:
    """Return the job this code is running for; raises `WrongCall` outside a handler."""
    job = _running.get()
    if job is None:
        raise WrongCall(
            "current_job() works inside a task that a worker runs, and nothing is being run here: a task that is "
            "called like a function has no job. In a test, enqueue it and run it with onejob.testing.drain(app)."
        )
    return job


def running_job() -> CurrentJob | None:
    """Return the job this code is running for, or None outside a handler."""
    return _running.get()


def _loop_runs_here() -> bool:
    import asyncio  # for handlers only

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

"""`current_job().complete()`: the end of a job, its continuation and the user's own statements in one commit.

It is the last act of a run. If its block raises, takes too long, or the run may not complete any more, nothing of it
is stored; what becomes of the job is then decided as ever, by how its handler ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, assert_never

from onejob.background import refuse_in_loop
from onejob.codec import encode_result
from onejob.core.compression import compressed
from onejob.core.errors import InvalidOption, JobRevoked, LeaseLost, Refused, WrongCall, shown
from onejob.core.lifecycle import Move, Settlement
from onejob.core.options import Seconds, millis
from onejob.current import AbortReason, CurrentJob
from onejob.loops import outlast
from onejob.store import Settled, SettleReply, Transaction
from onejob.transactions import AppTransaction, AsyncTransaction, Owner, Parameters, Rows, SyncTransaction

DEFAULT_TIMEOUT = 5.0
PART_OF_LEASE = 0.5
"""How much of a lease a block may take: while it holds the writer, no heartbeat is written."""


class Workshop:
    """What one worker has for the jobs that it runs: its app's client, and the length of its lease (seconds)."""

    def __init__(
        self, owner: Owner, *, lease: float, compresses: Callable[[str], bool], clock: Callable[[], int]
    ) -> None:
        self.owner = owner
        self.compresses = compresses
        self.clock = clock
        self._lease = lease

    def completion(self, job: CurrentJob, output: object, timeout: Seconds | None) -> Completion:
        """See `CurrentJob.complete`."""
        longest = self._lease * PART_OF_LEASE
        if timeout is None:
            return Completion(self, job, output, min(DEFAULT_TIMEOUT, longest))
        seconds = millis("timeout", timeout, minimum=1) / 1000
        if seconds > longest:
            raise InvalidOption(
                f"complete(timeout={shown(timeout)}) is more than {longest:g} s, half of this worker's lease of "
                f"{self._lease:g} s: while the block holds the store's writer, no heartbeat is written. Do slow work "
                "before the block, or give the worker a longer lease."
            )
        return Completion(self, job, output, seconds)


class AsyncCompletion:
    """An open `complete()` block, in async code."""

    __slots__ = ("_inner", "output")

    def __init__(self, inner: AsyncTransaction, output: object) -> None:
        self._inner = inner
        self.output: Any = output
        """What the job returns. A handler that declares what it returns ends with `return tx.output`."""

    def execute(self, statement: str, parameters: Parameters = ()) -> Coroutine[Any, Any, Rows]:
        """Run one statement and return its rows; await it."""
        return self._inner.execute(statement, parameters)


class SyncCompletion:
    """An open `complete()` block, in sync code."""

    __slots__ = ("_inner", "output")

    def __init__(self, inner: SyncTransaction, output: object) -> None:
        self._inner = inner
        self.output: Any = output
        """What the job returns. A handler that declares what it returns ends with `return tx.output`."""

    def execute(self, statement: str, parameters: Parameters = ()) -> Rows:
        """Run one statement and return its rows."""
        return self._inner.execute(statement, parameters)


class Completion:
    """What `current_job().complete()` returns; open between entering and leaving the block, once."""

    def __init__(self, workshop: Workshop, job: CurrentJob, output: object, timeout: float) -> None:
        self._workshop = workshop
        self._job = job
        self._output = output
        self._tx: AsyncCompletion | SyncCompletion | None = None
        self._continuation_before = job.continuation
        self._transaction = AppTransaction(workshop.owner, timeout, around=self._settled)

    async def __aenter__(self) -> AsyncCompletion:
        self._may_enter()
        tx = self._tx = AsyncCompletion(await self._transaction.__aenter__(), self._output)
        return tx

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transaction.__aexit__(kind, error, trace)

    def __enter__(self) -> SyncCompletion:
        refuse_in_loop("async with current_job().complete() as tx:")
        self._may_enter()
        tx = self._tx = SyncCompletion(self._transaction.__enter__(), self._output)
        return tx

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transaction.__exit__(kind, error, trace)

    def _may_enter(self) -> None:
        job = self._job
        if job.completed is not None or job.over:
            raise WrongCall(f"Job {job.id} has ended already: complete() is the last act of a handler, once.")
        self._continuation_before = job.continuation
        _refuse_stopped(job)

    @asynccontextmanager
    async def _settled(
        self, manager: AbstractAsyncContextManager[Transaction]
    ) -> AsyncGenerator[Transaction]:
        """The store's transaction with the job's end as its last statement."""
        inner = await manager.__aenter__()
        try:
            yield inner
            settlement, reply = await self._settle(inner)
        except BaseException as error:
            self._undo()
            await manager.__aexit__(type(error), error, error.__traceback__)
            raise
        # A commit cannot be called back, so whoever cancels us meanwhile waits until it is known how it went.
        committing = asyncio.ensure_future(manager.__aexit__(None, None, None))
        cancelled = await outlast(committing)
        if committing.exception() is None:
            self._job.completed = settlement, reply
        else:
            self._undo()
        if cancelled is not None:
            raise cancelled
        committing.result()

    async def _settle(self, inner: Transaction) -> tuple[Settlement, SettleReply]:
        job = self._job
        _refuse_stopped(job)
        settlement = Settlement(
            job.lease, Move.COMPLETE, result=self._result(), then=job.next_job(self._workshop.clock)
        )
        job.settling = True
        reply = await inner.settle(settlement)
        match reply.settled[0]:
            case Settled.DONE | Settled.DIVERGED:
                return settlement, reply
            case Settled.LOST:
                job.aborted.set(AbortReason.LOST)
                raise _lost(job)
            case Settled.REVOKED:
                job.aborted.set(AbortReason.REVOKED)
                raise _revoked(job)
            case Settled.REFUSED:
                raise Refused(reply.reasons[job.id])
            case other:
                assert_never(other)

    def _result(self) -> bytes | None:
        data = encode_result(self._output if self._tx is None else self._tx.output)
        return compressed(data) if data is not None and self._workshop.compresses(self._job.queue) else data

    def _undo(self) -> None:
        """Nothing of the block counts, nor how it let the chain go on: a handler may try once more."""
        self._job.settling = False
        self._job.continuation = self._continuation_before


def _refuse_stopped(job: CurrentJob) -> None:
    match job.aborted.reason:
        case None:
            return
        case AbortReason.REVOKED:
            raise _revoked(job)
        case AbortReason.LOST:
            raise _lost(job)
        case AbortReason.TIMED_OUT:
            raise LeaseLost(
                f"Job {job.id} cannot complete: its time was up, and this attempt counts as failed."
            )
        case other:
            assert_never(other)


def _lost(job: CurrentJob) -> LeaseLost:
    return LeaseLost(
        f"Job {job.id} cannot complete: its lease has ended and the job goes on without this run. Nothing of this "
        "complete() is stored."
    )


def _revoked(job: CurrentJob) -> JobRevoked:
    return JobRevoked(
        f"Job {job.id} cannot complete: it has been revoked. Nothing of this complete() is stored.", id=job.id
    )

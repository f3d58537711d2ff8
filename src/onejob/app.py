"""The app: a store's URL, the tasks registered on it, and everything one can ask of them.

Sync methods run their async twins (named with an `a`) on the client's private loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, overload

from onejob import operations
from onejob.client import Client
from onejob.core.dedup import Unique
from onejob.core.errors import InvalidOption, UnknownTask, shown
from onejob.core.job import Job, JobId, State
from onejob.core.options import Seconds, check_name
from onejob.explain import Explanation
from onejob.keys import near
from onejob.plans import Call, CallOptions, TaskSettings, changed, checked_policy, milliseconds
from onejob.receipt import Receipt
from onejob.settings import (
    Retention,
    Strategy,
    Wanted,
    WorkerOptions,
    checked_url,
    checked_window,
    job_filter,
)
from onejob.store import Amended, Amendment, JobStore, Page
from onejob.tasks import AsyncTask, SyncTask, Task, task_name
from onejob.transactions import AppTransaction

if TYPE_CHECKING:
    from onejob.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=Strategy)


class TaskDecorator(Protocol):
    """What `app.task(…)` returns: turns a function into a task."""

    # A coroutine function is also a function that returns a coroutine: the first overload takes it.

    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...


class App:
    """Tasks and the store their jobs are in.

    `url` is `$ONEJOB_URL` unless given, else a file in the current directory. `unique` is the policy of every
    task that sets none (`unique=None` on a task turns it off); `window` (default `$ONEJOB_WINDOW`) is what
    `within=onejob.APP_WINDOW` stands for; `queue` is where tasks wait that name no queue. `clock` returns
    milliseconds and is for tests.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        queue: str = CallOptions().queue,
        unique: Unique | None = None,
        window: Seconds | None = None,
        retention: Retention | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._url = checked_url(url)
        self._clock = clock
        self._defaults = CallOptions(queue=check_name("Queue", queue), unique=checked_policy(unique))
        self._window = checked_window(window)
        self.retention = retention or Retention()
        self.client = Client(self._make_store, clock=clock or milliseconds)
        self._tasks: dict[str, Task[..., Any]] = {}
        self._backoffs: dict[str, Strategy] = {}

    @property
    def url(self) -> str:
        """The store's URL, fit to be shown: without a password."""
        from onejob.stores import without_password

        return without_password(self._url)

    @property
    def store(self) -> JobStore:
        """The store, opened on first use."""
        return self.client.store

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The tasks registered so far, by name."""
        return MappingProxyType(self._tasks)

    @property
    def backoffs(self) -> Mapping[str, Strategy]:
        """The named retry strategies registered so far."""
        return MappingProxyType(self._backoffs)

    @overload
    def task(  # pyright: ignore[reportOverlappingOverload]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def task(
        self, /, *, name: str | None = None, cancel_on_abort: bool = False, **settings: Unpack[TaskSettings]
    ) -> TaskDecorator: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        cancel_on_abort: bool = False,
        **settings: Unpack[TaskSettings],
    ) -> Any:
        """Register a function as a task; use it as `@app.task` or `@app.task(queue=…, unique=…, …)`.

        Its name is `module.function` unless given; a script's module is its file's name. `cancel_on_abort`
        cancels the coroutine of a revoked job instead of only telling it.
        """
        options = changed(self._defaults, settings, of_task=True)

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            return self._register(function, task_name(function, name), options, cancel_on_abort)

        return register if function is None else register(function)

    def task_named(self, name: str) -> Task[..., Any]:
        """The task of that name; `UnknownTask` names near matches."""
        try:
            return self._tasks[name]
        except (KeyError, TypeError):
            known = f"there are {', '.join(self._tasks) or 'none'}."
            hint = near(name, tuple(self._tasks), otherwise=known) if isinstance(name, str) else known
            raise UnknownTask(f"This app has no task {shown(name)}: {hint}") from None

    def backoff(self, name: str) -> Callable[[S], S]:
        """Register `(failures, error) -> seconds` as a retry strategy for `Retry(backoff=name)`."""
        check_name("Backoff", name)
        if name in self._backoffs:
            raise InvalidOption(f"Backoff {name!r} is registered already: give this one another name.")

        def register(strategy: S) -> S:
            self._backoffs[name] = strategy
            return strategy

        return register

    def enqueue_many(self, calls: Iterable[Call[Any]]) -> list[Receipt[Any]]:
        """Enqueue calls made with `task.job(…)`: one receipt each, in order, as if enqueued one by one.

        Everything is checked before anything is stored; then each 1,000 are one commit per queue. A call that
        its policy refuses gets a receipt that says `rejected`.
        """
        return self.client.enqueue_many(calls)

    async def aenqueue_many(self, calls: Iterable[Call[Any]]) -> list[Receipt[Any]]:
        """As `enqueue_many`, in async code."""
        return await self.client.aenqueue_many(calls)

    def transaction(self, timeout: Seconds = 5) -> AppTransaction:
        """Your own statements and this app's enqueues in one commit: `async with` or `with` it `as tx`.

        An error rolls everything back; a block longer than `timeout` seconds does, too. Receipts made inside
        are true once the block has ended.
        """
        return AppTransaction(self.client, timeout)

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """A worker for this app's tasks: `async with app.worker(…):`, or `await app.worker(…).run()`."""
        from onejob.worker import Worker, WorkerSetup

        setup = WorkerSetup(self.store, self.tasks, self.backoffs, self.retention.stored())
        return Worker(setup, **options)

    def explain(self, subject: str | Receipt[Any]) -> Explanation:
        """Say how a job and its key stand, why it waits, and what a call like it would get now."""
        return self.client.call(self.aexplain(subject), instead="await app.aexplain(…)")

    async def aexplain(self, subject: str | Receipt[Any]) -> Explanation:
        """As `explain`, in async code."""
        return await operations.explain(self.store, subject)

    def release(
        self, key: str | tuple[object, ...] | Receipt[Any], *, task: Task[..., Any] | str | None = None
    ) -> JobId | None:
        """Make a key vacant, so that the next call is created; returns the job that held it, if any.

        Give a receipt, or the key of a `task`: as text, or as a tuple of its parts.
        """
        return self.client.call(self.arelease(key, task=task), instead="await app.arelease(…)")

    async def arelease(
        self, key: str | tuple[object, ...] | Receipt[Any], *, task: Task[..., Any] | str | None = None
    ) -> JobId | None:
        """As `release`, in async code."""
        if isinstance(key, Receipt):
            return await operations.release_one_call(self.store, key.call)
        if task is None:
            raise InvalidOption("release(key) needs task=…: a key belongs to a task and its queue.")
        found = self.task_named(task) if isinstance(task, str) else task
        return await operations.release_key(self.store, key, found.planner)

    def revoke(self, job: str | Receipt[Any]) -> Amended:
        """Stop a job: `revoked` if it was queued, `flagged` if it runs, else `finished` or `not_found`."""
        return self.client.call(self.arevoke(job), instead="await app.arevoke(…)")

    async def arevoke(self, job: str | Receipt[Any]) -> Amended:
        """As `revoke`, in async code."""
        return await operations.amend(self.store, job, Amendment.REVOKE)

    def retry(self, job: str | Receipt[Any], *, force: bool = False) -> Amended:
        """Revive a failed or revoked job with a fresh budget: `retried`, or `kept` if another holds its key.

        `force=True` revives it without the key.
        """
        return self.client.call(self.aretry(job, force=force), instead="await app.aretry(…)")

    async def aretry(self, job: str | Receipt[Any], *, force: bool = False) -> Amended:
        """As `retry`, in async code."""
        amendment = Amendment.RETRY_WITHOUT_KEY if force else Amendment.RETRY
        return await operations.amend(self.store, job, amendment)

    def delete(self, job: str | Receipt[Any]) -> Amended:
        """Remove a job from the record: `deleted`, `running` or `not_found`; its key remembers its end."""
        return self.client.call(self.adelete(job), instead="await app.adelete(…)")

    async def adelete(self, job: str | Receipt[Any]) -> Amended:
        """As `delete`, in async code."""
        return await operations.amend(self.store, job, Amendment.DELETE)

    def job(self, job: str | Receipt[Any]) -> Job | None:
        """One job as it stands now; None if it never was or is gone."""
        return self.client.call(self.ajob(job), instead="await app.ajob(…)")

    async def ajob(self, job: str | Receipt[Any]) -> Job | None:
        """As `job`, in async code."""
        return await self.store.job(operations.job_id(job))

    def jobs(self, *, limit: int = 100, cursor: str | None = None, **wanted: Unpack[Wanted]) -> Page:
        """Jobs by `queue`, `task`, `states` or `key`, newest first; `cursor` is the page before's."""
        return self.client.call(
            self.ajobs(limit=limit, cursor=cursor, **wanted), instead="await app.ajobs(…)"
        )

    async def ajobs(self, *, limit: int = 100, cursor: str | None = None, **wanted: Unpack[Wanted]) -> Page:
        """As `jobs`, in async code."""
        return await self.store.jobs(job_filter(wanted), limit, cursor)

    def counts(self) -> dict[str, dict[State, int]]:
        """How many jobs there are, by queue and state."""
        return self.client.call(self.acounts(), instead="await app.acounts()")

    async def acounts(self) -> dict[str, dict[State, int]]:
        """As `counts`, in async code."""
        return await self.store.counts()

    def close(self) -> None:
        """Let calls under way end and let go of the store."""
        self.client.close()

    async def aclose(self) -> None:
        """As `close`, in async code."""
        await self.client.aclose()

    def __enter__(self) -> Self:
        self.client.reopen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        self.client.reopen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _make_store(self) -> JobStore:
        from onejob.stores import open_store

        return open_store(self._url, clock=self._clock)

    def _register(
        self, function: Callable[..., Any], name: str, options: CallOptions, cancel_on_abort: bool
    ) -> Task[..., Any]:
        if name in self._tasks:
            other = self._tasks[name].function
            raise InvalidOption(
                f"Task name {name!r} is taken by {other.__module__}.{other.__qualname__}: give one of them "
                "another with @app.task(name=…)."
            )
        fitting = AsyncTask if inspect.iscoroutinefunction(function) else SyncTask
        kind = cast("type[Task[..., Any]]", fitting)
        task = kind(
            function,
            name=name,
            options=options,
            cancel_on_abort=cancel_on_abort,
            outlet=self.client,
            app_window=self._window,
        )
        self._tasks[name] = task
        return task

"""The app: a store's URL, the tasks registered on it, and everything one can ask of them.

Sync methods run their async twins (named with an `a`) on the client's private loop.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, overload

from onejob import bulk, operations
from onejob.core.dedup import Unique
from onejob.core.errors import InvalidOption, UnknownTask, shown
from onejob.core.filter import JobFilter, as_filter
from onejob.core.job import Job, JobId, State
from onejob.core.lane import QueueLimits
from onejob.core.options import Seconds, check_name
from onejob.explain import Explanation
from onejob.hooks import AfterEnqueue, BeforeEnqueue, Hooks, Lifespan, OnEnd, OnStart
from onejob.keys import all_there_are, near
from onejob.plans import Call, CallOptions, TaskSettings, changed, checked_policy, milliseconds
from onejob.queues import Compression, Queue, Queues
from onejob.receipt import Receipt
from onejob.settings import (
    Retention,
    Strategy,
    WorkerOptions,
    checked_url,
    checked_window,
)
from onejob.store import Amended, Amendment, DeadErrors, JobStore, LaneView, Page
from onejob.stores import absolute, check_url, has_tables, open_store, without_password
from onejob.tasks import AsyncTask, Sender, SyncTask, Task, is_redefinition, task_name

if TYPE_CHECKING:
    from onejob.client import Client
    from onejob.core.schedule import CatchUp, Definition
    from onejob.core.timing import Cron, Every
    from onejob.intake.handle import Intake
    from onejob.intake.rows import ArgumentsOf, KeyOf
    from onejob.intake.sources import Source
    from onejob.queue_handle import QueueHandle
    from onejob.schedules import Schedules
    from onejob.transactions import AppTransaction
    from onejob.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=Strategy)
Before = TypeVar("Before", bound=BeforeEnqueue)
After = TypeVar("After", bound=AfterEnqueue)
Start = TypeVar("Start", bound=OnStart)
End = TypeVar("End", bound=OnEnd)
Life = TypeVar("Life", bound=Lifespan)


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
    `within=onejob.APP_WINDOW` stands for; `queue` is where tasks wait that name no queue. `queues` has settings
    per queue, `compression` and `dead_letter` are those of queues that say nothing of their own; see `Queue`.
    `clock` returns milliseconds and is for tests.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        queue: str = CallOptions().queue,
        unique: Unique | None = None,
        window: Seconds | None = None,
        queues: Mapping[str, Queue] | None = None,
        compression: Compression | None = None,
        dead_letter: str | None = None,
        retention: Retention | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._url = check_url(checked_url(url))
        self._clock = clock
        self._defaults = CallOptions(queue=check_name("Queue", queue), unique=checked_policy(unique))
        self._window = checked_window(window)
        self.queues = Queues(queues, compression=compression, dead_letter=dead_letter)
        self.retention = retention or Retention()
        self.hooks = Hooks()
        """The hooks registered so far."""
        self._tasks: dict[str, Task[..., Any]] = {}
        self._backoffs: dict[str, Strategy] = {}
        self._declared: dict[str, Definition] = {}
        self._intakes: dict[str, Intake] = {}

    def __repr__(self) -> str:
        return f"<App on {self.url}, {len(self._tasks)} task{'' if len(self._tasks) == 1 else 's'}>"

    @property
    def url(self) -> str:
        """The store's URL, fit to be shown: without a password."""
        return without_password(self._url)

    @property
    def clock(self) -> Callable[[], int] | None:
        """The clock it was given; None if its store has its own."""
        return self._clock

    @property
    def client(self) -> Client:
        """The way to the store, made on first use."""
        made = vars(self)
        if "_client" not in made:
            from onejob.client import Client  # with it comes asyncio, of which defining tasks has no need

            clock = self._clock or milliseconds
            client = Client(self._make_store, self.hooks, clock=clock, result_type=self._result_type)
            made.setdefault("_client", client)  # of two threads, the first one's
        return made["_client"]

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
        self,
        /,
        *,
        name: str | None = None,
        cancel_on_abort: bool = False,
        process: bool = False,
        **settings: Unpack[TaskSettings],
    ) -> TaskDecorator: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        cancel_on_abort: bool = False,
        process: bool = False,
        **settings: Unpack[TaskSettings],
    ) -> Any:
        """Register a function as a task; use it as `@app.task` or `@app.task(queue=…, unique=…, …)`.

        Its name is `module.function` unless given; a script's module is its file's name. A shell or a notebook
        may define it again, and the newest counts. `cancel_on_abort` cancels the coroutine of a revoked job
        instead of only telling it, or kills its process. `process=True` runs a plain function in a process of its
        own, for work that computes: beside the others on another core, and killed if it must be.
        """
        options = changed(self._defaults, settings, of_task=True)

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            return self._register(function, task_name(function, name), options, cancel_on_abort, process)

        return register if function is None else register(function)

    def task_named(self, name: str) -> Task[..., Any]:
        """The task of that name; `UnknownTask` names near matches."""
        try:
            return self._tasks[name]
        except (KeyError, TypeError):
            known = tuple(self._tasks)
            hint = near(name, known) if isinstance(name, str) else all_there_are(known)
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

    def before_enqueue(self, hook: Before) -> Before:
        """Register a function of the call, made before anything is stored; what it raises refuses the call."""
        self.hooks.add_before_enqueue(hook)
        return hook

    def after_enqueue(self, hook: After) -> After:
        """Register a function of the receipt of each call; what goes wrong in it is logged."""
        self.hooks.add_after_enqueue(hook)
        return hook

    def on_start(self, hook: Start) -> Start:
        """Register a function of the job, called in the worker before each attempt."""
        self.hooks.add_on_start(hook)
        return hook

    def on_end(self, hook: End) -> End:
        """Register a function of the job and of how the attempt ended, called once the store has recorded it."""
        self.hooks.add_on_end(hook)
        return hook

    def lifespan(self, function: Life) -> Life:
        """Register an async generator function that opens, yields and closes what handlers share.

        Each worker enters it before its first job and leaves it after its last; `current_job().lifespan` is what
        it yields.
        """
        self.hooks.set_lifespan(function)
        return function

    def enqueue_many(self, calls: Iterable[Call[Any]], *, connection: object = None) -> list[Receipt[Any]]:
        """Enqueue calls made with `task.job(…)`: one receipt each, in order, as if enqueued one by one.

        Everything is checked before anything is stored; then each 1,000 are one commit per queue. A call that
        its policy refuses gets a receipt that says `rejected`. With a `connection` of your own to the store's
        PostgreSQL database, all of it is part of the transaction that is open there.
        """
        return self.client.enqueue_many(calls, connection)

    async def aenqueue_many(
        self, calls: Iterable[Call[Any]], *, connection: object = None
    ) -> list[Receipt[Any]]:
        """As `enqueue_many`, in async code."""
        return await self.client.aenqueue_many(calls, connection)

    def transaction(self, timeout: Seconds = 5) -> AppTransaction:
        """Your own statements and this app's enqueues in one commit: `async with` or `with` it `as tx`.

        An error rolls everything back; a block longer than `timeout` seconds does, too. Receipts made inside
        are true once the block has ended.
        """
        from onejob.transactions import AppTransaction  # late as the client is

        return AppTransaction(self.client, timeout)

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """A worker for this app's tasks: `async with app.worker(…):`, or `await app.worker(…).run()`."""
        from onejob.worker import Worker, WorkerSetup

        setup = WorkerSetup(
            self.store,
            self.tasks,
            self.backoffs,
            self.retention.stored(),
            self.queues.compresses,
            self.hooks,
            absolute(self._url),
            self.client,
            self._clock or milliseconds,
            self.declared_schedules,
            self.intakes,
        )
        return Worker(setup, **options)

    def schedule(self, id: str, timing: Cron | Every, job: Call[Any], *, catch_up: CatchUp = "one") -> None:
        """Declare a schedule: each slot of `timing` becomes a job, once, whichever worker is there.

        `job` is a call made with `task.job(…)`, or with `task.using(…).job(…)`; the task's own `unique=…` does not
        apply, one given by `using(unique=…)` does. Slots that come while no worker runs become one job when one is
        back, or none with `catch_up="none"`. A worker puts the schedule into the store when it starts; one that you
        take out of the code is reported, and stays until it is removed. Everything else is in `app.schedules`.
        """
        from onejob.schedules import defined  # late, as most programs have no schedules

        if check_name("Schedule", id) in self._declared:
            raise InvalidOption(f"Schedule {id!r} is declared twice: give one of them another id.")
        self._declared[id] = defined(id, timing, job, catch_up)

    @property
    def declared_schedules(self) -> Mapping[str, Definition]:
        """The schedules that the code declares, by id."""
        return MappingProxyType(self._declared)

    @property
    def schedules(self) -> Schedules:
        """The schedules in the store: put, list, pause, run and remove them."""
        from onejob.schedules import Schedules  # as above

        return Schedules(lambda: self.client)

    def intake(
        self,
        name: str,
        source: Source,
        task: Sender[..., Any],
        *,
        arguments: ArgumentsOf | None = None,
        key: KeyOf | None = None,
        look_ahead: Seconds = 3600,
        per_fetch: int = 1000,
        every: Seconds = 30,
    ) -> Intake:
        """Declare that rows of a `Table`, a `Query` or `Rows` become jobs of a task, each row once, when they are due.

        `arguments` makes a row into the task's arguments by name; without it, those are the columns named like its
        parameters. `key` makes a row into its job's key, else that is `job-{id}-{time}`. Every so many seconds (`every`)
        each worker of this app takes the rows that are due within `look_ahead` seconds, `per_fetch` at a time.
        """
        from onejob.intake.handle import declared  # late, as most programs have no intake

        made = declared(
            self._intakes.values(),
            name,
            source,
            task,
            arguments=arguments,
            key=key,
            look_ahead=look_ahead,
            per_fetch=per_fetch,
            every=every,
            client=lambda: self.client,
            url=absolute(self._url),
            has_tables=has_tables(self._url),
        )
        self._intakes[name] = made
        return made

    @property
    def intakes(self) -> Mapping[str, Intake]:
        """The intakes declared so far, by name."""
        return MappingProxyType(self._intakes)

    def explain(self, subject: str | Receipt[Any]) -> Explanation:
        """Say how a job and its key stand, why it waits, and what a call like it would get now."""
        return self.client.call(self.aexplain(subject), instead="await app.aexplain(…)")

    async def aexplain(self, subject: str | Receipt[Any]) -> Explanation:
        """As `explain`, in async code."""
        return await operations.explain(self.store, subject)

    def release(
        self,
        key: str | tuple[object, ...] | Receipt[Any] | None = None,
        *,
        task: Task[..., Any] | str | None = None,
    ) -> JobId | None:
        """Make a key vacant, so that the next call is created; returns the job that held it, if any.

        Give a receipt, or the key of a `task`: as text, or as a tuple of its parts.
        """
        return self.client.call(self.arelease(key, task=task), instead="await app.arelease(…)")

    async def arelease(
        self,
        key: str | tuple[object, ...] | Receipt[Any] | None = None,
        *,
        task: Task[..., Any] | str | None = None,
    ) -> JobId | None:
        """As `release`, in async code."""
        if isinstance(key, Receipt):
            return await operations.release_one_call(self.store, key.call)
        if key is None:
            raise InvalidOption(
                "release(…) takes a receipt, or a key and its task=…; task.release(…) takes the arguments of a call."
            )
        if task is None:
            raise InvalidOption("release(key) needs task=…: a key belongs to a task and its queue.")
        return await operations.release_key(self.store, key, self._task(task).planner)

    def revoke(
        self,
        job: str | Receipt[Any] | None = None,
        *,
        key: str | tuple[object, ...] | None = None,
        task: Task[..., Any] | str | None = None,
    ) -> Amended:
        """Stop a job: `revoked` if it was queued, `flagged` if it runs, else `finished` or `not_found`.

        Give its id or a receipt, or the `key` that it holds (as text, or as a tuple of its parts) and the `task`
        of that key; one that nobody holds is `not_found`. A flagged job's handler sees `current_job().aborted` within a second, and the job ends revoked
        whatever its handler does then.
        """
        return self.client.call(self.arevoke(job, key=key, task=task), instead="await app.arevoke(…)")

    async def arevoke(
        self,
        job: str | Receipt[Any] | None = None,
        *,
        key: str | tuple[object, ...] | None = None,
        task: Task[..., Any] | str | None = None,
    ) -> Amended:
        """As `revoke`, in async code."""
        if (job is None) == (key is None) or (key is None) != (task is None):
            raise InvalidOption(
                "revoke(…) takes a job's id or receipt, or else key=… and the task=… of that key."
            )
        if key is not None and task is not None:
            return await operations.revoke_key(self.store, key, self._task(task).planner)
        return await operations.amend(self.store, cast("str | Receipt[Any]", job), Amendment.REVOKE)

    def retry(self, job: str | Receipt[Any], *, force: bool = False) -> Amended:
        """Revive a failed or revoked job with a fresh budget: `retried`, or `kept` if another holds its key.

        `force=True` revives it without the key.
        """
        return self.client.call(self.aretry(job, force=force), instead="await app.aretry(…)")

    async def aretry(self, job: str | Receipt[Any], *, force: bool = False) -> Amended:
        """As `retry`, in async code."""
        amendment = Amendment.RETRY_WITHOUT_KEY if force else Amendment.RETRY
        return await operations.amend(self.store, job, amendment)

    def delete(self, job: str | Receipt[Any], *, cascade: bool = False) -> Amended:
        """Remove a job and its chain from the record: `deleted`, `running` or `not_found`; its key remembers its end.

        One that other jobs wait for is `awaited` and stays, unless `cascade=True`: to them it is then revoked.
        """
        return self.client.call(self.adelete(job, cascade=cascade), instead="await app.adelete(…)")

    async def adelete(self, job: str | Receipt[Any], *, cascade: bool = False) -> Amended:
        """As `delete`, in async code."""
        amendment = Amendment.DELETE_WITH_WAITING if cascade else Amendment.DELETE
        return await operations.amend(self.store, job, amendment)

    def job(self, job: str | Receipt[Any]) -> Job | None:
        """One job as it stands now; None if it never was or is gone."""
        return self.client.call(self.ajob(job), instead="await app.ajob(…)")

    async def ajob(self, job: str | Receipt[Any]) -> Job | None:
        """As `job`, in async code."""
        return await self.store.job(operations.job_id(job))

    def chain(self, job: str | Receipt[Any]) -> list[Job]:
        """All jobs of the chain that a job belongs to, by place; none if it never was or is gone."""
        return self.client.call(self.achain(job), instead="await app.achain(…)")

    async def achain(self, job: str | Receipt[Any]) -> list[Job]:
        """As `chain`, in async code."""
        return await self.store.chain(operations.job_id(job))

    def jobs(self, filter: str | JobFilter = "", *, limit: int = 100, cursor: str | None = None) -> Page:
        """Jobs that a filter matches (`"state:failed task:sync"`), newest first; `cursor` is the page before's."""
        return self.client.call(self.ajobs(filter, limit=limit, cursor=cursor), instead="await app.ajobs(…)")

    async def ajobs(
        self, filter: str | JobFilter = "", *, limit: int = 100, cursor: str | None = None
    ) -> Page:
        """As `jobs`, in async code."""
        return await bulk.page(self.store, filter, limit, cursor)

    def count(self, filter: str | JobFilter = "") -> int:
        """How many jobs a filter matches."""
        return self.client.call(self.acount(filter), instead="await app.acount(…)")

    async def acount(self, filter: str | JobFilter = "") -> int:
        """As `count`, in async code."""
        return await self.store.count(as_filter(filter))

    def retry_many(self, filter: str | JobFilter, *, force: bool = False) -> Counter[Amended]:
        """Revive the jobs that a filter matches; returns how many were `retried`, `kept` and so on.

        Failed ones, unless the filter says `state:revoked`; and dead letters, if it names their queue, their
        origin or their ids. Not one transaction: batch after batch.
        """
        return self.client.call(self.aretry_many(filter, force=force), instead="await app.aretry_many(…)")

    async def aretry_many(self, filter: str | JobFilter, *, force: bool = False) -> Counter[Amended]:
        """As `retry_many`, in async code."""
        amendment = Amendment.RETRY_WITHOUT_KEY if force else Amendment.RETRY
        return await bulk.amend_many(self.store, filter, amendment)

    def delete_many(self, filter: str | JobFilter) -> Counter[Amended]:
        """Remove the jobs that a filter matches, batch after batch; those that run stay."""
        return self.client.call(self.adelete_many(filter), instead="await app.adelete_many(…)")

    async def adelete_many(self, filter: str | JobFilter) -> Counter[Amended]:
        """As `delete_many`, in async code."""
        return await bulk.amend_many(self.store, filter, Amendment.DELETE)

    def revoke_many(self, filter: str | JobFilter) -> Counter[Amended]:
        """Stop the jobs that a filter matches, batch after batch; those that have ended stay as they are."""
        return self.client.call(self.arevoke_many(filter), instead="await app.arevoke_many(…)")

    async def arevoke_many(self, filter: str | JobFilter) -> Counter[Amended]:
        """As `revoke_many`, in async code."""
        return await bulk.amend_many(self.store, filter, Amendment.REVOKE)

    def dead(self, queue: str | None = None, start: int = 0, stop: int = 50) -> list[Job]:
        """The dead letters of a queue (None: of all), newest first, from `start` up to but without `stop`.

        The queue is the one in which the jobs failed. Each is a job of its own that waits in the dead-letter
        queue; `origin` names the one that failed. `retry` and `delete` take either id.
        """
        return self.client.call(self.adead(queue, start, stop), instead="await app.adead(…)")

    async def adead(self, queue: str | None = None, start: int = 0, stop: int = 50) -> list[Job]:
        """As `dead`, in async code."""
        return await operations.dead(self.store, queue, start, stop)

    def dead_errors(self, queue: str | None = None, *, limit: int = 100) -> list[DeadErrors]:
        """What the dead letters of a queue (None: of all) died of, the commonest error first."""
        return self.client.call(self.adead_errors(queue, limit=limit), instead="await app.adead_errors(…)")

    async def adead_errors(self, queue: str | None = None, *, limit: int = 100) -> list[DeadErrors]:
        """As `dead_errors`, in async code."""
        return await operations.dead_errors(self.store, queue, limit)

    def counts(self) -> dict[str, dict[State, int]]:
        """How many jobs there are, by queue and state."""
        return self.client.call(self.acounts(), instead="await app.acounts()")

    async def acounts(self) -> dict[str, dict[State, int]]:
        """As `counts`, in async code."""
        return await self.store.counts()

    def queue(self, name: str) -> QueueHandle:
        """A queue's limits, over all workers: `app.queue("mail").set_concurrency(20)`, `pause()` and so on."""
        from onejob.queue_handle import QueueHandle  # for operators

        return QueueHandle(name, lambda: self.client)

    def limits(self) -> dict[str, QueueLimits]:
        """The limits of every queue that has any, or is paused."""
        return self.client.call(self.alimits(), instead="await app.alimits()")

    async def alimits(self) -> dict[str, QueueLimits]:
        """As `limits`, in async code."""
        return await self.store.limits()

    def lanes(self, queue: str | None = None, *, limit: int = 100) -> list[LaneView]:
        """The lanes in use of a queue (None: of all): their limits, who takes their slots, how many are ready."""
        return self.client.call(self.alanes(queue, limit=limit), instead="await app.alanes(…)")

    async def alanes(self, queue: str | None = None, *, limit: int = 100) -> list[LaneView]:
        """As `lanes`, in async code."""
        return await operations.lanes(self.store, queue, limit)

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

    def _task(self, task: Task[..., Any] | str) -> Task[..., Any]:
        return task if isinstance(task, Task) else self.task_named(task)

    def _result_type(self, task: str) -> Any:
        return self._tasks[task].codec.result_type if task in self._tasks else Any

    def _make_store(self) -> JobStore:
        return open_store(self._url, clock=self._clock)

    def _register(
        self,
        function: Callable[..., Any],
        name: str,
        options: CallOptions,
        cancel_on_abort: bool,
        process: bool,
    ) -> Task[..., Any]:
        taken = self._tasks.get(name)
        if taken is not None and not is_redefinition(function, taken.function):
            other = taken.function
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
            process=process,
            outlet=lambda: self.client,
            app_window=self._window,
            queues=self.queues,
            backoffs=self._backoffs.keys(),
        )
        self._tasks[name] = task
        return task

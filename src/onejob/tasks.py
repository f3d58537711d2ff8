"""Tasks: registered functions that can be called, or enqueued with the same typed arguments.

A `Sender` enqueues calls of one task with certain options; a `Task` is the sender with the task's own, and
`.using(…)` makes another. Nothing here talks to a store: that is the outlet's part.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, Protocol, TypeVar, Unpack, cast

from onejob.codec import CallCodec
from onejob.core.errors import InvalidOption, shown
from onejob.core.job import JobId
from onejob.core.options import check_name
from onejob.explain import Explanation
from onejob.plans import Call, CallOptions, CallSettings, Planner, changed
from onejob.queues import Queues
from onejob.receipt import Receipt
from onejob.store import Amended

P = ParamSpec("P")
R = TypeVar("R")

_NOWHERE = ""
"""The module of what is typed into a shell or a notebook, or read from standard input: none to be imported."""


_ELSEWHERE = frozenset({"delay", "apply_async", "send", "send_with_options", "defer", "defer_async", "kiq"})
"""What `enqueue` is called by others."""


class Outlet(Protocol):
    """Where calls go: an app's client."""

    def enqueue(self, call: Call[R], connection: object = None) -> Receipt[R]:
        """Enqueue from a thread; with a connection of the user's, in the transaction that is open there."""
        ...

    async def aenqueue(self, call: Call[R], connection: object = None) -> Receipt[R]:
        """Enqueue from a coroutine, likewise."""
        ...

    def explain_call(self, call: Call[Any]) -> Explanation:
        """Explain from a thread."""
        ...

    async def aexplain_call(self, call: Call[Any]) -> Explanation:
        """Explain from a coroutine."""
        ...

    def release_call(self, call: Call[Any]) -> JobId | None:
        """Release a call's key from a thread."""
        ...

    async def arelease_call(self, call: Call[Any]) -> JobId | None:
        """Release a call's key from a coroutine."""
        ...

    def revoke_call(self, call: Call[Any]) -> Amended:
        """Revoke the holder of a call's key from a thread."""
        ...

    async def arevoke_call(self, call: Call[Any]) -> Amended:
        """Revoke the holder of a call's key from a coroutine."""
        ...


class Sender(Generic[P, R]):
    """Enqueues calls of one task with the same options."""

    def __init__(
        self,
        planner: Planner[R],
        outlet: Callable[[], Outlet],
        app_window: int | None,
        connection: object = None,
    ) -> None:
        self._planner = planner
        self._outlet = outlet
        self._app_window = app_window
        self._connection = connection

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Receipt[R]:
        """Ask for the task to be run with these arguments; returns what became of it."""
        return self._outlet().enqueue(self._planner.call(args, kwargs), self._connection)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Receipt[R]:
        """As `enqueue`, in async code."""
        return await self._outlet().aenqueue(self._planner.call(args, kwargs), self._connection)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """A call for `app.enqueue_many([…])`, checked now and stored then."""
        planner = self._planner if self._connection is None else self.planner
        return planner.call(args, kwargs)

    def explain(self, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """Say what this call would get if it were enqueued now, and why; nothing is enqueued."""
        return self._outlet().explain_call(self.planner.call(args, kwargs))

    async def aexplain(self, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """As `explain`, in async code."""
        return await self._outlet().aexplain_call(self.planner.call(args, kwargs))

    def release(self, *args: P.args, **kwargs: P.kwargs) -> JobId | None:
        """Make the key of this call vacant; returns the job that held it, which lives on without it."""
        return self._outlet().release_call(self.planner.call(args, kwargs))

    async def arelease(self, *args: P.args, **kwargs: P.kwargs) -> JobId | None:
        """As `release`, in async code."""
        return await self._outlet().arelease_call(self.planner.call(args, kwargs))

    def revoke(self, *args: P.args, **kwargs: P.kwargs) -> Amended:
        """Stop the job that holds the key of this call; see `App.revoke` for the answers."""
        return self._outlet().revoke_call(self.planner.call(args, kwargs))

    async def arevoke(self, *args: P.args, **kwargs: P.kwargs) -> Amended:
        """As `revoke`, in async code."""
        return await self._outlet().arevoke_call(self.planner.call(args, kwargs))

    def using(self, **settings: Unpack[CallSettings]) -> Sender[P, R]:
        """The same task with other options: `unique`, `lane`, `priority`, `delay`, `at`, `expires`, `retry`,
        `timeout`, `max_crashes`, `queue`, `dead_letter`, `force`, `blockers`, `on_blocker_failure`. `unique=` replaces the whole policy; None turns it off.

        `connection=` is a connection of your own to the store's PostgreSQL database (asyncpg, psycopg 3, SQLAlchemy 2): what
        is then enqueued is part of the transaction that is open there, and exists if and when you commit."""
        connection = settings.pop("connection", self._connection)
        planner = self._planner
        if settings:
            options = changed(planner.options, settings)
            planner = Planner[R](
                planner.task,
                planner.codec,
                options,
                self._app_window,
                planner.queues,
                backoffs=planner.backoffs,
            )
        return Sender(planner, self._outlet, self._app_window, connection)

    if not TYPE_CHECKING:  # for whom there is no such thing

        def __getattr__(self, name: str) -> NoReturn:
            """Name ours to whoever knows another library's word for it."""
            if name not in _ELSEWHERE:
                raise AttributeError(
                    f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
                )
            raise AttributeError(
                f"Task {self._planner.task!r} has no .{name}(…): write .enqueue(…), or `await` .aenqueue(…) in async code; "
                "options such as delay= go before it, into .using(…)."
            )

    @property
    def planner(self) -> Planner[R]:
        """How calls become jobs; for everything but enqueuing them on a connection of the user's."""
        if self._connection is not None:
            raise InvalidOption(
                f"using(connection=…) of task {self._planner.task!r} is for enqueue(…) and aenqueue(…) only; for several calls, "
                "app.enqueue_many([task.job(…), …], connection=…)."
            )
        return self._planner


class Task(Sender[P, R]):
    """A registered function. Call it and it runs here; `.enqueue(…)` it and a worker runs it."""

    def __init__(
        self,
        function: Callable[P, Any],
        *,
        name: str,
        options: CallOptions,
        cancel_on_abort: bool,
        process: bool,
        outlet: Callable[[], Outlet],
        app_window: int | None,
        queues: Queues,
        backoffs: Collection[str],
    ) -> None:
        self.name = name
        self.function: Callable[..., Any] = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.codec = CallCodec(function, name)
        self.cancel_on_abort = cancel_on_abort
        self.process = process
        """True if workers run it in a process of its own."""
        if process:
            _check_process(name, function)
        elif cancel_on_abort and not self.is_async:
            raise InvalidOption(
                f"Task {name!r} has cancel_on_abort=True and is a plain function, which runs in a thread, and no thread "
                "can be stopped: write `async def`, or give it process=True, or leave it out and look at "
                "current_job().aborted."
            )
        planner: Planner[R] = Planner(name, self.codec, options, app_window, queues, backoffs=backoffs)
        super().__init__(planner, outlet, app_window)
        functools.update_wrapper(cast("Any", self), function)

    @property
    def queue(self) -> str:
        """Where its jobs wait unless a call says otherwise."""
        return self._planner.options.queue

    def __repr__(self) -> str:
        return f"<Task {self.name} in queue {self.queue}>"


class SyncTask(Task[P, R]):
    """A task whose function is a plain one."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now."""
        return self.function(*args, **kwargs)


class AsyncTask(Task[P, R]):
    """A task whose function is a coroutine function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Run the function here and now; await what it returns."""
        return self.function(*args, **kwargs)


def task_name(function: Callable[..., Any], given: str | None) -> str:
    """The name a task is known by: the one given, or `module.function`.

    A script run as `__main__` counts as the module that a worker would import, so that both agree: its dotted
    name under `python -m`, else its file's name. `<locals>` and leading underscores are left out.
    """
    if given is not None:
        return check_name("Task", given)
    qualified = getattr(function, "__qualname__", None)
    if not isinstance(qualified, str):
        raise InvalidOption(f"{shown(function)} has no name of its own: give @app.task(name=…).")
    parts = [_module(function), *qualified.split(".")]
    name = ".".join(part for part in parts if part and part != "<locals>").lstrip("_.")
    try:
        return check_name("Task", name)
    except InvalidOption as error:
        raise InvalidOption(f"{error} Or give the task its own: @app.task(name=…).") from None


def _check_process(name: str, function: Callable[..., Any]) -> None:
    """Refuse what another process cannot run, here, where it is written."""
    from onejob.references import reference_to  # only such tasks need it

    if inspect.iscoroutinefunction(function):
        raise InvalidOption(
            f"Task {name!r} is a coroutine function, and process=True is for plain ones, which compute: "
            "write `def`, or leave process=True out."
        )
    reference_to(f"Task {name!r} has process=True and", function)


def is_redefinition(function: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """True if a shell or a notebook defines the same function once more: a cell that is run again."""
    alike = getattr(function, "__qualname__", None) == other.__qualname__
    return alike and _module(function) == _module(other) == _NOWHERE


def _module(function: Callable[..., Any]) -> str:
    module = function.__module__
    if module not in ("__main__", "__mp_main__"):
        return module
    main = sys.modules[module] if module in sys.modules else sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None and spec.name not in ("__main__", "__mp_main__"):
        return spec.name
    if not file or file.startswith("<"):
        return _NOWHERE
    if name := inspect.getmodulename(file):
        return name
    from pathlib import Path  # slow to load, and only for scripts without a suffix

    return Path(file).stem

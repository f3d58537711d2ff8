"""Hooks: functions of the user's that are called around enqueues and runs, and the lifespan of a worker.

Here they are registered and called; when, is the client's and the worker's part. A `before_enqueue` hook may
raise and so refuse the call. The others only watch: what goes wrong in them is logged and changes nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import msgspec

from onejob.core.errors import InvalidOption, shown
from onejob.current import CurrentJob, bind_lifespan
from onejob.plans import Call
from onejob.receipt import Receipt

if TYPE_CHECKING:
    from onejob.background import BackgroundLoop

T = TypeVar("T")

PATIENCE = 10.0
"""Seconds after which a watching hook that does not return is given up."""

BeforeEnqueue: TypeAlias = Callable[[Call[Any]], Awaitable[None] | None]
AfterEnqueue: TypeAlias = Callable[[Receipt[Any]], Awaitable[None] | None]
OnStart: TypeAlias = Callable[[CurrentJob], Awaitable[None] | None]
OnEnd: TypeAlias = "Callable[[CurrentJob, Ended], Awaitable[None] | None]"
Lifespan: TypeAlias = (
    Callable[[], AbstractAsyncContextManager[Any]]
    | Callable[[], AsyncGenerator[Any, None]]
    | Callable[[], "AsyncGenerator[Any]"]
)


class Ending(StrEnum):
    """How an attempt ended."""

    COMPLETED = "completed"
    RETRYING = "retrying"
    """It raised, and runs again after `retry_in`."""
    FAILED = "failed"
    SNOOZED = "snoozed"
    HANDED_BACK = "handed back"
    """The worker stopped first; the job runs elsewhere, at no charge."""
    CRASHED = "crashed"
    """Its process died, or its worker fell silent (said by the one that found it out). The job runs again."""
    REVOKED = "revoked"
    LOST = "lost"
    """The lease had ended before the attempt did: its outcome was refused, the job goes on without it."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """What an `on_end` hook is told about an attempt: what the store has recorded, not what was hoped for."""

    how: Ending
    error: str | None = None
    """The error as it is stored: type, message, where."""
    exception: BaseException | None = None
    """What the handler raised, if it raised in this process."""
    seconds: float | None = None
    """How long the handler ran; None if it did not, or not here."""
    retry_in: float | None = None
    """Seconds until the job is due again, for `retrying`, `snoozed`, and `crashed` in a process of its own."""


class Hooks:
    """The hooks of one app. Who has none pays for one look at an empty tuple."""

    __slots__ = ("after_enqueue", "before_enqueue", "enter_lifespan", "on_end", "on_start", "watch_enqueue")

    def __init__(self) -> None:
        self.before_enqueue: tuple[BeforeEnqueue, ...] = ()
        self.after_enqueue: tuple[AfterEnqueue, ...] = ()
        self.on_start: tuple[OnStart, ...] = ()
        self.on_end: tuple[OnEnd, ...] = ()
        self.enter_lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None = None
        self.watch_enqueue = False
        """True if there is a hook around enqueues."""

    def add_before_enqueue(self, hook: BeforeEnqueue) -> None:
        """Call it with each call before it is stored."""
        self.before_enqueue += (_checked("before_enqueue", hook, "call"),)
        self.watch_enqueue = True

    def add_after_enqueue(self, hook: AfterEnqueue) -> None:
        """Call it with each receipt."""
        self.after_enqueue += (_checked("after_enqueue", hook, "receipt"),)
        self.watch_enqueue = True

    def add_on_start(self, hook: OnStart) -> None:
        """Call it before each attempt."""
        self.on_start += (_checked("on_start", hook, "job"),)

    def add_on_end(self, hook: OnEnd) -> None:
        """Call it after each attempt."""
        self.on_end += (_checked("on_end", hook, "job", "ended"),)

    def set_lifespan(self, function: Lifespan) -> None:
        """Run it around each worker."""
        if self.enter_lifespan is not None:
            raise InvalidOption("This app has a lifespan already: enter both in one function.")
        made = _checked("lifespan", cast("Callable[..., Any]", function))
        self.enter_lifespan = asynccontextmanager(made) if inspect.isasyncgenfunction(made) else made

    async def ask(self, calls: Sequence[Call[Any]]) -> None:
        """Show the calls to the `before_enqueue` hooks; what one raises is for the caller."""
        with _shown(calls) as unseen:
            for call in unseen:
                for hook in self.before_enqueue:
                    answer = hook(call)
                    if inspect.isawaitable(answer):
                        await answer

    def ask_in_thread(self, calls: Sequence[Call[Any]], background: BackgroundLoop) -> None:
        """As `ask`, for a sync caller: plain hooks run here, coroutines on the private loop."""
        with _shown(calls) as unseen:
            for call in unseen:
                for hook in self.before_enqueue:
                    answer = hook(call)
                    if inspect.isawaitable(answer):
                        background.call(_awaited(answer))

    async def tell(self, receipts: Sequence[Receipt[Any]]) -> None:
        """Show the receipts to the `after_enqueue` hooks."""
        with _shown(receipts) as unseen:
            for receipt in unseen:
                await watch(self.after_enqueue, receipt)

    def tell_in_thread(self, receipts: Sequence[Receipt[Any]], background: BackgroundLoop) -> None:
        """As `tell`, for a sync caller."""
        with _shown(receipts) as unseen:
            for receipt in unseen:
                for hook in self.after_enqueue:
                    try:
                        answer = hook(receipt)
                        if inspect.isawaitable(answer):
                            background.call(_bounded(answer))
                    except Exception as error:
                        _log(hook, error)


async def watch(hooks: Sequence[Callable[..., Awaitable[None] | None]], *arguments: object) -> None:
    """Call hooks that only watch, one after the other: nothing they raise gets any further.

    They run in the task that calls, so that a context variable set by one is there for what comes after.
    """
    import asyncio  # an app that only registers hooks does without

    for hook in hooks:
        try:
            answer = hook(*arguments)
            if inspect.isawaitable(answer):
                await _bounded(answer)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the caller is meant, not the hook
            _log(hook, error)
        except BaseException as error:  # not even SystemExit: a hook must not end a worker
            _log(hook, error)


@asynccontextmanager
async def lived(hooks: Hooks) -> AsyncGenerator[None]:
    """The app's lifespan, if it has one, around a block: `current_job().lifespan` is what it yields."""
    if hooks.enter_lifespan is None:
        yield
        return
    manager: object = hooks.enter_lifespan()
    if not isinstance(manager, AbstractAsyncContextManager):
        if inspect.iscoroutine(manager):
            manager.close()
        raise InvalidOption(
            f"@app.lifespan must be an async generator function or return an async context manager, not {shown(manager)}."
        )
    async with manager as value:
        bind_lifespan(value)
        try:
            yield
        finally:
            bind_lifespan(None)


def _checked(kind: str, hook: Any, *names: str) -> Any:
    """Refuse what cannot be called as it will be: here, where it is written, not at the first job."""
    wanted = f"@app.{kind} takes a function of ({', '.join(names)})"
    if not callable(hook):
        raise InvalidOption(f"{wanted}, not {shown(hook)}.")
    try:
        inspect.signature(hook).bind(*names)
    except ValueError:  # some built-ins have no signature
        pass
    except TypeError as error:
        raise InvalidOption(f"{wanted}, but {shown(hook)} cannot be called so: {error}.") from None
    return hook


async def _awaited(answer: Awaitable[None]) -> None:
    await answer


async def _bounded(answer: Awaitable[None]) -> None:
    import asyncio  # see `watch`

    async with asyncio.timeout(PATIENCE):
        await answer


def _log(hook: Callable[..., object], error: BaseException) -> None:
    import logging
    import traceback

    from onejob.logs import event, logger  # what seldom happens

    name = getattr(hook, "__qualname__", None) or type(hook).__qualname__
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "?"
    if isinstance(error, TimeoutError):
        what = f"gave no answer for {PATIENCE:g} s"
    else:
        what = f"raised {headline(error)} at {place}"
    event(
        logger, logging.ERROR, "hook.failed", f"hook {name} {what}; nothing else is changed by it", hook=name
    )


def headline(error: BaseException) -> str:
    """An error of the user's code on one line."""
    try:
        return f"{type(error).__qualname__}: {str(error)[:500]}"
    except Exception:  # whatever __str__ raises, the line is written
        return type(error).__qualname__


@contextmanager
def _shown(items: Sequence[T]) -> Generator[Sequence[T]]:
    """What is to be shown to hooks: nothing of what a hook enqueues itself, or that would never end."""
    if _inside.get():
        yield ()
        return
    token = _inside.set(True)
    try:
        yield items
    finally:
        _inside.reset(token)


_inside: ContextVar[bool] = ContextVar("onejob_inside_hook", default=False)

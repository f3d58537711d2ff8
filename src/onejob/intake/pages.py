"""A page of rows: each checked by itself, handed to the store together, and remembered once that is committed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from onejob.client import Client, log_lane
from onejob.core.errors import shown
from onejob.core.judge import Answer
from onejob.hooks import headline
from onejob.ids import new_ids
from onejob.intake import journal
from onejob.intake.memory import HandedOver, Told
from onejob.intake.rows import BadRow, Newcomer, RowReader, has, value_of
from onejob.intake.uncut import uncut
from onejob.intake.views import FailedRow
from onejob.receipt import Receipt

if TYPE_CHECKING:
    from onejob.intake.database import Session
    from onejob.intake.statements import Place

Suffix: TypeAlias = Callable[[int], str]
"""What a default key adds for a row that is due then; see `taking.key_suffix`."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What every run of an intake works with."""

    name: str
    client: Client
    reader: RowReader
    look_ahead: int
    per_fetch: int
    handed_over: HandedOver | None
    """None where flag and job are one commit: a row that is seen there was never taken."""
    told: Told


@dataclass(slots=True)
class Page:
    """Some rows of a table, sorted by what becomes of them."""

    parts: Parts
    table: str
    now: int
    horizon: int
    suffix: Suffix | None = None
    fetched: int = 0
    last: Place | None = None
    newcomers: list[Newcomer] = field(default_factory=list[Newcomer])
    failures: list[FailedRow] = field(default_factory=list[FailedRow])
    answers: list[Answer] = field(default_factory=list[Answer])
    skipped: int = 0
    handing_over: bool = False

    @property
    def ids(self) -> list[Any]:
        """The rows to be flagged."""
        return [newcomer.id for newcomer in self.newcomers]

    async def whole(self, taking: Coroutine[Any, Any, None]) -> None:
        """Take this page; a worker that stops may cut it before its jobs are made, and not between jobs and flags."""
        await uncut(taking, begun=lambda: self.handing_over)

    async def sort_in(self, row: Any, id: object, due_value: object) -> None:
        """Find out what becomes of a row."""
        parts = self.parts
        try:
            due = parts.reader.due(due_value)
            if due > self.horizon:
                return  # as a text it seemed earlier than it is
            if parts.handed_over is not None and parts.handed_over.knows(self.table, id, due, self.now):
                self.skipped += 1
                return
            suffix = "" if self.suffix is None else self.suffix(due)
            newcomer = parts.reader.newcomer(row, id, due, self.now, suffix)
            await self._ask_hooks(newcomer)
        except BadRow as bad:
            self._fail(id, str(bad))
            return
        self.newcomers.append(newcomer)
        parts.told.forget(self.table, id)

    async def sort_in_yielded(self, row: Any, id_name: str, due_name: str) -> None:
        """The same of a row that is not from a table, and may be anything."""
        try:
            missing = next((name for name in (id_name, due_name) if not has(row, name)), None)
            id, due = (None, None) if missing else (value_of(row, id_name), value_of(row, due_name))
        except Exception as error:  # an attribute may be a property of the user's
            self._fail("?", f"what was yielded cannot be read: {headline(error)}")
            return
        if missing is not None:
            self._fail("?", f"what was yielded has no {missing!r}: {shown(row)}")
        elif due is not None:
            await self.sort_in(row, id, due)

    async def hand_over(self, session: Session | None = None) -> None:
        """Give the newcomers to the store, by way of a session if there is one."""
        if not self.newcomers:
            return
        self.handing_over = True
        ids = new_ids(len(self.newcomers))
        jobs = [newcomer.new_job(id, self.now) for newcomer, id in zip(self.newcomers, ids, strict=True)]
        if session is None:
            self.answers = await self.parts.client.store.enqueue(jobs, now=self.now)
        else:
            self.answers = await session.enqueue(jobs, self.now)

    async def settle(self, *, flagged: bool) -> None:
        """After the commit: remember what was handed over, and tell who wants to know."""
        parts, client = self.parts, self.parts.client
        if parts.handed_over is not None:
            for newcomer in self.newcomers:
                parts.handed_over.add(self.table, newcomer.id, newcomer.due, self.now)
        journal.page(parts.name, self.table, self.newcomers, self.answers, flagged=flagged)
        watched = client.hooks.watch_enqueue
        if watched or any(answer.former_lane is not None for answer in self.answers):
            pairs = zip(self.newcomers, self.answers, strict=True)
            receipts = [Receipt(answer, newcomer.call, client) for newcomer, answer in pairs]
            for receipt in receipts:
                if receipt.former_lane is not None:
                    log_lane(receipt)
            if watched:
                await client.hooks.tell(receipts)

    async def _ask_hooks(self, newcomer: Newcomer) -> None:
        hooks = self.parts.client.hooks
        if hooks.watch_enqueue:
            try:
                await hooks.ask((newcomer.call,))
            except Exception as error:
                raise BadRow(f"a before_enqueue hook refused it with {headline(error)}") from None

    def _fail(self, id: object, reason: str) -> None:
        failure = FailedRow(self.table, str(id), reason)
        self.failures.append(failure)
        if self.parts.told.is_news(self.table, id, reason):
            journal.bad_row(self.parts.name, failure)

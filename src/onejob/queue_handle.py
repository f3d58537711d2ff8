"""A queue as an operator holds it: its limits and whether it is paused, for all workers and from now on.

What is set here lives in the store; the settings of an app's queues, which live in its code, are in `queues`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from onejob.core.errors import InvalidOption
from onejob.core.lane import MAX_CONCURRENCY, QueueChange, QueueLimits, Rate, checked_rate
from onejob.core.options import check_name, whole_number

if TYPE_CHECKING:
    from onejob.client import Client


class QueueHandle:
    """The limits of one queue. A worker obeys a change from its very next claim on."""

    __slots__ = ("_client", "name")

    def __init__(self, name: str, client: Callable[[], Client]) -> None:
        self.name = check_name("Queue", name)
        self._client = client

    def limits(self) -> QueueLimits:
        """Everything that is set for this queue."""
        return self._client().call(self.alimits(), instead="await queue.alimits()")

    async def alimits(self) -> QueueLimits:
        """As `limits`, in async code."""
        return (await self._client().store.limits()).get(self.name, QueueLimits())

    def set_concurrency(self, number: int) -> QueueLimits:
        """Let at most so many of its jobs run at once, over all workers; 0 removes the limit."""
        return self._client().call(self.aset_concurrency(number), instead="await queue.aset_concurrency(…)")

    async def aset_concurrency(self, number: int) -> QueueLimits:
        """As `set_concurrency`, in async code."""
        return await self._set(
            QueueChange(concurrency=whole_number("set_concurrency(…)", number, 0, MAX_CONCURRENCY))
        )

    def concurrency(self) -> int | None:
        """How many of its jobs may run at once; None if there is no limit."""
        return self.limits().concurrency

    async def aconcurrency(self) -> int | None:
        """As `concurrency`, in async code."""
        return (await self.alimits()).concurrency

    def set_rate(self, rate: Rate) -> QueueLimits:
        """Let at most `rate.max` of its jobs start in any `rate.per` seconds, over all workers."""
        return self._client().call(self.aset_rate(rate), instead="await queue.aset_rate(…)")

    async def aset_rate(self, rate: Rate) -> QueueLimits:
        """As `set_rate`, in async code."""
        checked = checked_rate("set_rate(…)", rate)
        if checked is None:
            raise InvalidOption(
                "set_rate(…) takes Rate(max, per=seconds); remove_rate() takes the limit away."
            )
        return await self._set(QueueChange(rate=checked))

    def rate(self) -> Rate | None:
        """How many of its jobs may start in how many seconds; None if there is no limit."""
        return self.limits().rate

    async def arate(self) -> Rate | None:
        """As `rate`, in async code."""
        return (await self.alimits()).rate

    def remove_rate(self) -> QueueLimits:
        """Let its jobs start as fast as they can."""
        return self._client().call(self.aremove_rate(), instead="await queue.aremove_rate()")

    async def aremove_rate(self) -> QueueLimits:
        """As `remove_rate`, in async code."""
        return await self._set(QueueChange(remove_rate=True))

    def pause(self) -> QueueLimits:
        """Let none of its jobs start; those that run go on."""
        return self._client().call(self.apause(), instead="await queue.apause()")

    async def apause(self) -> QueueLimits:
        """As `pause`, in async code."""
        return await self._set(QueueChange(paused=True))

    def resume(self) -> QueueLimits:
        """Let its jobs start again."""
        return self._client().call(self.aresume(), instead="await queue.aresume()")

    async def aresume(self) -> QueueLimits:
        """As `resume`, in async code."""
        return await self._set(QueueChange(paused=False))

    async def _set(self, change: QueueChange) -> QueueLimits:
        return await self._client().store.set_queue(self.name, change)

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

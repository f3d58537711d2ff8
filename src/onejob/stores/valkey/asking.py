"""Asking many queues at once, some at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from onejob.stores.valkey.office import Office

T = TypeVar("T")

AT_ONCE: Final = 50
"""Calls under way for one reader: those of others need room, too."""


async def together(calls: Iterable[Awaitable[T]]) -> list[T]:
    """What calls answer, in their order; each is made when its turn has come."""
    waiting = iter(calls)
    answers: list[T] = []
    while some := list(islice(waiting, AT_ONCE)):
        answers += await asyncio.gather(*some)
    return answers


async def everywhere(
    office: Office, script: str, argument: object = (), queues: Sequence[str] | None = None
) -> list[tuple[str, Any]]:
    """What a script that only reads says in each queue, by their names; in all of them if none are given."""
    names = await office.queues() if queues is None else queues
    answers = await together(office.look(script, queue, argument) for queue in names)
    return list(zip(names, answers, strict=True))

"""What a job waited for, read before its handler is called, so that it is there in coroutines, threads and processes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onejob.blockers import TypeOf
from onejob.core.lifecycle import Returned, Snoozed
from onejob.store import Blocker, Inspector
from onejob.worker.attempt import Attempt
from onejob.worker.failure import describe, first_line
from onejob.worker.journal import say

if TYPE_CHECKING:
    from onejob.tasks import Task

READ_AGAIN = 2_000
"""The wait (ms) of a job whose blockers could not be read; nothing is charged."""


async def read_blockers(store: Inspector, attempt: Attempt) -> list[Blocker] | Snoozed | Returned:
    """The chains that a job waited for; if the store cannot say now, the job waits a little."""
    try:
        return await store.blockers(attempt.claimed.id)
    except asyncio.CancelledError:
        return Returned()
    except Exception as error:
        text = f"{attempt} waits {READ_AGAIN / 1000:g} s, because its blockers could not be read: "
        say(logging.WARNING, "store.trouble", text + first_line(describe(error)), attempt.claimed)
        return Snoozed(READ_AGAIN)


def result_types(tasks: Mapping[str, Task[..., Any]]) -> TypeOf:
    """The types that these tasks return, by their names."""

    def type_of(task: str) -> Any:
        return tasks[task].codec.result_type if task in tasks else Any

    return type_of

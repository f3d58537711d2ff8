"""settle for bare jobs: completed without a key, a lane, a chain or anybody who waits for them, as most jobs are.

One statement that looks at nothing else, and does nothing where there is something else; `settle` then goes its usual way.
Whether to try it is a guess: once it was wrong, it is not made again for a while.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from onejob.store import Ask, Claims
from onejob.stores.postgres import claim
from onejob.stores.postgres.steps import Steps, ask
from onejob.stores.postgres.work import Work

BURDENED: Final = 100
"""For so many calls more it is not tried."""


class Exchanged(msgspec.Struct, frozen=True):
    """What became of the settlements, and what started instead."""

    held: list[Any] | None
    """The jobs that were completed; None: all of them."""
    claims: Claims | None
    """None: nothing could be started before other things are looked at."""


def exchange(work: Work, parameters: tuple[Any, ...], wish: Ask, token: bytes) -> Steps[Exchanged]:
    """Complete bare jobs, whose ids, tokens and results are given, and claim the next."""
    asking = claim.asking(work.now, wish, token)
    rows = yield from ask("settle.complete_bare_and_start", *asking, *parameters)
    held, over, ready = claim.head(rows)[claim.OUTCOME]
    work.tell("done", over or ())
    work.tell("work", ready or ())
    claims = None if held is not None else claim.read(rows, wish, token).claims
    note(work, burdened=claims is None)
    return Exchanged(held, claims)


def note(work: Work, *, burdened: bool) -> None:
    """Remember what a settlement met that was not expected to be bare."""
    work.guesses.burden = BURDENED if burdened else max(work.guesses.burden - 1, 0)

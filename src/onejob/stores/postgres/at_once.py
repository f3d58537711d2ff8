"""settle at once: ends that need nothing but the jobs, their keys, flags and slots, and the next claim, in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from onejob.core.job import JobId
from onejob.core.lifecycle import ENDING, Move, Settlement
from onejob.sql.attempts import changes, state_after
from onejob.store import Ask, Claims, Settled, SettleReply
from onejob.stores.postgres import bare, claim
from onejob.stores.postgres.careful import id_of, text_of, with_care
from onejob.stores.postgres.ending import recheck_these
from onejob.stores.postgres.steps import Steps, ask, begin
from onejob.stores.postgres.work import Work

NOTHING_ASKED = (None,) * 7
"""The parameters of a claim that is not there."""


def at_once(work: Work, done: Sequence[Settlement], wish: Ask | None, token: bytes) -> Steps[SettleReply]:
    """One statement settles and claims. Where it finds that others may wait, it leaves a note, and we go on from there."""
    batch = sorted(done, key=id_of)
    # What comes back without delay could be claimed, but a statement does not see what it writes.
    starts = wish is not None and all(one.move in ENDING or one.delay > 0 for one in done)
    asking = (
        claim.asking(work.now, wish, token) if starts and wish is not None else (work.now, *NOTHING_ASKED)
    )
    name, parameters = _written(batch)
    if starts and wish is not None and name == "complete" and not work.guesses.burden:
        return (yield from _as_bare(work, done, wish, token, parameters))
    rows = yield from ask(f"settle.{name}_and_start" if starts else f"settle.{name}", *asking, *parameters)
    outcome = claim.head(rows)[claim.OUTCOME] if starts else rows[0]
    now, held, flagged, over, ready, left, notes, noted, burdened = outcome
    work.tell("done", over or ())
    work.tell("work", ready or ())
    if noted is not None:
        yield from begin()
        yield from recheck_these(work, map(str, noted), notes, now)
    settled = yield from _with_the_rest(work, done, held, flagged)
    if wish is None:
        return SettleReply(settled, Claims([]))
    if not starts or held is not None or noted is not None:
        bare.note(work, burdened=burdened)
        return SettleReply(settled, (yield from claim.claim(work, wish, token)))
    found = claim.read(rows, wish, token, left=left)
    claims = found.claims
    bare.note(work, burdened=burdened or claims is None)
    if claims is None:
        claims = yield from claim.general(work, wish, token, found.outlook)
    return SettleReply(settled, _with_delays(claims, done))


def _as_bare(
    work: Work, done: Sequence[Settlement], wish: Ask, token: bytes, written: tuple[Any, ...]
) -> Steps[SettleReply]:
    """Settle and claim as if the jobs were bare; if they are not, they are settled as any others."""
    exchanged = yield from bare.exchange(work, written, wish, token)
    claims = exchanged.claims
    if exchanged.held is None:
        claims = (yield from claim.claim(work, wish, token)) if claims is None else claims
        return SettleReply([Settled.DONE] * len(done), claims)
    held = {str(id) for id in exchanged.held}
    reply = yield from at_once(work, [one for one in done if one.lease.id not in held], wish, token)
    others = iter(reply.settled)
    settled = [Settled.DONE if one.lease.id in held else next(others) for one in done]
    return SettleReply(settled, reply.claims, reply.reasons)


def _written(batch: Sequence[Settlement]) -> tuple[str, tuple[Any, ...]]:
    """The statement for a batch, and what it writes."""
    tokens = [one.lease.token for one in batch]
    if tokens.count(tokens[0]) == len(tokens):
        del tokens[1:]
    guards = ([one.lease.id for one in batch], tokens)
    if {one.move for one in batch} == {Move.COMPLETE}:
        results = [one.result for one in batch]
        return "complete", (*guards, None if results.count(None) == len(results) else results)
    rows = [changes(one, state_after(one, None), 0) for one in batch]
    states, _, delays, attempts, failures, crashes, misses, results, errors = map(
        list, zip(*rows, strict=True)
    )
    errors = [text_of(error) for error in errors]
    return "end", (*guards, results, states, delays, attempts, failures, crashes, misses, errors)


def _with_the_rest(
    work: Work, done: Sequence[Settlement], held: list[Any] | None, flagged: list[Any] | None
) -> Steps[list[Settled]]:
    """What became of each settlement, given the jobs whose leases held (None: all) and those that were flagged.

    The rest is lost indeed, or was left to us, so that who waits for one comes to its lane as its slot does.
    """
    if held is None and flagged is None:
        return [Settled.DONE] * len(done)
    settled = _replies(done, held, flagged)
    rest = [one for one, reply in zip(done, settled, strict=True) if reply is Settled.LOST]
    if not rest:
        return settled
    yield from begin()
    replies = (yield from with_care(work, rest)).replies
    return [replies.get(one.lease.id, reply) for one, reply in zip(done, settled, strict=True)]


def _replies(done: Sequence[Settlement], held: list[Any] | None, flagged: list[Any] | None) -> list[Settled]:
    replies = dict.fromkeys((one.lease.id for one in done), Settled.DONE if held is None else Settled.LOST)
    replies.update((JobId(str(id)), Settled.DONE) for id in held or ())
    replies.update((JobId(str(id)), Settled.REVOKED) for id in flagged or ())
    return [replies[one.lease.id] for one in done]


def _with_delays(claims: Claims, done: Sequence[Settlement]) -> Claims:
    """A claim that did not see which jobs come back, and when."""
    delays = [one.delay for one in done if one.move not in ENDING]
    if not delays:
        return claims
    soonest = min(delays) if claims.next_due is None else min(claims.next_due, *delays)
    return msgspec.structs.replace(claims, next_due=soonest)

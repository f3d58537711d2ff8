"""Blockers: jobs that wait for chains to end. What is waited for is a row each, so that a chain's end touches only
those who wait for it, however many others they wait for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from onejob.core.chain import circle, path_to, stranded, unknown_blocker
from onejob.core.errors import UnknownBlocker
from onejob.core.job import ENDED, ChainId, NewJob, State
from onejob.sql import waits
from onejob.sql.ids import id_from_bytes, id_to_bytes
from onejob.sql.rows import state_of
from onejob.stores.sqlite.connect import array
from onejob.stores.sqlite.session import Session, Touch
from onejob.stores.sqlite.statements import statements

Waits: TypeAlias = waits.Waits[bytes]

NOBODY = Waits()


def look(session: Session, job: NewJob) -> Waits:
    """Find the chains that a newcomer is to wait for; raises `UnknownBlocker` for one that is not on record."""
    if not job.blockers:
        return NOBODY
    ids = [_known_form(id) for id in job.blockers]
    chains: dict[bytes, bytes] = dict(
        session.rows(statements("blockers")["chains"], {"ids": array(set(ids))})
    )
    for given, id in zip(job.blockers, ids, strict=True):
        if id not in chains:
            raise UnknownBlocker(unknown_blocker(given))
    return standing(session, tuple(dict.fromkeys(chains[id] for id in ids)), runs_anyway=job.runs_anyway)


def standing(session: Session, chains: tuple[bytes, ...], *, runs_anyway: bool) -> Waits:
    """How the chains stand that a job waits for."""
    found = {
        row[0]: row[1:] for row in session.rows(statements("blockers")["standing"], {"chains": array(chains)})
    }
    live = frozenset(chain for chain, (state, _) in found.items() if state_of(state) not in ENDED)
    reason = None
    for chain in () if runs_anyway else chains:
        state, error = found.get(chain, (State.REVOKED, "it is gone"))
        if state in (State.FAILED, State.REVOKED):
            reason = stranded(ChainId(id_from_bytes(chain)), state, error)
            break
    return Waits(chains, live, reason)


def put(session: Session, id: bytes, waits: Waits, *, runs_anyway: bool) -> None:
    """Write down whom a job waits for."""
    rows = [
        (id, place, chain, not runs_anyway, chain in waits.live) for place, chain in enumerate(waits.chains)
    ]
    session.executemany(statements("blockers")["put"], rows)


def renew(session: Session, id: bytes) -> Waits:
    """Look again at whom a job waits for that is about to be revived."""
    rows = session.rows(statements("blockers")["of"], {"job": id})
    if not rows:
        return NOBODY
    waits = standing(session, tuple(row[1] for row in rows), runs_anyway=not rows[0][2])
    if waits.reason is None:
        session.executemany(
            statements("blockers")["renew"], [(chain in waits.live, id, place) for place, chain, _ in rows]
        )
    return waits


def let_go(session: Session, chains: Sequence[tuple[bytes, str]], now: int) -> Iterable[tuple[bytes, str]]:
    """Chains have ended (root, state): release who waited for the last of its blockers; returns who is stranded."""
    sql = statements("blockers")
    if session.first(sql["any"], ()) is None:  # mostly, and then it costs the same however many have ended
        return []
    states = dict(chains)
    rows = session.rows(sql["let_go"], {"chains": array(states)})
    if not rows:
        return []
    stranded_by: dict[bytes, bytes] = {}
    for job, chain, needed in rows:
        if needed and states[chain] != State.COMPLETED:
            stranded_by.setdefault(job, chain)
    others = {row[0] for row in rows} - stranded_by.keys()
    if others:
        for queue, lane in session.rows(sql["release"], {"jobs": array(others), "now": now}):
            session.tell("work", [queue])
            session.touch(queue, lane, Touch.RETURNED)
    return [(job, _why(session, chain)) for job, chain in stranded_by.items()]


def refusal(session: Session, job: NewJob, own: bytes) -> str | None:
    """Why a chain's next job cannot be made: a blocker of it is unknown, or waits for this very chain."""
    if not job.blockers:
        return None
    try:
        waits = look(session, job)
    except UnknownBlocker as error:
        return f"UnknownBlocker: {error}"
    path = _way_back(session, waits.chains, own)
    return None if path is None else circle([ChainId(id_from_bytes(chain)) for chain in path])


def _way_back(session: Session, chains: tuple[bytes, ...], own: bytes) -> list[bytes] | None:
    """How one of these chains comes to wait for `own`; level by level over those who wait, None if none does."""
    sql = statements("blockers")
    origins = dict.fromkeys(chains, own)
    level = set(chains)
    while level and own not in level:
        names = {"chains": array(level)}
        edges = session.rows(sql["waits_of_first"], names) + session.rows(sql["waits_of_next"], names)
        level = set[bytes]()
        for waiting, awaited in edges:
            if awaited not in origins:
                origins[awaited] = waiting
                level.add(awaited)
    if own not in level:
        return None
    last = origins.pop(own, None)
    return [own, own] if last is None or last == own else [*path_to(last, origins), own]


def _why(session: Session, chain: bytes) -> str:
    row = session.first(statements("blockers")["standing"], {"chains": array([chain])})
    _, state, error = row or (chain, State.REVOKED, None)
    return stranded(ChainId(id_from_bytes(chain)), state, error)


def _known_form(id: str) -> bytes:
    try:
        return id_to_bytes(id)
    except ValueError:
        return b""

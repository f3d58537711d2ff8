"""A `JobFilter` as the parameters of the statements that list and count jobs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from onejob.core.contents import holds
from onejob.core.filter import ArgumentIs, JobFilter
from onejob.stores.sqlite.connect import Connection
from onejob.stores.sqlite.session import Session
from onejob.stores.sqlite.statements import statements

_BEYOND = 2**63 - 1
_ID_DIGITS = 32


def register(connection: Connection) -> None:
    """Teach a connection to look into payloads, as statements that list jobs do."""
    connection.create_scalar_function("onejob_holds", _payload_holds, 2, deterministic=True)


def parameters(session: Session, filter: JobFilter, cursor: str | None) -> dict[str, Any]:
    """The filter and where the page starts, as bound values; what is None does not count."""
    now = session.now()
    ids = _ranges(filter.ids)
    after, before = (-1, _BEYOND) if ids is None else _reach(session, ids)
    return {
        "after": after,
        "before": before if cursor is None else min(before, int(cursor)),
        "states": _listed(filter.states),
        "queues": _listed(filter.queues),
        "origins": _listed(filter.origins),
        "tasks": _listed(filter.tasks),
        "keys": _listed(filter.keys),
        "lanes": _listed(filter.lanes),
        "chains": _ranges(filter.chains),
        "ids": ids,
        "schedules": _listed(filter.schedules),
        "errors": None if filter.errors is None else _listed(_lower(part) for part in filter.errors),
        "args": _json(filter.args) if filter.args else None,
        "accepted_by": None if filter.older is None else now - filter.older,
        "accepted_after": None if filter.newer is None else now - filter.newer,
        "ended_by": None if filter.ended is None else now - filter.ended,
    }


def _reach(session: Session, ids: str) -> tuple[int, int]:
    """The part of the table that has these ids, so that the rest is not looked at."""
    row = session.first(statements("inspect")["reach"], {"ids": ids})
    return (0, 0) if row is None or row[0] is None else (row[0] - 1, row[1] + 1)


def _ranges(ids: Iterable[str] | None) -> str | None:
    return None if ids is None else _json([_range(id) for id in sorted(ids)])


def _range(id: str) -> tuple[str, str]:
    """The first and the last id that begin so."""
    digits = id.replace("-", "").lower()
    return digits.ljust(_ID_DIGITS, "0"), digits.ljust(_ID_DIGITS, "f")


def _lower(text: str) -> str:
    """As SQLite's `lower`: A to Z only."""
    return text.encode().lower().decode()


def _listed(values: Iterable[str] | None) -> str | None:
    return None if values is None else _json(sorted(values))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _payload_holds(payload: bytes, wanted: str) -> bool:
    return holds(payload, _wanted(wanted))


@lru_cache(maxsize=16)
def _wanted(text: str) -> tuple[ArgumentIs, ...]:
    return msgspec.json.decode(text, type=tuple[ArgumentIs, ...])

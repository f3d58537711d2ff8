"""dead_errors: dead letters by what they died of."""

from __future__ import annotations

import msgspec

from onejob.sql.ids import id_from_bytes
from onejob.store import DeadErrors
from onejob.stores.valkey.asking import together
from onejob.stores.valkey.forms import text_of
from onejob.stores.valkey.office import Office
from onejob.stores.valkey.wire import blob_or_false


async def dead_errors(office: Office, queue: str | None, limit: int) -> list[DeadErrors]:
    """Dead letters by error; see `Inspector.dead_errors`."""
    found: dict[bytes, _Errors] = {}
    for errors in await together(_errors(office, name, queue) for name in await office.queues()):
        for one in errors:
            known = found.get(one.line)
            found[one.line] = one if known is None else known.with_more(one)
    ordered = sorted(found.values(), key=lambda one: (one.count, one.newest), reverse=True)
    return [
        DeadErrors(text_of(one.line) or "", one.count, id_from_bytes(one.newest[1]), one.first, one.last)
        for one in ordered[:limit]
    ]


class _Errors(msgspec.Struct, frozen=True):
    """Dead letters with the same first line of their error."""

    line: bytes
    count: int
    newest: tuple[int, bytes]
    """When it was buried, and its id."""
    first: int
    last: int

    def with_more(self, other: _Errors) -> _Errors:
        """Both together."""
        return _Errors(
            self.line,
            self.count + other.count,
            max(self.newest, other.newest),
            min(self.first, other.first),
            max(self.last, other.last),
        )


async def _errors(office: Office, queue: str, origin: str | None) -> list[_Errors]:
    found: list[_Errors] = []
    wanted, at = False if origin is None else origin, None
    while True:
        rows, at = await office.look("dead_errors", queue, (wanted, blob_or_false(at)))
        found += [_Errors(row[0], row[1], (row[4], row[2]), row[5], row[6]) for row in rows]
        if at is None:
            return found

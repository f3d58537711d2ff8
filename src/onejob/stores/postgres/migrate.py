"""Bringing the tables up to date: by itself with the first use, by `onejob migrate`, or as a script to apply by hand."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from onejob.core.errors import OnejobError, SchemaMismatch, StoreBusy, shown
from onejob.core.span import span
from onejob.stores.postgres.address import Address
from onejob.stores.postgres.driver import Link
from onejob.stores.postgres.failures import LOCK_NOT_AVAILABLE, NO_RIGHT, sqlstate
from onejob.stores.postgres.statements import FILES, in_schema, quoted
from onejob.stores.postgres.steps import Row

LOCK_TIMEOUT: Final = 100
"""Milliseconds that a step waits for a table: meanwhile every call waits behind it, and no call waits longer than 250."""
PAUSE: Final = 0.5
"""Seconds, at most, in which calls go on before a step is tried again."""
_LONG: Final = 1.0
"""Seconds after which a transaction is worth naming."""
_ABSENT: Final = frozenset({"42P01", "3F000"})
_TABLE: Final = r"create table onejob\.([a-z_]+)"
_PUT: Final = """insert into onejob.meta (name, value) values ('schema', 'VERSION')
on conflict (name) do update set value = excluded.value;"""
_META: Final = """create table if not exists onejob.meta (name text primary key, value text not null);
insert into onejob.meta (name, value) values ('identity', gen_random_uuid()::text) on conflict do nothing;"""


def known() -> int:
    """The version that this onejob makes and works with."""
    return len(FILES.migrations)


async def version(link: Link) -> int:
    """Which version of the tables is there; 0 if none."""
    try:
        rows = await link.fetch("migrate.version", ())
    except Exception as error:
        if sqlstate(error) in _ABSENT:
            return 0
        raise
    return _number(rows[0][0] if rows else "0")


async def ensure(link: Link, address: Address) -> None:
    """Make sure that the tables are those we know: bring them up to date if that is allowed, else say who is behind."""
    there = await version(link)
    if there == known():
        return
    if there < known() and address.migrates:
        await migrate(link, address)
        return
    raise mismatch(there, address)


async def migrate(link: Link, address: Address) -> None:
    """Bring the tables up to date; several processes may try at once. Raises `StoreBusy` if others keep them locked."""
    since = time.monotonic()
    while True:
        try:
            await _migrate(link, address)
        except Exception as error:
            if sqlstate(error) != LOCK_NOT_AVAILABLE:
                raise
            if time.monotonic() - since + PAUSE > address.patience:
                raise await _busy(link, address) from error
            await asyncio.sleep(PAUSE * random.uniform(0.5, 1))
        else:
            return


async def _migrate(link: Link, address: Address) -> None:
    """All steps in one transaction, which gives up where it would make others wait."""
    await link.execute(f"{link.begin}; set local lock_timeout = 0; set local statement_timeout = 0")
    try:
        await link.fetch("migrate.lock", (address.schema,))
        await link.execute(f"set local lock_timeout = {LOCK_TIMEOUT}")
        standing = await _look(link, address)
        for text in _steps(standing, address.schema):
            try:
                await link.execute(text)
            except Exception as error:
                if standing.has_schema or sqlstate(error) != NO_RIGHT:
                    raise
                raise _may_not_create(address) from error
        await link.commit()
    except BaseException:
        await link.roll_back()
        raise


async def script(link: Link, address: Address) -> str:
    """What `migrate` would do now, for people who apply it themselves; empty if there is nothing to do."""
    standing = await _look(link, address)
    if standing.version == known():
        return ""
    parts = [
        f"-- Tables of onejob in schema {address.schema}: from version {standing.version} to {known()}.",
        "begin;",
        "-- While this waits for a table, every call waits behind it. If it gives up, nothing was changed: apply it again.\n"
        "set local lock_timeout = '1s';",
        *_steps(standing, address.schema),
        "commit;",
    ]
    return "\n\n".join(parts) + "\n"


class _Standing(msgspec.Struct, frozen=True):
    """What is there."""

    has_schema: bool
    has_meta: bool
    version: int


async def _look(link: Link, address: Address) -> _Standing:
    """What is there, if we can bring it up to date; raises `SchemaMismatch` if not."""
    schema = quoted(address.schema)
    [(has_schema, has_meta)] = await link.fetch("migrate.standing", (schema,))
    rows = (await link.fetch("migrate.version", ())) if has_meta else []
    there = _number(rows[0][0] if rows else "0")
    if there > known():
        raise mismatch(there, address)
    taken = await link.fetch("migrate.taken", (schema, sorted(made_by(FILES.migrations[there:]))))
    if taken:
        raise SchemaMismatch(
            f"Schema {address.schema} of PostgreSQL at {address.place} has a table {taken[0][0]} that is not onejob's: put the "
            "store into a schema of its own with ?schema=NAME in its URL."
        )
    return _Standing(has_schema, has_meta, there)


def _steps(standing: _Standing, schema: str) -> list[str]:
    """What brings the tables from there to ours, in order."""
    return [
        *([] if standing.has_schema else [f"create schema if not exists {quoted(schema)};"]),
        *([] if standing.has_meta else [in_schema(_META, schema)]),
        *(in_schema(text, schema).strip() for text in FILES.migrations[standing.version :]),
        *([] if standing.version == known() else [in_schema(_PUT, schema).replace("VERSION", str(known()))]),
    ]


def made_by(migrations: Sequence[str]) -> set[str]:
    """The tables that these make."""
    return set(re.findall(_TABLE, "\n".join(migrations)))


def mismatch(there: int, address: Address) -> SchemaMismatch:
    """The tables are of another version than this onejob's."""
    where = f"Schema {address.schema} of PostgreSQL at {address.place}"
    if there > known():
        return SchemaMismatch(
            f"{where} has version {there}, this onejob knows up to {known()}: upgrade onejob here, or point this program "
            "at another store."
        )
    has = f"has version {there}" if there else "has no tables of onejob"
    return SchemaMismatch(
        f"{where} {has}, this onejob needs version {known()}, and its URL says migrate=never: run `onejob migrate`, or apply what it "
        "prints with --sql."
    )


async def _busy(link: Link, address: Address) -> StoreBusy:
    rows = await link.fetch("migrate.holders", (address.schema, _LONG))
    return StoreBusy(
        f"Schema {address.schema} of PostgreSQL at {address.place} was not brought up to date, and nothing in it was changed: for "
        f"{address.patience:g} s somebody had its tables locked{_named(rows)}. Let such transactions end, or end them "
        "with pg_terminate_backend, and run `onejob migrate`; it tries for as long as ?patience=SECONDS in the store's URL says."
    )


def _named(rows: Sequence[Row]) -> str:
    """Who had them locked, as far as that can be seen."""
    names: list[str] = []
    for pid, application, age in rows:
        called = f" ({application})" if application else ""
        since = "" if age is None else f", in a transaction for {span(age)}"
        names.append("a prepared transaction" if pid is None else f"session {pid}{called}{since}")
    return f": {'; '.join(names)}" if names else ""


def _may_not_create(address: Address) -> OnejobError:
    return OnejobError(
        f"This user may not create schema {address.schema} in PostgreSQL at {address.place}: as an owner of the "
        f"database, run `create schema {quoted(address.schema)} authorization` with this user's name; or apply what `onejob "
        "migrate --sql` shows."
    )


def _number(text: str) -> int:
    if not text.isdecimal():
        raise SchemaMismatch(
            f"The store says that its schema is {shown(text)}, which this onejob does not understand: upgrade onejob here."
        )
    return int(text)

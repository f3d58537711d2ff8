"""Bringing the tables up to date: by itself with the first use, by `onejob migrate`, or as a script to apply by hand."""

from __future__ import annotations

from typing import Final

from onejob.core.errors import OnejobError, SchemaMismatch, shown
from onejob.stores.postgres.address import Address
from onejob.stores.postgres.driver import Link
from onejob.stores.postgres.failures import sqlstate
from onejob.stores.postgres.statements import FILES, in_schema, quoted

_ABSENT: Final = frozenset({"42P01", "3F000"})
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
    """Bring the tables up to date, in one transaction; several processes may try at once."""
    schema = address.schema
    await link.execute(f"{link.begin}; set local lock_timeout = 0; set local statement_timeout = 0")
    try:
        await link.fetch("migrate.lock", (schema,))
        [(has_schema, has_meta)] = await link.fetch("migrate.standing", (quoted(schema),))
        if not has_schema:
            await _create(link, address)
        if not has_meta:
            await link.execute(in_schema(_META, schema))
        rows = await link.fetch("migrate.version", ())
        there = _number(rows[0][0] if rows else "0")
        if there > known():
            raise mismatch(there, address)
        for text in FILES.migrations[there:]:
            await link.execute(in_schema(text, schema))
        if there < known():
            await link.fetch("migrate.put_version", (str(known()),))
        await link.execute("commit")
    except BaseException:
        if not link.connection.is_closed():
            await link.execute("rollback")
        raise


def script(there: int, schema: str) -> str:
    """What brings the tables from a version (0: none) to ours, as one script for people who apply it themselves."""
    parts = [
        f"-- Tables of onejob in schema {schema}: from version {there} to {known()}.",
        "begin;",
        "create schema if not exists onejob;".replace("onejob", quoted(schema)),
        in_schema(_META, schema),
        *(in_schema(text, schema).strip() for text in FILES.migrations[there:]),
        in_schema(_PUT, schema).replace("VERSION", str(known())),
        "commit;",
    ]
    return "\n\n".join(parts) + "\n"


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


async def _create(link: Link, address: Address) -> None:
    try:
        await link.execute(f"create schema {quoted(address.schema)}")
    except Exception as error:
        if sqlstate(error) != "42501":
            raise
        raise OnejobError(
            f"This user may not create schema {address.schema} in PostgreSQL at {address.place}: as an owner of the "
            f"database, run `create schema {address.schema} authorization` with this user's name; or apply what `onejob "
            "migrate --sql` shows."
        ) from error


def _number(text: str) -> int:
    if not text.isdecimal():
        raise SchemaMismatch(
            f"The store says that its schema is {shown(text)}, which this onejob does not understand: upgrade onejob here."
        )
    return int(text)

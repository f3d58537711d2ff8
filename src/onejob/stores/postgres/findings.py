"""What the facts of a checkup mean: findings in words, each with its remedy. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Final

import msgspec

from onejob.core.errors import StoreUnavailable
from onejob.core.span import counted, span
from onejob.sql.findings import on_stranded
from onejob.store import Finding, Level
from onejob.stores.postgres import migrate
from onejob.stores.postgres.statements import FILES
from onejob.stores.postgres.steps import Row

OLDEST_SERVER: Final = 140_000
MANY_DEAD: Final = 10_000
"""Dead rows below which a table is never called bloated."""
MANY_USERS: Final = 5
"""More than these are not named."""

_INDEX: Final = r"(create(?: unique)?|drop) index (?:if (?:not )?exists )?(?:onejob\.)?([a-z_]+)"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, as the statements return it. Those on our tables are there only if these are of our version."""

    schema: str
    migrates: bool = True
    """False: the URL says migrate=never."""
    server: Row
    rights: Sequence[Row]
    version: int | str = 0
    notify_works: bool | None = None
    locked: Sequence[Row] = ()
    indexes: Sequence[Row] = ()
    bloat: Sequence[Row] = ()
    unseen: Row = (0, ())
    transactions: Sequence[Row] = ()
    lock_waits: Sequence[Row] = ()
    stranded: int = 0


def findings(facts: Facts) -> list[Finding]:
    """What is wrong, the worst first."""
    found = [
        *on_server(facts.server),
        *(on_locked(facts) if facts.locked else on_rights(facts)),
        *on_indexes(facts),
        *on_notify(facts.notify_works),
        *on_lock_waits(facts.lock_waits),
        *on_transactions(facts.transactions),
        *on_bloat(facts.bloat),
        *on_unseen(facts),
        *on_stranded(facts.stranded),
    ]
    return sorted(found, key=lambda finding: finding.level is not Level.ERROR)


def unreachable(error: Exception) -> Finding:
    """The server does not let us look at all."""
    return Finding(
        Level.ERROR,
        "unreachable",
        f"The store cannot be looked into: {error}",
        "Start the server, or correct the store's URL or the network."
        if isinstance(error, StoreUnavailable)
        else "The server answers: mend what it says there, and look again.",
        blocking=True,
    )


@cache
def tables() -> tuple[str, ...]:
    """The tables that the migrations make."""
    return tuple(sorted(migrate.made_by(FILES.migrations)))


@cache
def indexes() -> frozenset[str]:
    """The indexes that the migrations make, but for those that a later one drops."""
    standing: set[str] = set()
    for verb, name in re.findall(_INDEX, "\n".join(FILES.migrations)):
        standing.discard(name) if verb == "drop" else standing.add(name)
    return frozenset(standing)


def on_server(server: Row) -> Iterator[Finding]:
    """A server that is too old, must not be written to, or forgets what it has acknowledged."""
    number, encoding, fsync, whole_pages, synchronous, in_recovery, read_only, _ = server
    if number < OLDEST_SERVER:
        yield Finding(
            Level.ERROR,
            "old_server",
            f"The server is PostgreSQL {number // 10_000}, older than onejob works with.",
            f"Upgrade it to version {OLDEST_SERVER // 10_000} or later.",
        )
    if in_recovery or read_only == "on":
        why = "it is a standby" if in_recovery else "default_transaction_read_only is on"
        yield Finding(
            Level.ERROR,
            "read_only",
            f"The server takes no writes: {why}.",
            "Point the store's URL at the primary, or let this user write.",
        )
    if encoding != "UTF8":
        yield Finding(
            Level.ERROR,
            "encoding",
            f"The database's encoding is {encoding}: not every key and error can be stored.",
            "Make a database with encoding UTF8 and move there.",
        )
    if fsync == "off" or whole_pages == "off":
        name = "fsync" if fsync == "off" else "full_page_writes"
        yield Finding(
            Level.WARNING,
            "not_durable",
            f"{name} is off: a crash of the machine can lose acknowledged jobs and damage the whole database.",
            f"Set {name} = on, unless this server is for tests.",
        )
    elif synchronous == "off":
        yield Finding(
            Level.WARNING,
            "not_durable",
            "synchronous_commit is off: a crash of the server can lose the last acknowledged jobs, or run some again.",
            "Set synchronous_commit = on for this user: alter role … set synchronous_commit = on.",
        )


def on_rights(facts: Facts) -> Iterator[Finding]:
    """No schema, no right to use it, or one of another version."""
    schema, user = facts.schema, facts.server[-1]
    known = migrate.known()
    if not facts.rights or (may_look(facts) and not facts.version and not facts.rights[0][1]):
        yield Finding(
            Level.ERROR,
            "no_schema",
            f"The database has no tables of onejob in schema {schema}.",
            "Check the URL; the first enqueue or worker makes them, or `onejob migrate`."
            if facts.migrates
            else "Check the URL, which says migrate=never: run `onejob migrate`, or apply what it prints with --sql.",
            blocking=True,
        )
        return
    usage, _, lacking = facts.rights[0]
    if not usage or lacking:
        on = f"schema {schema}" if not usage else f"{', '.join(lacking)} in schema {schema}"
        yield Finding(
            Level.ERROR,
            "no_rights",
            f"User {user} may not use {on}.",
            f"As the owner: grant usage on schema {schema} to {user}; grant select, insert, update, delete on all "
            f"tables in schema {schema} to {user}.",
            blocking=True,
        )
    elif not isinstance(facts.version, int) or facts.version > known:
        yield Finding(
            Level.ERROR,
            "schema_newer",
            f"The store has schema {facts.version}, and this onejob knows up to {known}.",
            "Upgrade onejob here, or point this program at another store.",
            blocking=True,
        )
    elif not facts.version and (others := ", ".join(name for name in facts.rights[0][1] if name != "meta")):
        yield Finding(
            Level.ERROR,
            "not_ours",
            f"Schema {schema} has tables that are not known to be onejob's: {others}.",
            "If they are yours, put the store into a schema of its own with ?schema=NAME in its URL; if somebody emptied "
            "or dropped its table meta, restore that from a copy.",
            blocking=True,
        )
    elif facts.version < known:
        yield Finding(
            Level.WARNING if facts.migrates else Level.ERROR,
            "schema_older",
            f"The store has schema {facts.version}, and this onejob would make it {known}.",
            "Nothing to do: the first use by this version brings it up to date, or `onejob migrate`."
            if facts.migrates
            else "Run `onejob migrate`, or apply what it prints with --sql: the store's URL says migrate=never.",
            blocking=not facts.migrates,
        )
    elif missing := missing_tables(facts):
        yield Finding(
            Level.ERROR,
            "missing_tables",
            f"Tables are missing in schema {schema}: {', '.join(missing)}.",
            "Somebody dropped them: restore the schema from a copy.",
            blocking=True,
        )


def on_locked(facts: Facts) -> Iterator[Finding]:
    """Sessions that keep everybody from a table of ours."""
    for pid, name, state, age, table in facts.locked:
        who = "A prepared transaction" if pid is None else f"Session {pid}{_named(name)}"
        since = "" if age is None else f", in a transaction for {span(age * 1000)}"
        yield Finding(
            Level.ERROR,
            "locked",
            f"{who} has table {table} of schema {facts.schema} to itself ({state or 'state unknown'}{since}): nobody else can "
            "use it, not even to look into it here.",
            "Decide on it: commit prepared, or rollback prepared."
            if pid is None
            else f"Let it commit or roll back; or end it: select pg_terminate_backend({pid}).",
            blocking=True,
        )


def on_indexes(facts: Facts) -> Iterator[Finding]:
    """Indexes that are gone, or were left half built."""
    if not facts.indexes:
        return
    valid = dict(facts.indexes)
    missing = sorted(indexes() - valid.keys())
    if missing:
        yield Finding(
            Level.ERROR,
            "missing_index",
            f"Indexes are missing in schema {facts.schema}: {', '.join(missing)}. Claims read whole tables, or promises "
            "break.",
            "Make them again as `onejob migrate --sql` on an empty database shows them, with `create index concurrently`.",
        )
    broken = sorted(name for name, usable in valid.items() if not usable)
    if broken:
        yield Finding(
            Level.ERROR,
            "invalid_index",
            f"Indexes are not usable: {', '.join(broken)}. A `create index concurrently` was cut short.",
            f"reindex index concurrently {facts.schema}.{broken[0]}; and so on.",
        )


def on_notify(works: bool | None) -> Iterator[Finding]:
    """Notifications that were sent and did not come back."""
    if works is False:
        yield Finding(
            Level.WARNING,
            "no_notify",
            "Notifications (LISTEN/NOTIFY) do not arrive: workers find new jobs by polling, up to a second late.",
            "Connect to the server itself, or to a pooler in session mode: one in transaction mode drops LISTEN.",
        )


def on_lock_waits(rows: Sequence[Row]) -> Iterator[Finding]:
    """Sessions that wait for each other on our tables."""
    for pid, name, waited, blocker, blocker_name, state, age in rows:
        since = "" if age is None else f", in a transaction for {span(age * 1000)}"
        yield Finding(
            Level.WARNING,
            "lock_wait",
            f"Session {pid}{_named(name)} has waited {span((waited or 0) * 1000)} for a lock on our tables, which session "
            f"{blocker}{_named(blocker_name)} holds ({state or 'state unknown'}{since}).",
            f"Let that one commit or roll back; or end it: select pg_terminate_backend({blocker}).",
        )


def on_transactions(rows: Sequence[Row]) -> Iterator[Finding]:
    """What keeps vacuum from removing dead rows."""
    for kind, name, detail, state, age in rows:
        match kind:
            case "session":
                what = f"Session {name}{_named(detail)} has been in one transaction for {span(age * 1000)} ({state})"
                remedy = f"Let it commit or roll back; or end it: select pg_terminate_backend({name})."
            case "prepared":
                what = f"The prepared transaction {name!r} of {detail} has been open for {span(age * 1000)}"
                remedy = f"Decide on it: commit prepared '{name}', or rollback prepared '{name}'."
            case _:
                what = f"The replication slot {name} ({detail}) is {age:,} transactions behind"
                remedy = f"Let its consumer catch up, or drop it: select pg_drop_replication_slot('{name}')."
        yield Finding(
            Level.WARNING,
            "long_transaction",
            f"{what}: vacuum cannot remove rows that died since, and claims get slower by them.",
            remedy,
        )


def on_bloat(rows: Sequence[Row]) -> Iterator[Finding]:
    """Tables with more dead rows than live ones."""
    for table, live, dead, size, since, vacuums in rows:
        if dead < MANY_DEAD or dead <= live:
            continue
        last = "never been vacuumed" if since is None else f"not been vacuumed for {span(since * 1000)}"
        yield Finding(
            Level.WARNING,
            "bloat",
            f"Table {table} has {dead:,} dead rows beside {live:,} live ones ({size / 1024**2:,.0f} MiB), and has {last}.",
            "End long transactions first, then `vacuum` it; autovacuum should have come by itself: see its workers and "
            "cost limits."
            if vacuums
            else "Turn autovacuum on for the server and this table: it is off.",
        )


def on_unseen(facts: Facts) -> Iterator[Finding]:
    """Sessions of which we may not know whether they keep vacuum away; where nothing is amiss, nobody is suspected."""
    count, users = facts.unseen
    if count and any(on_bloat(facts.bloat)):
        named = ", ".join(users[:MANY_USERS]) + (", …" if len(users) > MANY_USERS else "")
        yield Finding(
            Level.WARNING,
            "unseen_sessions",
            f"{counted(count, 'session')} of other users ({named}) cannot be looked into: an old transaction of theirs, which would keep dead "
            "rows from being removed, is not known.",
            f"As a superuser: grant pg_read_all_stats to {facts.server[-1]}.",
        )


def may_look(facts: Facts) -> bool:
    """True if the schema is there, may be used, and nothing in it is closed to us."""
    return bool(facts.rights) and facts.rights[0][0] and not facts.rights[0][2]


def missing_tables(facts: Facts) -> list[str]:
    there: Iterable[str] = facts.rights[0][1] if facts.rights else ()
    return sorted(set(tables()) - set(there))


def _named(application: str | None) -> str:
    return f" ({application})" if application else ""

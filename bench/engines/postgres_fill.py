"""Fills a PostgreSQL store of ours with copies of a row that the store itself wrote, whatever its columns are."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import psycopg

from bench.engines import Filling, model

_NEWEST = {"job": "order by seq desc"}
# Ids grow, as those of jobs do, but are older than any that is made now.
_ID = "('01000000' || lpad(to_hex(n), 8, '0') || substr(md5(random()::text), 1, 16))::uuid"
# Digests are as good as random, but inserted in their order: at random it would take minutes.
_DIGEST = "decode(lpad(to_hex((n::bigint * 4294967295) / (%(count)s + 1)), 8, '0') || substr(md5(n::text), 1, 24), 'hex')"
_LANE = "'lane-' || lpad(to_hex(n), 8, '0')"


def fill(url: str, filling: Filling, count: int) -> None:
    """Make the model row, copy it `count` times, and leave nothing that would have to be cleaned up later."""
    asyncio.run(model.make(url, filling))
    with psycopg.connect(url) as connection:
        connection.execute("set synchronous_commit = off")
        indexes = _drop_indexes(connection)
        match filling:
            case Filling.KEYS:
                _copy(connection, "key", {"digest": _DIGEST, "holder": "gen_random_uuid()"}, count)
            case Filling.LANES:
                _copy(connection, "job", {"id": _ID, "lane": _LANE}, count)
                _copy(connection, "lane", {"key": _LANE}, count)
            case _:
                _copy(connection, "job", {"id": _ID}, count)
        for index in indexes:
            _run(connection, index)
        connection.commit()
        connection.autocommit = True
        connection.execute("vacuum (analyze, freeze)")


def _drop_indexes(connection: psycopg.Connection[Any]) -> list[str]:
    """Drop what is not a constraint, and return how to make it again: at the end that is many times faster."""
    found = _run(
        connection,
        """
        select indexrelid::regclass::text, pg_get_indexdef(indexrelid) from pg_index
        where indrelid in ('onejob.job'::regclass, 'onejob.key'::regclass, 'onejob.lane'::regclass)
            and not exists (select from pg_constraint where conindid = indexrelid)
        """,
    )
    for name, _ in found:
        _run(connection, f"drop index {name}")
    return [definition for _, definition in found]


def _copy(connection: psycopg.Connection[Any], table: str, new: dict[str, str], count: int) -> None:
    """Copy the row that was made last."""
    columns = [
        name
        for (name,) in _run(
            connection,
            f"select attname from pg_attribute where attrelid = 'onejob.{table}'::regclass "
            "and attnum > 0 and not attisdropped and attidentity = '' and attgenerated = '' order by attnum",
        )
    ]
    values = [new.get(column, column) for column in columns]
    _run(
        connection,
        f"insert into onejob.{table} ({', '.join(columns)}) select {', '.join(values)} "
        f"from generate_series(1, %(count)s) n, (select * from onejob.{table} {_NEWEST.get(table, '')} limit 1) as model",
        {"count": count},
    )


def _run(connection: psycopg.Connection[Any], statement: str, parameters: Any = None) -> list[Any]:
    cursor = connection.execute(cast("Any", statement), parameters)
    return cursor.fetchall() if cursor.description else []

"""Schemas of the PostgreSQL server that all tests share: one for each test, empty and made ready."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import Any, LiteralString, cast

import psycopg

from onejob.stores import open_store

SPARE = 4
"""So many schemas are in turn, so that the connections of a test are gone when its schema's turn comes again."""
WORN = 2_000
"""A schema out of which so many rows were deleted is not used again."""


@dataclass
class Schema:
    """A schema with the store's tables, and a user who owns it. What the user makes himself is in another schema."""

    name: str
    user: str
    url: str
    tables: list[str] = field(default_factory=list)
    shape: str = ""
    """What it looked like when it was made."""
    deleted: int = 0


class Schemas:
    """Hands out schemas, empty and made ready: to make one takes ten times as long as to empty one."""

    def __init__(self, url: str, prefix: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._prefix = prefix
        self._numbers = itertools.count()
        self._used: deque[Schema] = deque()

    def take(self, *, ready: bool = True) -> Schema:
        """A schema for one test; `ready=False` gives one that does not exist yet."""
        if not ready:
            return self._name_one()
        if len(self._used) >= SPARE:
            schema = self._used.popleft()
            if self._clean(schema):
                return schema
            self.drop(schema)
        return self._make()

    def give_back(self, schema: Schema) -> None:
        """The test is over."""
        if schema.tables:
            self._used.append(schema)
        else:
            self.drop(schema)

    def drop(self, schema: Schema) -> None:
        """Away with it, and with whoever still uses it."""
        self._run(
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity where usename = %s", schema.user
        )
        with self._connection.transaction():
            self._run("select pg_advisory_xact_lock(1)")
            self._run(f"drop schema if exists {schema.name} cascade")
            self._run(f"drop owned by {schema.user} cascade")
            self._run(f"drop role {schema.user}")

    def close(self) -> None:
        self._connection.close()

    def _name_one(self) -> Schema:
        tag = f"{self._prefix}{next(self._numbers)}"
        schema, user = f"t_{tag}", f"u_{tag}"
        info = self._connection.info
        url = f"postgresql://{user}@{info.host}:{info.port}/{info.dbname}?schema={schema}"
        # One at a time: rights on a database cannot be given to two at once. And an ordinary user: what only a
        # superuser may do must not be needed.
        with self._connection.transaction():
            self._run("select pg_advisory_xact_lock(1)")
            self._run(f"create role {user} login")
            self._run(f"grant create on database {info.dbname} to {user}")
            self._run(f"create schema {user} authorization {user}")
        return Schema(schema, user, url)

    def _make(self) -> Schema:
        schema = self._name_one()

        async def migrate() -> None:
            store = open_store(schema.url)
            await store.workers()
            await store.close()

        asyncio.run(migrate())
        schema.tables = [table for table in self._tables(schema.name) if table != "meta"]
        assert schema.tables, "the first use of a store makes its tables"
        schema.shape = self._shape(schema)
        return schema

    def _clean(self, schema: Schema) -> bool:
        """Empty it; False if somebody still uses it or has rebuilt it, or if it is worn."""
        if self._run("select from pg_stat_activity where usename = %s", schema.user):
            return False
        if self._tables(schema.name, schema.user) != self._tables(schema.name):
            self._run(
                f"drop schema {schema.user} cascade; create schema {schema.user} authorization {schema.user}"
            )
        if self._shape(schema) != schema.shape:
            return False
        self._run(
            "select setval(oid, 1, false) from pg_class where relkind = 'S' and relnamespace = %s::regnamespace",
            schema.name,
        )
        for table in schema.tables:
            schema.deleted += self._connection.execute(f"delete from {schema.name}.{table}").rowcount  # type: ignore[arg-type]
        return schema.deleted < WORN

    def _shape(self, schema: Schema) -> str:
        """Its tables and indexes with their columns and settings, and what the store has noted down of itself."""
        relations = "select relname, relnatts, relpersistence, relhastriggers, reloptions from pg_class"
        notes = f"select array_agg(m::text order by m::text)::text from {schema.name}.meta m"
        [(shape,)] = self._run(
            f"select array_agg(r::text order by r::text)::text || ({notes}) from ({relations} "
            "where relnamespace = %s::regnamespace) r",
            schema.name,
        )
        return shape

    def _tables(self, *schemas: str) -> list[str]:
        return [
            row[0]
            for row in self._run(
                "select tablename from pg_tables where schemaname = any(%s) order by 1", list(schemas)
            )
        ]

    def _run(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(cast("LiteralString", statement), parameters or None)
        return cursor.fetchall() if cursor.description else []

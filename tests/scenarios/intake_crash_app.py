"""A process that takes rows in, and dies where it is told to; or several that do so at once. Run by test_intake_killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import sqlalchemy

from onejob import App, Table
from onejob.stores.postgres.transaction import PostgresTransaction
from onejob.stores.sqlite.transaction import SqliteTransaction


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_store(kind: Any, when: str) -> None:
    """Die in the transaction that sets the flags: before it does, or after."""
    execute = kind.execute

    async def deadly(self: Any, statement: str, parameters: Any = ()) -> Any:
        setting = statement.startswith("UPDATE")
        if setting and when == "before":
            die()
        result = await execute(self, statement, parameters)
        if setting:
            die()
        return result

    kind.execute = deadly


def die_in_engine(engine: sqlalchemy.Engine, when: str) -> None:
    def deadly(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE"):
            die()

    name = "before_cursor_execute" if when == "before" else "after_cursor_execute"
    sqlalchemy.event.listen(engine, name, deadly)


async def main(database: str, when: str) -> None:
    async with App() as app:

        @app.task(name="call")
        async def call(phone: str) -> None: ...

        engine = None if database == "own" else sqlalchemy.create_engine(database)
        if when in ("before", "after"):
            kind = PostgresTransaction if app.url.startswith("postgresql:") else SqliteTransaction
            die_in_store(kind, when) if engine is None else die_in_engine(engine, when)
        calls = app.intake("calls", Table("calls", due="due", database=engine), call, per_fetch=20)
        report = await calls.arun()
        # In one piece: others write into the same pipe.
        os.write(sys.stdout.fileno(), f"{report.taken} {report.kept}\n".encode())
        if engine is not None:
            engine.dispose()


def at_once(database: str, processes: int) -> int:
    """Forked before anything is opened, so that imports are paid for once; how many did not end well."""
    for _ in range(processes):
        if os.fork() == 0:
            asyncio.run(main(database, "never"))
            sys.exit()
    return sum(os.wait()[1] != 0 for _ in range(processes))


if __name__ == "__main__":
    database, when = sys.argv[1:]
    if when.isdecimal():
        sys.exit(at_once(database, int(when)))
    asyncio.run(main(database, when))
